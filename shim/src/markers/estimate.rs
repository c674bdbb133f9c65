//! How long launches take, as far as markers have shown it.

use super::launches::Launches;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering};

/// What is taken for the first launch's time at most when nobody looked while it ran: it may have been done long
/// before.
const FIRST_NS_MAX: u64 = 10_000_000;
/// The typical time falls by such a part of the difference with each marker that took less; it rises by half of it.
const SHORTENING: u32 = 8;
/// The longest launch is forgotten by such a part with each marker.
const FORGETTING: u32 = 64;

/// How long launches of either kind take. All zero: not known yet.
#[repr(C)]
pub(crate) struct Estimates {
    kernels: Estimate,
    /// Graphs, each of which can stand for many kernels.
    graphs: Estimate,
}

/// How long launches of one kind take. All zero: not known yet.
#[repr(C)]
struct Estimate {
    /// What most take.
    typical_ns: AtomicU32,
    /// What the longest one took that is not forgotten yet: never less than what most take.
    longest_ns: AtomicU32,
}

impl Estimates {
    /// What most kernels take; 0: not known yet.
    pub(super) fn kernel_ns(&self) -> u64 {
        self.kernels.get().map_or(0, |(typical_ns, _)| typical_ns)
    }

    /// What the longest graphs take: they differ more than kernels do. 0: not known yet.
    pub(super) fn graph_ns(&self) -> u64 {
        self.graphs.get().map_or(0, |(_, longest_ns)| longest_ns)
    }

    /// How long to wait until one more launch may be added to those `in_flight`, the oldest of which has been at it for
    /// `elapsed_ns`. 0: now.
    ///
    /// What the oldest launch has been at already does not count, so that the next one of a series of long kernels is
    /// let in shortly before the device would have nothing to do.
    pub(super) fn wait_for_room_ns(&self, in_flight: Launches, elapsed_ns: u64, room_ns: u64) -> u64 {
        let (mut typical_ns, mut longest_ns, mut all_ns) = (0, 0, 0_u64);
        for (count, estimate) in [(in_flight.kernels(), &self.kernels), (in_flight.graphs(), &self.graphs)] {
            if count == 0 {
                continue;
            }
            // With no estimate yet, one launch at a time.
            let Some((typical, longest)) = estimate.get() else { return room_ns.max(1) };
            typical_ns = typical.max(typical_ns);
            longest_ns = longest.max(longest_ns);
            all_ns = all_ns.saturating_add(count.saturating_mul(typical));
        }
        let oldest_ns = if elapsed_ns > typical_ns.saturating_mul(2) { longest_ns } else { typical_ns };
        let left_ns = all_ns.saturating_sub(typical_ns).saturating_add(oldest_ns.saturating_sub(elapsed_ns));
        left_ns.saturating_sub(room_ns)
    }

    /// Learns from launches that took so long, together. Time in which there were also kernels is the graphs' beyond
    /// what those take.
    pub(super) fn learn(&self, launches: Launches, at_least_ns: u64, at_most_ns: u64) {
        if launches.graphs() == 0 {
            return self.kernels.learn(launches.kernels(), at_least_ns, at_most_ns);
        }
        let kernels_ns = launches.kernels().saturating_mul(self.kernel_ns());
        let of_graphs = |ns: u64| ns.saturating_sub(kernels_ns);
        self.graphs.learn(launches.graphs(), of_graphs(at_least_ns), of_graphs(at_most_ns));
    }

    /// What launches would take if all were among the longest.
    pub(super) fn longest_ns(&self, launches: Launches) -> u64 {
        let longest_ns = |estimate: &Estimate| estimate.get().map_or(0, |(_, longest_ns)| longest_ns);
        let kernels_ns = launches.kernels().saturating_mul(longest_ns(&self.kernels));
        launches.graphs().saturating_mul(longest_ns(&self.graphs)).saturating_add(kernels_ns)
    }
}

impl Estimate {
    /// What most launches take, and what the longest ones do; `None`: not known yet.
    fn get(&self) -> Option<(u64, u64)> {
        let typical = NonZeroU32::new(self.typical_ns.load(Ordering::Relaxed))?.get();
        Some((typical.into(), self.longest_ns.load(Ordering::Relaxed).max(typical).into()))
    }

    /// So many launches together took so long: the truth lies in between, as nobody looks all the time.
    fn learn(&self, launches: u64, at_least_ns: u64, at_most_ns: u64) {
        let of_one = |ns: u64| ns.checked_div(launches).map(|ns| ns.clamp(1, 1 << 31) as u32);
        let (Some(least), Some(most)) = (of_one(at_least_ns), of_one(at_most_ns)) else { return };
        let before = self.typical_ns.load(Ordering::Relaxed);
        let typical = match before {
            0 => least.max(most.min(FIRST_NS_MAX as u32)),
            _ if least > before => before / 2 + least / 2,
            // Rare long launches among short ones count for a while: what is in flight must be little while they come.
            _ => before - before.saturating_sub(most) / SHORTENING,
        };
        self.typical_ns.store(typical.max(1), Ordering::Relaxed);
        // One of them may have taken all that the others, which took what most do, have left.
        let others_ns = launches.saturating_sub(1).saturating_mul(before.into());
        let one_ns = at_least_ns.saturating_sub(others_ns).min(1 << 31) as u32;
        let longest = self.longest_ns.load(Ordering::Relaxed);
        let remembered = longest.saturating_sub(longest / FORGETTING + 1);
        self.longest_ns.store(remembered.max(one_ns).max(typical), Ordering::Relaxed);
    }
}

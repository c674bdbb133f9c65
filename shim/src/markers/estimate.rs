//! Estimates of how long launches take, learned from markers.

use super::launches::Launches;
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering};

/// Upper bound of the first estimate if no thread looked while the launch ran: the launch may have been done long
/// before.
const FIRST_NS_MAX: u64 = 10_000_000;
/// If a marker took less than the typical time, the typical time falls by this fraction of the difference. It rises by
/// half of the difference.
const SHORTENING: u32 = 8;
/// The longest time decreases by this fraction with each marker.
const FORGETTING: u32 = 64;

/// How long kernels and graphs take. All zero: unknown.
#[repr(C)]
pub(crate) struct Estimates {
    kernels: Estimate,
    /// Each graph can stand for many kernels.
    graphs: Estimate,
}

/// How long launches of one kind take. All zero: unknown.
#[repr(C)]
struct Estimate {
    /// The typical time of one launch.
    typical_ns: AtomicU32,
    /// The longest time that is not forgotten yet; at least the typical time.
    longest_ns: AtomicU32,
}

impl Estimates {
    /// The typical time of a kernel; 0: unknown.
    pub(super) fn kernel_ns(&self) -> u64 {
        self.kernels.get().map_or(0, |(typical_ns, _)| typical_ns)
    }

    /// How many kernels take about `ns`; at least 1.
    pub(super) fn kernels_in(&self, ns: u64) -> u64 {
        self.kernels.get().map_or(1, |(typical_ns, _)| ns / typical_ns).max(1)
    }

    /// How many graphs take about `ns`, if one of them takes the longest time: graphs differ more than kernels do. At
    /// least 1. If each of them counted with the longest time, a single late look would have short graphs marked often.
    pub(super) fn graphs_in(&self, ns: u64) -> u64 {
        let beside = |(typical_ns, longest_ns): (u64, u64)| ns.saturating_sub(longest_ns) / typical_ns;
        self.graphs.get().map_or(0, beside) + 1
    }

    /// How long to wait, in nanoseconds, until one more launch may be added to those `in_flight`. The oldest of them
    /// has been running for `elapsed_ns`.
    ///
    /// The time for which the oldest launch has been running does not count. So the next one of a series of long
    /// kernels is let in shortly before the device would be idle.
    pub(super) fn wait_for_room_ns(&self, in_flight: Launches, elapsed_ns: u64, room_ns: u64) -> u64 {
        let (mut typical_ns, mut longest_ns, mut all_ns) = (0, 0, 0_u64);
        for (count, estimate) in [(in_flight.kernels(), &self.kernels), (in_flight.graphs(), &self.graphs)] {
            if count == 0 {
                continue;
            }
            // While there is no estimate, one launch at a time.
            let Some((typical, longest)) = estimate.get() else { return room_ns.max(1) };
            typical_ns = typical.max(typical_ns);
            longest_ns = longest.max(longest_ns);
            all_ns = all_ns.saturating_add(count.saturating_mul(typical));
        }
        let oldest_ns = if elapsed_ns > typical_ns.saturating_mul(2) { longest_ns } else { typical_ns };
        let left_ns = all_ns.saturating_sub(typical_ns).saturating_add(oldest_ns.saturating_sub(elapsed_ns));
        left_ns.saturating_sub(room_ns)
    }

    /// Learns from the time that these launches took together. If both kinds are among them, the graphs' time is the
    /// rest that the estimate for the kernels leaves.
    pub(super) fn learn(&self, launches: Launches, at_least_ns: u64, at_most_ns: u64) {
        if launches.graphs() == 0 {
            return self.kernels.learn(launches.kernels(), at_least_ns, at_most_ns);
        }
        let kernels_ns = launches.kernels().saturating_mul(self.kernel_ns());
        let of_graphs = |ns: u64| ns.saturating_sub(kernels_ns);
        self.graphs.learn(launches.graphs(), of_graphs(at_least_ns), of_graphs(at_most_ns));
    }

    /// The time that the launches would take if each took the longest time of its kind.
    pub(super) fn longest_ns(&self, launches: Launches) -> u64 {
        let longest_ns = |estimate: &Estimate| estimate.get().map_or(0, |(_, longest_ns)| longest_ns);
        let kernels_ns = launches.kernels().saturating_mul(longest_ns(&self.kernels));
        launches.graphs().saturating_mul(longest_ns(&self.graphs)).saturating_add(kernels_ns)
    }
}

impl Estimate {
    /// The typical and the longest time; `None`: unknown.
    fn get(&self) -> Option<(u64, u64)> {
        let typical = NonZeroU32::new(self.typical_ns.load(Ordering::Relaxed))?.get();
        Some((typical.into(), self.longest_ns.load(Ordering::Relaxed).max(typical).into()))
    }

    /// Learns from the time that `launches` launches took together. It is known only to lie between the two bounds,
    /// because no thread looks all the time.
    fn learn(&self, launches: u64, at_least_ns: u64, at_most_ns: u64) {
        let of_one = |ns: u64| ns.checked_div(launches).map(|ns| ns.clamp(1, 1 << 31) as u32);
        let (Some(least), Some(most)) = (of_one(at_least_ns), of_one(at_most_ns)) else { return };
        let before = self.typical_ns.load(Ordering::Relaxed);
        let typical = match before {
            0 => least.max(most.min(FIRST_NS_MAX as u32)),
            _ if least > before => before / 2 + least / 2,
            // After rare long launches among short ones the estimate falls slowly: little may be in flight while such
            // launches come.
            _ => before - before.saturating_sub(most) / SHORTENING,
        };
        self.typical_ns.store(typical.max(1), Ordering::Relaxed);
        // One launch may have taken all the time that the others, at the typical time, leave.
        let others_ns = launches.saturating_sub(1).saturating_mul(before.into());
        let one_ns = at_least_ns.saturating_sub(others_ns).min(1 << 31) as u32;
        let longest = self.longest_ns.load(Ordering::Relaxed);
        let remembered = longest.saturating_sub(longest / FORGETTING + 1);
        self.longest_ns.store(remembered.max(one_ns).max(typical), Ordering::Relaxed);
    }
}

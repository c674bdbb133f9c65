//! How long launches take, as far as markers have shown it.

use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering};

/// What is taken for the first launch's time at most when nobody looked while it ran: it may have been done long before.
const FIRST_NS_MAX: u64 = 10_000_000;
/// The typical time falls by such a part of the difference with each marker that took less; it rises by half of it.
const SHORTENING: u32 = 8;
/// The longest launch is forgotten by such a part with each marker.
const FORGETTING: u32 = 64;

/// How long launches of one kind take. All zero: not known yet.
#[repr(C)]
pub(crate) struct Estimate {
    /// What most take.
    typical_ns: AtomicU32,
    /// What the longest one took that is not forgotten yet: never less than what most take.
    longest_ns: AtomicU32,
}

impl Estimate {
    /// What most launches take, and what the longest ones do; `None`: not known yet.
    pub(super) fn get(&self) -> Option<(u64, u64)> {
        let typical = NonZeroU32::new(self.typical_ns.load(Ordering::Relaxed))?.get();
        Some((typical.into(), self.longest_ns.load(Ordering::Relaxed).max(typical).into()))
    }

    /// So many launches together took so long: the truth lies in between, as nobody looks all the time.
    pub(super) fn learn(&self, launches: u64, at_least_ns: u64, at_most_ns: u64) {
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

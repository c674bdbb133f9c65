//! The clock of all times in the region.

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` in nanoseconds: the same in every process of the machine.
#[must_use]
pub(crate) fn monotonic_ns() -> u64 {
    // The call fails only for unknown clocks, and this one is known.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or_else(|_| std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

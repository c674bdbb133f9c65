//! The clock that the region's times are in.

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` in nanoseconds: the same in every process of the machine.
#[must_use]
pub(crate) fn monotonic_ns() -> u64 {
    // The call fails for unknown clocks only, and this one is not.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or_else(|_| std::time::Duration::ZERO, Into::into);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

//! The clocks that a node uses.

use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine was started, including the time in which it slept, because leases run on meanwhile.
pub(crate) fn boot_ms() -> u64 {
    // The call fails only for clocks that the kernel does not know, and Linux has this one since 2.6.39.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |now| millis(Duration::from(now)))
}

/// Milliseconds since 1970, for people to read.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A name for the time since the machine was last started.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

//! Time: instants of `CLOCK_MONOTONIC` in nanoseconds, the same for all processes of the machine.

/// The present instant.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a writable timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps until `instant_ns`; returns at once if that has passed.
pub fn sleep_until_ns(instant_ns: u64) {
    let until = timespec(instant_ns);
    // SAFETY: `until` is a valid timespec; no remainder is asked for with an absolute time.
    while unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &until, core::ptr::null_mut()) }
        == libc::EINTR
    {}
}

/// `duration_ns` as the kernel wants it.
pub(crate) fn timespec(duration_ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (duration_ns / 1_000_000_000) as i64, tv_nsec: (duration_ns % 1_000_000_000) as i64 }
}

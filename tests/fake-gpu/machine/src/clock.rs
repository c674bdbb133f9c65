//! Time: instants of `CLOCK_MONOTONIC` in nanoseconds, the same for all processes of the machine.
//!
//! A real device has a clock of its own. So the kernel is asked, and not the C library: libraries that fake the time
//! for a program (libfaketime) interpose that one's functions.

mod vdso;

/// The present instant.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if !vdso::read(libc::CLOCK_MONOTONIC, &mut now) {
        // SAFETY: `now` is a writable timespec; the clock exists on every Linux.
        unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now) };
    }
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps until `instant_ns`; returns at once if that has passed.
pub fn sleep_until_ns(instant_ns: u64) {
    let until = timespec(instant_ns);
    let (clock, flags) = (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME);
    loop {
        // SAFETY: `until` is a valid timespec; no remainder is asked for with an absolute time.
        let failed = unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, &raw const until, 0_usize) } != 0;
        if !failed || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// `duration_ns` as the kernel wants it.
pub(crate) fn timespec(duration_ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (duration_ns / 1_000_000_000) as i64, tv_nsec: (duration_ns % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_the_kernels() {
        let (mut by_vdso, mut by_kernel) = (timespec(0), timespec(0));
        let before_ns = now_ns();
        // SAFETY: a writable timespec.
        unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut by_kernel) };
        let kernel_ns = by_kernel.tv_sec as u64 * 1_000_000_000 + by_kernel.tv_nsec as u64;
        assert!(before_ns <= kernel_ns && kernel_ns <= now_ns());
        // Where there is none, the kernel is asked each time.
        let has_vdso = vdso::read(libc::CLOCK_MONOTONIC, &mut by_vdso);
        assert!(!has_vdso || by_vdso.tv_sec >= by_kernel.tv_sec);
    }

    #[test]
    fn a_sleep_ends_when_its_time_has_come() {
        let until_ns = now_ns() + 2_000_000;
        sleep_until_ns(until_ns);
        assert!(now_ns() >= until_ns);
        sleep_until_ns(0);
    }
}

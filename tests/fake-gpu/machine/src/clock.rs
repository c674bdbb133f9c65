//! Time: instants of `CLOCK_MONOTONIC` in nanoseconds, the same for all processes of the machine.
//!
//! A real device has its own clock. So time is read from the kernel, not through the C library, whose functions are
//! interposed by libraries that fake the time for a program (libfaketime). The offset of a time namespace is
//! subtracted: otherwise one container's clock would decide when another container's time slice begins.

mod vdso;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// The present instant on the machine's clock.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if !vdso::read(libc::CLOCK_MONOTONIC, &mut now) {
        // SAFETY: `now` is a writable timespec; the clock exists on every Linux.
        unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut now) };
    }
    (now.tv_sec * 1_000_000_000 + now.tv_nsec - offset_ns()) as u64
}

/// Sleeps until `instant_ns`; returns at once if that has passed.
pub fn sleep_until_ns(instant_ns: u64) {
    let until = timespec((instant_ns as i64).saturating_add(offset_ns()).max(0) as u64);
    let (clock, flags) = (libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME);
    loop {
        // SAFETY: `until` is a valid timespec; no remainder is asked for with an absolute time.
        let failed = unsafe { libc::syscall(libc::SYS_clock_nanosleep, clock, flags, &raw const until, 0_usize) } != 0;
        if !failed || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// How far the clock that this process sees is ahead of the machine's.
fn offset_ns() -> i64 {
    static OFFSET_NS: OnceLock<i64> = OnceLock::new();
    *OFFSET_NS.get_or_init(|| {
        // The file describes the time namespace of future children. It differs from this process's own only in a
        // process that has called `unshare`.
        let namespace =
            |name: &str| fs::metadata(format!("/proc/self/ns/{name}")).map(|namespace| namespace.ino()).ok();
        if namespace("time") != namespace("time_for_children") {
            return 0;
        }
        fs::read_to_string("/proc/self/timens_offsets").ok().and_then(|text| monotonic_offset_ns(&text)).unwrap_or(0)
    })
}

/// The offset in `text`, which has a line for each clock: its name, seconds, nanoseconds.
fn monotonic_offset_ns(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut numbers = line.split_ascii_whitespace().map(str::parse::<i64>);
    let (seconds, nanoseconds) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanoseconds)
}

/// `duration_ns` as a `timespec`.
pub(crate) fn timespec(duration_ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (duration_ns / 1_000_000_000) as i64, tv_nsec: (duration_ns % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_read() {
        let text = "monotonic       86400         5\nboottime         -7         0\n";
        assert_eq!(monotonic_offset_ns(text), Some(86_400_000_000_005));
        assert_eq!(monotonic_offset_ns("monotonic  -2  0\n"), Some(-2_000_000_000));
        assert_eq!(monotonic_offset_ns("boottime  1  0\n"), None);
    }

    #[test]
    fn time_is_the_kernels() {
        let (mut by_vdso, mut by_kernel) = (timespec(0), timespec(0));
        let before_ns = now_ns();
        // SAFETY: a writable timespec.
        unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut by_kernel) };
        let kernel_ns = by_kernel.tv_sec as u64 * 1_000_000_000 + by_kernel.tv_nsec as u64;
        assert!(before_ns <= kernel_ns && kernel_ns <= now_ns());
        // Without a vDSO, `now_ns` makes a system call each time.
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

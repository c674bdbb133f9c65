//! Checks the kernel and the C library by trying the features that are needed.

use std::ffi::CStr;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::finding::Finding;

/// The oldest version with which the shim works.
const GLIBC_LEAST: (u32, u32) = (2, 17);
/// `SO_PEERPIDFD`, since Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;

/// Findings about kernel and C library.
pub(super) fn findings() -> Vec<Finding> {
    vec![glibc(), fork(libc::MADV_WIPEONFORK), pidfd(), peer_pidfd(), futex()]
}

fn glibc() -> Finding {
    const WHAT: &str = "glibc";
    // SAFETY: the function takes nothing and returns a static string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_string_lossy().into_owned();
    let (major, minor) = version.split_once('.').unwrap_or((&version, "0"));
    let at_least =
        |parts: (u32, u32)| major.parse().ok().zip(minor.parse().ok()).is_some_and(|found: (u32, u32)| found >= parts);
    match at_least(GLIBC_LEAST) {
        true => Finding::ok(WHAT, version),
        false => Finding::fail(WHAT, version, format!("the shim needs {}.{} or later", GLIBC_LEAST.0, GLIBC_LEAST.1)),
    }
}

/// Tries `advice`, with which the shim has the kernel wipe its state in a forked child. Without that it limits nothing.
fn fork(advice: libc::c_int) -> Finding {
    const WHAT: &str = "fork";
    const BYTES: NonZeroUsize = NonZeroUsize::new(1).unwrap();
    let advised = || {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists.
        let page = unsafe { mmap_anonymous(None, BYTES, protection, MapFlags::MAP_PRIVATE)? };
        // SAFETY: the advice concerns the mapping made above only.
        let advised = nix::Error::result(unsafe { libc::madvise(page.as_ptr(), BYTES.get(), advice) });
        // SAFETY: nothing refers to the mapping.
        unsafe { munmap(page, BYTES.get())? };
        advised
    };
    match advised() {
        Ok(_) => Finding::ok(WHAT, "children of a program are limited as it is"),
        Err(error) => Finding::fail(
            WHAT,
            format!("the kernel lacks MADV_WIPEONFORK ({error}): no program is limited"),
            "needs Linux 4.14 or later, not an emulation of it",
        ),
    }
}

fn pidfd() -> Finding {
    const WHAT: &str = "pidfd";
    // SAFETY: pidfd_open takes two integers. Its result is checked below before it is used.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::c_long::from(std::process::id()), 0) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Finding::fail(
            WHAT,
            format!("pidfd_open fails: {error}"),
            "needs Linux 5.3 or later, and a seccomp filter that allows it",
        );
    }
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    drop(unsafe { OwnedFd::from_raw_fd(fd as i32) });
    Finding::ok(WHAT, "the end of processes is seen at once")
}

fn peer_pidfd() -> Finding {
    const WHAT: &str = "SO_PEERPIDFD";
    let tried = UnixStream::pair().and_then(|(one, _other)| {
        let mut fd: libc::c_int = -1;
        let mut length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the descriptor is open; `fd` and `length` are live locals of the sizes that the call is told.
        let result = unsafe {
            libc::getsockopt(one.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &mut length)
        };
        if result != 0 || fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(())
    });
    match tried {
        Ok(()) => Finding::ok(WHAT, "processes are identified without a race"),
        Err(error) => Finding::warn(
            WHAT,
            error.to_string(),
            "works without it (pidfd_open, with a race that only a pid used twice within moments can lose); Linux 6.5 has it",
        ),
    }
}

/// Tries the wait of the shim: on a word of the limits file, which it can only read.
fn futex() -> Finding {
    const WHAT: &str = "futex";
    match futex_through_read_only_mapping() {
        Ok(()) => Finding::ok(WHAT, "works through a read-only mapping"),
        Err(reason) => Finding::fail(WHAT, reason, "needs a Linux kernel, not an emulation of one (gVisor, WSL 1)"),
    }
}

fn futex_through_read_only_mapping() -> std::result::Result<(), String> {
    const BYTES: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
    const PATIENCE: Duration = Duration::from_secs(2);
    let failed = |error: nix::Error| format!("cannot be tried: {error}");
    let file = memfd_create(c"aliquot-doctor", MFdFlags::MFD_CLOEXEC).map_err(failed)?;
    nix::unistd::ftruncate(&file, BYTES.get() as i64).map_err(failed)?;
    // SAFETY: a new mapping at an address that the kernel chooses touches nothing that exists. The file has the mapped
    // size.
    let map = |protection| unsafe { mmap(None, BYTES, protection, MapFlags::MAP_SHARED, file.as_fd(), 0) };
    let ours = map(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).map_err(failed)?;
    let theirs = map(ProtFlags::PROT_READ).map_err(failed)?;
    // SAFETY: both mappings hold a whole page, are page-aligned, and stay until after the last use of these references.
    // The second one is only read, and a load only reads. All accesses are atomic.
    let (ours_word, theirs_word) = unsafe { (ours.cast::<AtomicU32>().as_ref(), theirs.cast::<AtomicU32>().as_ref()) };
    let result = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait(theirs_word, PATIENCE));
        // If the waiter comes late, the changed value alone is enough: it either is woken, or finds another value.
        let deadline = Instant::now() + PATIENCE;
        while wake(ours_word) == 0 && !waiter.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        ours_word.store(1, Ordering::Release);
        wake(ours_word);
        waiter.join().unwrap_or_else(|_| Err("the waiting thread ended".to_owned()))
    });
    // SAFETY: the two mappings made above; nothing refers to them any more.
    unsafe {
        munmap(ours, BYTES.get()).map_err(failed)?;
        munmap(theirs, BYTES.get()).map_err(failed)?;
    }
    result
}

fn wait(word: &AtomicU32, patience: Duration) -> std::result::Result<(), String> {
    let timeout = libc::timespec { tv_sec: patience.as_secs() as libc::time_t, tv_nsec: 0 };
    // SAFETY: the word is mapped and aligned, and the timeout is a live local.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 0, &raw const timeout, 0, 0) };
    match (result, io::Error::last_os_error()) {
        (0, _) => Ok(()),
        (_, error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
        (_, error) => Err(format!("waiting through a read-only mapping fails: {error}")),
    }
}

/// Wakes the waiters, and returns how many there were.
fn wake(word: &AtomicU32) -> i64 {
    // SAFETY: the word is mapped and aligned.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Status;
    use super::*;

    #[test]
    fn a_kernel_on_which_the_shim_limits_nothing_is_told() {
        const UNKNOWN: libc::c_int = 1_000_000;
        assert_eq!((fork(libc::MADV_WIPEONFORK).status, fork(UNKNOWN).status), (Status::Ok, Status::Fail));
        assert!(fork(UNKNOWN).text(0, false).contains("MADV_WIPEONFORK (EINVAL"), "{:?}", fork(UNKNOWN));
    }

    #[test]
    fn the_trials_leave_nothing_and_do_not_hang() {
        /// More than all other tests of this process have open at a time.
        const TRIALS: usize = 300;
        let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        for _ in 0..TRIALS {
            let found: Vec<_> = findings().iter().map(|finding| finding.what.clone()).collect();
            assert_eq!(found, ["glibc", "fork", "pidfd", "SO_PEERPIDFD", "futex"]);
        }
        assert!(open() < before + TRIALS, "a descriptor is left open");
    }
}

//! A line on standard error that never kills or disturbs the host.
//!
//! Descriptor 2 need not be standard error: programs close it, and the next file that they open gets its number. So the
//! shim writes only to a terminal or a pipe, which is what standard error is in a container. And it writes only if the
//! descriptor survives an `exec`, as a descriptor from the program's start does. A regular file or a socket may hold a
//! program's data, and a line in it does more harm than a missing line.

use super::{AT_EMPTY_PATH, Errno, Timespec, nr, statx, syscall};

const STDERR: usize = 2;

/// Writes `line`, if that is possible without waiting.
pub(crate) fn warn(line: &[u8]) {
    if is_kept_at_exec() && (is_pipe() || is_terminal()) && takes_bytes() {
        without_sigpipe(|| match write_at_once(line) {
            // A terminal, or a pipe of a kernel before 6.4: `takes_bytes` has just found that it takes bytes.
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => super::write(STDERR, line),
            result => result,
        });
    }
}

fn is_kept_at_exec() -> bool {
    const F_GETFD: usize = 1;
    const FD_CLOEXEC: usize = 1;
    // SAFETY: no pointers.
    unsafe { syscall(nr::FCNTL, [STDERR, F_GETFD, 0, 0, 0, 0]) }.is_ok_and(|flags| flags & FD_CLOEXEC == 0)
}

fn is_pipe() -> bool {
    const TYPE: u16 = 0o170_000;
    const FIFO: u16 = 0o010_000;
    statx(STDERR, c"", AT_EMPTY_PATH).is_ok_and(|found| found.mode & TYPE == FIFO)
}

fn is_terminal() -> bool {
    const TCGETS: usize = 0x5401;
    let mut settings = [0_u32; 16];
    // SAFETY: the kernel writes its `struct termios`, which is 36 bytes.
    unsafe { syscall(nr::IOCTL, [STDERR, TCGETS, settings.as_mut_ptr() as usize, 0, 0, 0]) }.is_ok()
}

/// Whether there is room and, for a pipe, a reader at the other end.
fn takes_bytes() -> bool {
    #[repr(C)]
    struct Poll {
        descriptor: i32,
        wanted: i16,
        happened: i16,
    }
    const POLLOUT: i16 = 4;
    let mut poll = Poll { descriptor: STDERR as i32, wanted: POLLOUT, happened: 0 };
    let at_once = Timespec::from_ns(0);
    let arguments = [&raw mut poll as usize, 1, &raw const at_once as usize, 0, 0, 0];
    // SAFETY: the kernel reads and writes one `struct pollfd`, and reads the time, which it may also change.
    unsafe { syscall(nr::PPOLL, arguments) }.is_ok() && poll.happened == POLLOUT
}

fn write_at_once(line: &[u8]) -> Result<usize, Errno> {
    const RWF_NOWAIT: usize = 8;
    const AT_THE_END: usize = usize::MAX;
    let vector = [line.as_ptr() as usize, line.len()];
    let arguments = [STDERR, vector.as_ptr() as usize, 1, AT_THE_END, AT_THE_END, RWF_NOWAIT];
    // SAFETY: the kernel reads one `struct iovec` and the line.
    unsafe { syscall(nr::PWRITEV2, arguments) }
}

/// Makes a call that may raise SIGPIPE in this thread, without any effect on the host.
fn without_sigpipe(call: impl FnOnce() -> Result<usize, Errno>) {
    const SIG_BLOCK: usize = 0;
    const SIG_SETMASK: usize = 2;
    const SIGPIPE: u64 = 1 << (13 - 1);
    const SET_BYTES: usize = size_of::<u64>();
    let (set, mut before, mut pending) = (SIGPIPE, 0_u64, 0_u64);
    let block = [SIG_BLOCK, &raw const set as usize, &raw mut before as usize, SET_BYTES, 0, 0];
    // SAFETY: the kernel reads one signal set and writes another.
    if unsafe { syscall(nr::RT_SIGPROCMASK, block) }.is_err() {
        return;
    }
    // SAFETY: the kernel writes a signal set.
    let _ = unsafe { syscall(nr::RT_SIGPENDING, [&raw mut pending as usize, SET_BYTES, 0, 0, 0, 0]) };
    let is_raised = call() == Err(Errno::EPIPE);
    // A SIGPIPE that was pending before belongs to the host, and absorbs this one.
    if is_raised && pending & SIGPIPE == 0 {
        let at_once = Timespec::from_ns(0);
        let take = [&raw const set as usize, 0, &raw const at_once as usize, SET_BYTES, 0, 0];
        // SAFETY: the kernel reads a signal set and a time.
        let _ = unsafe { syscall(nr::RT_SIGTIMEDWAIT, take) };
    }
    let restore = [SIG_SETMASK, &raw const before as usize, 0, SET_BYTES, 0, 0];
    // SAFETY: the kernel reads a signal set.
    let _ = unsafe { syscall(nr::RT_SIGPROCMASK, restore) };
}

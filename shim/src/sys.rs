//! System calls, made directly.
//!
//! The C library's wrappers would set the host's `errno`, could be interposed by the host, and would tie the library to
//! their symbol versions. The shim needs no symbol newer than glibc 2.17. There are only the calls that the shim needs.

mod standard_error;

pub(crate) use standard_error::warn;

use aliquot_abi::region::MARKER_CELLS;
use core::ffi::{CStr, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// A negated error number, as the kernel returns it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(isize);

impl Errno {
    pub(crate) const ENOENT: Errno = Errno(-2);
    const ESRCH: Errno = Errno(-3);
    const EINTR: Errno = Errno(-4);
    const ENOMEM: Errno = Errno(-12);
    const EFAULT: Errno = Errno(-14);
    pub(crate) const EINVAL: Errno = Errno(-22);
    const ENFILE: Errno = Errno(-23);
    const EMFILE: Errno = Errno(-24);
    const EPIPE: Errno = Errno(-32);
    const ENAMETOOLONG: Errno = Errno(-36);
    const ENOSYS: Errno = Errno(-38);
    const EOPNOTSUPP: Errno = Errno(-95);

    /// Whether the error is temporary, so that the same call may succeed later.
    pub(crate) fn is_passing(self) -> bool {
        matches!(self, Errno::EINTR | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE)
    }
}

#[cfg(target_arch = "x86_64")]
mod nr {
    pub(super) const READ: usize = 0;
    pub(super) const WRITE: usize = 1;
    pub(super) const CLOSE: usize = 3;
    pub(super) const LSEEK: usize = 8;
    pub(super) const MMAP: usize = 9;
    pub(super) const MPROTECT: usize = 10;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const IOCTL: usize = 16;
    pub(super) const SCHED_YIELD: usize = 24;
    pub(super) const MADVISE: usize = 28;
    pub(super) const GETPID: usize = 39;
    pub(super) const SOCKET: usize = 41;
    pub(super) const CONNECT: usize = 42;
    pub(super) const SENDTO: usize = 44;
    pub(super) const KILL: usize = 62;
    pub(super) const FCNTL: usize = 72;
    pub(super) const RT_SIGPENDING: usize = 127;
    pub(super) const RT_SIGTIMEDWAIT: usize = 128;
    pub(super) const FUTEX: usize = 202;
    pub(super) const CLOCK_GETTIME: usize = 228;
    pub(super) const CLOCK_NANOSLEEP: usize = 230;
    pub(super) const OPENAT: usize = 257;
    pub(super) const PPOLL: usize = 271;
    pub(super) const PWRITEV2: usize = 328;
    pub(super) const STATX: usize = 332;
}

#[cfg(target_arch = "aarch64")]
mod nr {
    pub(super) const FCNTL: usize = 25;
    pub(super) const IOCTL: usize = 29;
    pub(super) const OPENAT: usize = 56;
    pub(super) const CLOSE: usize = 57;
    pub(super) const LSEEK: usize = 62;
    pub(super) const READ: usize = 63;
    pub(super) const WRITE: usize = 64;
    pub(super) const PPOLL: usize = 73;
    pub(super) const FUTEX: usize = 98;
    pub(super) const CLOCK_GETTIME: usize = 113;
    pub(super) const CLOCK_NANOSLEEP: usize = 115;
    pub(super) const SCHED_YIELD: usize = 124;
    pub(super) const KILL: usize = 129;
    pub(super) const RT_SIGPROCMASK: usize = 135;
    pub(super) const RT_SIGPENDING: usize = 136;
    pub(super) const RT_SIGTIMEDWAIT: usize = 137;
    pub(super) const GETPID: usize = 172;
    pub(super) const SOCKET: usize = 198;
    pub(super) const CONNECT: usize = 203;
    pub(super) const SENDTO: usize = 206;
    pub(super) const MUNMAP: usize = 215;
    pub(super) const MMAP: usize = 222;
    pub(super) const MPROTECT: usize = 226;
    pub(super) const MADVISE: usize = 233;
    pub(super) const PWRITEV2: usize = 287;
    pub(super) const STATX: usize = 291;
}

/// Makes a system call.
///
/// # Safety
/// The arguments must be what the call `number` takes; pointers must be valid for what it reads and writes.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11; memory is touched as the caller vouches for.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&result) { Err(Errno(result)) } else { Ok(result as usize) }
}

/// Makes a system call.
///
/// # Safety
/// The arguments must be what the call `number` takes; pointers must be valid for what it reads and writes.
#[cfg(target_arch = "aarch64")]
#[inline]
unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the kernel preserves all registers but x0; memory is touched as the caller vouches for.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b, in("x2") c,
            in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    if (-4095..0).contains(&result) { Err(Errno(result)) } else { Ok(result as usize) }
}

/// An open file, closed at the end of its scope.
pub(crate) struct File(usize);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours and is not used again.
        let _ = unsafe { syscall(nr::CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

const AT_FDCWD: usize = -100_isize as usize;
const O_CLOEXEC: usize = 0o2_000_000;
const PAGE_PROTECTION_READ: usize = 1;
const PAGE_PROTECTION_WRITE: usize = 2;
const MAP_SHARED: usize = 1;
const MAP_PRIVATE: usize = 2;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_NORESERVE: usize = 0x4000;
const MADV_NOHUGEPAGE: usize = 15;
const MADV_WIPEONFORK: usize = 18;
const FUTEX_WAIT: usize = 0;
/// Numbers of clocks.
pub(crate) const CLOCK_REALTIME: i32 = 0;
pub(crate) const CLOCK_MONOTONIC: i32 = 1;

/// How a file is opened and mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

impl File {
    /// Opens the file at `path`.
    pub(crate) fn open(path: &CStr, access: Access) -> Result<File, Errno> {
        let flags = O_CLOEXEC | if access == Access::ReadWrite { 2 } else { 0 };
        // SAFETY: `path` is NUL-terminated and read only.
        unsafe { syscall(nr::OPENAT, [AT_FDCWD, path.as_ptr() as usize, flags, 0, 0, 0]) }.map(File)
    }

    /// Reads from the start of a file that was just opened into `buffer`. Returns the number of bytes read.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes to `buffer`.
        unsafe { syscall(nr::READ, [self.0, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
    }

    /// Maps the first `bytes` of the file as shared memory, for ever.
    pub(crate) fn map(&self, bytes: usize, access: Access) -> Result<*mut c_void, Errno> {
        let write = if access == Access::ReadWrite { PAGE_PROTECTION_WRITE } else { 0 };
        // SAFETY: the kernel chooses a place that is free.
        unsafe { syscall(nr::MMAP, [0, bytes, PAGE_PROTECTION_READ | write, MAP_SHARED, self.0, 0]) }
            .map(core::ptr::with_exposed_provenance_mut)
    }

    /// The size of the file in bytes. Moves the file's position to its end. `lseek` is an old call, which even the
    /// strictest filters allow.
    pub(crate) fn size_bytes(&self) -> Result<u64, Errno> {
        const SEEK_END: usize = 2;
        // SAFETY: no pointers.
        unsafe { syscall(nr::LSEEK, [self.0, 0, SEEK_END, 0, 0, 0]) }.map(|bytes| bytes as u64)
    }

    /// Connects a new seqpacket socket to the Unix socket at `path`, without waiting.
    pub(crate) fn connect(path: &CStr) -> Result<File, Errno> {
        const AF_UNIX: u16 = 1;
        const SOCK_SEQPACKET: usize = 5;
        const SOCK_NONBLOCK: usize = 0o4000;
        #[repr(C)]
        struct Address {
            family: u16,
            path: [u8; 108],
        }
        let mut address = Address { family: AF_UNIX, path: [0; 108] };
        let bytes = path.to_bytes();
        if bytes.len() >= address.path.len() {
            return Err(Errno::ENAMETOOLONG);
        }
        for (to, from) in address.path.iter_mut().zip(bytes) {
            *to = *from;
        }
        let kind = SOCK_SEQPACKET | SOCK_NONBLOCK | O_CLOEXEC;
        // SAFETY: no pointers.
        let socket = File(unsafe { syscall(nr::SOCKET, [AF_UNIX as usize, kind, 0, 0, 0, 0]) }?);
        let length = 2 + bytes.len() + 1;
        // SAFETY: `address` outlives the call, which reads `length` bytes of it.
        unsafe { syscall(nr::CONNECT, [socket.0, &raw const address as usize, length, 0, 0, 0]) }?;
        Ok(socket)
    }

    /// Sends `bytes` on a socket, without waiting, and without a signal if no process reads from it.
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        const MSG_DONTWAIT: usize = 0x40;
        const MSG_NOSIGNAL: usize = 0x4000;
        let arguments = [self.0, bytes.as_ptr() as usize, bytes.len(), MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0];
        // SAFETY: the kernel reads `bytes` only.
        unsafe { syscall(nr::SENDTO, arguments) }
    }
}

fn write(descriptor: usize, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel reads `bytes` only.
    unsafe { syscall(nr::WRITE, [descriptor, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }
}

const AT_EMPTY_PATH: usize = 0x1000;

/// The beginning of the kernel's `struct statx`; `rest` makes room for the other fields.
#[repr(C)]
struct Statx {
    mask: u32,
    block_bytes: u32,
    attributes: u64,
    links: u32,
    uid: u32,
    gid: u32,
    mode: u16,
    spare: u16,
    inode: u64,
    rest: [u64; 27],
}

const _: () = assert!(size_of::<Statx>() == 256 && core::mem::offset_of!(Statx, inode) == 32);

fn statx(directory: usize, path: &CStr, flags: usize) -> Result<Statx, Errno> {
    const BASIC_STATS: usize = 0x7ff;
    let mut found = Statx {
        mask: 0,
        block_bytes: 0,
        attributes: 0,
        links: 0,
        uid: 0,
        gid: 0,
        mode: 0,
        spare: 0,
        inode: 0,
        rest: [0; 27],
    };
    let arguments = [directory, path.as_ptr() as usize, flags, BASIC_STATS, &raw mut found as usize, 0];
    // SAFETY: the kernel reads the path and writes a `struct statx`, which is 256 bytes, as checked above.
    unsafe { syscall(nr::STATX, arguments) }?;
    Ok(found)
}

/// The inode number of the file at `path`; follows links.
pub(crate) fn inode(path: &CStr) -> Result<u64, Errno> {
    Ok(statx(AT_FDCWD, path, 0)?.inode)
}

/// Maps `bytes` of zeroed private memory, which uses no memory until it is touched.
pub(crate) fn map_anonymous(bytes: usize) -> Result<*mut c_void, Errno> {
    let protection = PAGE_PROTECTION_READ | PAGE_PROTECTION_WRITE;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: the kernel chooses a place that is free.
    unsafe { syscall(nr::MMAP, [0, bytes, protection, flags, usize::MAX, 0]) }
        .map(core::ptr::with_exposed_provenance_mut)
}

/// Keeps huge pages out of a private mapping: sparsely used tables would otherwise take two megabytes for each used
/// word.
///
/// # Safety
/// `start` and `bytes` must be a mapping of [`map_anonymous`].
pub(crate) unsafe fn avoid_huge_pages(start: *mut c_void, bytes: usize) {
    // SAFETY: vouched for by the caller. A kernel without huge pages refuses the call, and does not need it.
    let _ = unsafe { syscall(nr::MADVISE, [start as usize, bytes, MADV_NOHUGEPAGE, 0, 0, 0]) };
}

/// Makes a private mapping read as zeros in a forked child.
///
/// # Safety
/// `start` and `bytes` must be a mapping of [`map_anonymous`] whose contents may become zero in a child.
pub(crate) unsafe fn wipe_on_fork(start: *mut c_void, bytes: usize) -> Result<(), Errno> {
    // SAFETY: vouched for by the caller.
    unsafe { syscall(nr::MADVISE, [start as usize, bytes, MADV_WIPEONFORK, 0, 0, 0]) }.map(drop)
}

/// Unmaps a mapping.
///
/// # Safety
/// Nothing may refer to the mapping any more.
pub(crate) unsafe fn unmap(start: *mut c_void, bytes: usize) {
    // SAFETY: vouched for by the caller.
    let _ = unsafe { syscall(nr::MUNMAP, [start as usize, bytes, 0, 0, 0, 0]) };
}

/// Makes pages of an object writable, or read-only.
pub(crate) fn protect(pages: &Range<usize>, writable: bool) -> Result<(), Errno> {
    let protection = PAGE_PROTECTION_READ | if writable { PAGE_PROTECTION_WRITE } else { 0 };
    // SAFETY: the caller passes pages of data, whose contents do not change.
    unsafe { syscall(nr::MPROTECT, [pages.start, pages.len(), protection, 0, 0, 0]) }.map(drop)
}

/// Whether the page of `word` is writable. Found out without a change: the kernel is asked to set no bit of the word.
pub(crate) fn is_writable(word: *const AtomicU32) -> bool {
    const FUTEX_WAKE_OP: usize = 5 | FUTEX_PRIVATE;
    const FUTEX_PRIVATE: usize = 128;
    const OR_NOTHING: usize = 2 << 28;
    let woken = AtomicU32::new(0);
    let arguments = [woken.as_ptr() as usize, FUTEX_WAKE_OP, 0, 0, word as usize, OR_NOTHING];
    // SAFETY: the kernel checks the addresses, and wakes no thread.
    unsafe { syscall(nr::FUTEX, arguments) }.err() != Some(Errno::EFAULT)
}

/// The size of a page in bytes.
pub(crate) fn page_bytes() -> usize {
    const AT_PAGESZ: usize = 6;
    auxiliary(AT_PAGESZ)
}

/// Address of the program's headers.
pub(crate) const AT_PHDR: usize = 3;
/// Number of the program's headers.
pub(crate) const AT_PHNUM: usize = 5;

/// A value that the kernel passes to every program at its start.
pub(crate) fn auxiliary(kind: usize) -> usize {
    // SAFETY: no pointers; errno is touched only for a value that the kernel has not passed.
    unsafe { getauxval(kind) }
}

/// This process's id in its own pid namespace.
pub(crate) fn pid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(nr::GETPID, [0; 6]) }.unwrap_or(0) as u32
}

/// The address of the calling thread's control block, which is unique among live threads.
#[inline]
pub(crate) fn thread_pointer() -> usize {
    let pointer: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI keeps the thread pointer in the first word of the thread's control block.
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem));
    }
    pointer
}

/// Lets another thread run.
pub(crate) fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { syscall(nr::SCHED_YIELD, [0; 6]) };
}

/// Whether a process with this id exists in this process's pid namespace, whichever user it belongs to.
pub(crate) fn process_exists(pid: u32) -> bool {
    // SAFETY: signal 0 is not delivered.
    unsafe { syscall(nr::KILL, [pid as usize, 0, 0, 0, 0, 0]) }.err() != Some(Errno::ESRCH)
}

/// The kernel's `struct timespec`.
#[repr(C)]
pub(crate) struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

impl Timespec {
    pub(crate) fn from_ns(ns: u64) -> Timespec {
        Timespec { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as i64 }
    }

    pub(crate) fn to_ns(&self) -> u64 {
        (self.seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(self.nanoseconds as u64)
    }
}

/// Waits until `word` is not `value`, its waiters are woken, or `timeout_ns` is over. The word may be in a shared
/// mapping that is read-only here.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, timeout_ns: u64) {
    let timeout = Timespec::from_ns(timeout_ns);
    let arguments = [word.as_ptr() as usize, FUTEX_WAIT, value as usize, &raw const timeout as usize, 0, 0];
    // SAFETY: the kernel reads the word and the timeout.
    let _ = unsafe { syscall(nr::FUTEX, arguments) };
}

/// Reads a clock by a system call.
pub(crate) fn read_clock(clock: i32, time: &mut Timespec) {
    let arguments = [clock as usize, core::ptr::from_mut(time) as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes a `struct timespec`.
    let _ = unsafe { syscall(nr::CLOCK_GETTIME, arguments) };
}

/// Whether `words` are backed by memory. Overwrites the first two of them. The kernel writes them: if a file has no
/// memory for their page, the call fails, whereas a write by the process itself would kill it with SIGBUS.
pub(crate) fn can_write(words: &[AtomicU64; MARKER_CELLS]) -> bool {
    // SAFETY: the kernel writes a `struct timespec`, which is two words; they are atomics.
    unsafe { syscall(nr::CLOCK_GETTIME, [CLOCK_MONOTONIC as usize, words.as_ptr() as usize, 0, 0, 0, 0]) }.is_ok()
}

/// Sleeps for `ns` nanoseconds.
pub(crate) fn sleep_ns(ns: u64) {
    let time = Timespec::from_ns(ns);
    // SAFETY: the kernel reads the time; with the null pointer it does not return the rest of an interrupted sleep.
    let _ = unsafe { syscall(nr::CLOCK_NANOSLEEP, [CLOCK_MONOTONIC as usize, 0, &raw const time as usize, 0, 0, 0]) };
}

unsafe extern "C" {
    // From the C library. GLIBC_2.16.
    fn getauxval(kind: usize) -> usize;
}

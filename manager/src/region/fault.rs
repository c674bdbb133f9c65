//! Survives the loss of pages of a shared file: a process that can write a file can also truncate it, and reading a
//! page beyond its end raises SIGBUS.
//!
//! The handler checks whether the address lies in a mapping that is registered here. If so, it maps a page of zeros
//! there, marks the mapping as damaged and returns; the access is repeated and finds zeros. If not, it restores the
//! former action and returns; the access is repeated and ends as it would have without this handler.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{io, mem, ptr};

use once_cell::sync::OnceCell;

/// Maximum registered mappings: two for each slice. A node of 16 GPUs without MIG has at most 1,600 slices.
const MAPPINGS_MAX: usize = 4096;

/// A registered mapping. `start` is 0 while the entry is free, [`RESERVED`] while it is being filled.
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    damaged: AtomicBool,
}

const RESERVED: usize = 1;

static ENTRIES: [Entry; MAPPINGS_MAX] =
    [const { Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), damaged: AtomicBool::new(false) } };
        MAPPINGS_MAX];

/// The action for SIGBUS before ours, once ours has been set.
static FORMER: OnceCell<Former> = OnceCell::new();

struct Former {
    action: libc::sigaction,
    /// Read in advance, because a signal handler may not ask for it. It is 64 KiB on some aarch64 kernels.
    page_bytes: usize,
}

/// The registration of a mapping. It ends with [`Guard::release`].
pub(super) struct Guard {
    entry: &'static Entry,
}

impl Guard {
    /// Registers the `bytes` bytes from `start` on.
    ///
    /// # Errors
    /// Too many mappings are registered, or the handler cannot be set.
    pub(super) fn new(start: usize, bytes: usize) -> io::Result<Guard> {
        FORMER.get_or_try_init(install)?;
        let free =
            |entry: &&Entry| entry.start.compare_exchange(0, RESERVED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let entry = ENTRIES.iter().find(free).ok_or_else(|| io::Error::other("too many regions are mapped"))?;
        entry.damaged.store(false, Ordering::Relaxed);
        entry.end.store(start + bytes, Ordering::Relaxed);
        // Pairs with the load in `on_fault`.
        entry.start.store(start, Ordering::Release);
        Ok(Guard { entry })
    }

    /// Whether a page of the mapping was lost.
    pub(super) fn is_damaged(&self) -> bool {
        self.entry.damaged.load(Ordering::Relaxed)
    }

    /// Ends the registration. The mapping must not be accessed any more.
    pub(super) fn release(&mut self) {
        self.entry.start.store(0, Ordering::Release);
    }
}

fn install() -> io::Result<Former> {
    // SAFETY: all zeros is a valid `sigaction`: no flags, an empty mask, the default action.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_fault as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: as above.
    let mut former: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: both point to valid structures, and the handler keeps to what a signal handler may do.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut former) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Former { action: former, page_bytes: rustix::param::page_size() })
}

/// Handles SIGBUS. It only reads atomics and makes system calls; it allocates nothing and takes no lock.
extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid structure to a handler with SA_SIGINFO, and for SIGBUS it holds an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let entry = ENTRIES.iter().find(|entry| {
        let start = entry.start.load(Ordering::Acquire);
        start > RESERVED && (start..entry.end.load(Ordering::Relaxed)).contains(&address)
    });
    let former = FORMER.get();
    if let (Some(entry), Some(&Former { page_bytes, .. })) = (entry, former) {
        let page = address & !(page_bytes - 1);
        entry.damaged.store(true, Ordering::Relaxed);
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: the page lies in a registered mapping, so it is ours and only reached through atomics. Its content is
        // gone already, so none is lost.
        if unsafe { libc::mmap(page as *mut libc::c_void, page_bytes, protection, flags, -1, 0) } != libc::MAP_FAILED {
            return;
        }
    }
    if let Some(former) = former {
        // SAFETY: the action is the one that the kernel returned.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const former.action, ptr::null_mut()) };
    } else {
        // The signal came within `install`, before the former action was stored: none of our mappings exists yet.
        // SAFETY: ends the process with the signal's default action, which `abort` is for.
        unsafe { libc::abort() };
    }
}

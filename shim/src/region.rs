//! The region of this process's container: found beside the library itself, mapped once.
//!
//! The region is in the directory that this library was loaded from. The host cannot choose another one: the tenant
//! could change an environment variable, and a fixed path would need a mount namespace.
//!
//! A region that is there and cannot be used refuses the device to the process, whatever the reason: otherwise who
//! spoils a file of it would be rid of the limits. A library with nothing of a region beside it leaves calls alone.

use crate::linkmap;
use crate::sys::{self, Access, Errno, File};
use aliquot_abi::cuda::CUresult;
use aliquot_abi::region::{
    ATTACH_SOCKET, AttachMessage, Header, LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, LIMITS_FILE, LIMITS_FILE_BYTES,
    LIMITS_MAGIC, Ledger, Limits,
};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The two files, mapped for as long as the process lives.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) limits: &'static Limits,
    pub(crate) ledger: &'static Ledger,
}

static LIMITS: AtomicPtr<Limits> = AtomicPtr::new(core::ptr::null_mut());
static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// What was found out for good, in children too: not zero once there is no region, or none that can be used.
static VERDICT: AtomicU32 = AtomicU32::new(0);

/// What becomes of the calls of a process that has no region.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Unattached {
    /// They go to the driver as they are: the driver is not initialised, or this is a library without a region.
    Free = 1,
    /// They are refused: there is a region, and it cannot be used.
    Refused,
}

impl Unattached {
    /// Makes a call of such a process, or answers it with `refusal`.
    #[cold]
    #[inline(never)]
    pub(crate) fn answer(self, refusal: CUresult, call: &dyn Fn() -> CUresult) -> CUresult {
        if self == Unattached::Refused { refusal } else { call() }
    }
}

impl Region {
    /// The region, mapped at the first call.
    pub(crate) fn get() -> Result<Region, Unattached> {
        Region::mapped().ok_or(()).or_else(|()| Region::map())
    }

    /// The region, if it is mapped already.
    #[inline]
    fn mapped() -> Option<Region> {
        if VERDICT.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // Pairs with the store in `try_map`: the ledger is stored first.
        let limits = LIMITS.load(Ordering::Acquire);
        // SAFETY: what is stored here is mapped for ever, as the type that it is.
        unsafe { Some(Region { limits: limits.as_ref()?, ledger: LEDGER.load(Ordering::Relaxed).as_ref()? }) }
    }

    /// Maps the region while its files can be found, for a process that may never use it: what is wrong is said when it
    /// does.
    pub(crate) fn map_ahead() {
        if Region::mapped().is_none() && VERDICT.load(Ordering::Relaxed) == 0 {
            let _ = Region::try_map();
        }
    }

    #[cold]
    fn map() -> Result<Region, Unattached> {
        const NONE: &[u8] = b"aliquot: no region beside the library: the GPU is not limited in this process\n";
        const CLOSED: &[u8] = b"aliquot: the region of this slice is gone, damaged or closed to this user: the GPU is \
            refused; make the slice anew, or admit the user (--allow-user)\n";
        match VERDICT.load(Ordering::Relaxed) {
            0 => {}
            verdict if verdict == Unattached::Free as u32 => return Err(Unattached::Free),
            _ => return Err(Unattached::Refused),
        }
        Region::try_map().map_err(|reason| match reason {
            // The next call tries again.
            Unusable::Now => Unattached::Refused,
            Unusable::Missing => give_up(Unattached::Free, NONE),
            Unusable::Closed => give_up(Unattached::Refused, CLOSED),
        })
    }

    fn try_map() -> Result<Region, Unusable> {
        let (limits, ledger) = (open(LIMITS_FILE, Access::ReadOnly), open(LEDGER_FILE, Access::ReadWrite));
        if let (Err(Unusable::Missing), Err(Unusable::Missing)) = (&limits, &ledger) {
            // A region that was deleted took the library's own file with it.
            let library = library().ok_or(Unusable::Closed)?;
            File::open(library, Access::ReadOnly).map_err(|error| Unusable::after(error).of_a_region())?;
            return Err(Unusable::Missing);
        }
        let (limits, ledger) = (limits.map_err(Unusable::of_a_region)?, ledger.map_err(Unusable::of_a_region)?);
        let limits = map_file::<Limits>(&limits, LIMITS_FILE_BYTES, LIMITS_MAGIC, Access::ReadOnly)?;
        let ledger =
            map_file::<Ledger>(&ledger, LEDGER_FILE_BYTES, LEDGER_MAGIC, Access::ReadWrite).inspect_err(|_| {
                // SAFETY: mapped just now, and the reference is not used again.
                unsafe { sys::unmap(core::ptr::from_ref(limits).cast_mut().cast(), LIMITS_FILE_BYTES) };
            })?;
        // Threads that get here together each map; the last one's mappings are used, all are the same files.
        LEDGER.store(core::ptr::from_ref(ledger).cast_mut(), Ordering::Relaxed);
        LIMITS.store(core::ptr::from_ref(limits).cast_mut(), Ordering::Release);
        Ok(Region { limits, ledger })
    }

    /// Sends `message` to the manager, if it is there. Never waits. Whether it was sent. The socket is used for one
    /// message only: hosts close descriptors that they do not know, and a number that is then used again would be
    /// somebody else's file.
    pub(crate) fn send(message: AttachMessage) -> bool {
        let path = Path::beside_this_library(ATTACH_SOCKET);
        File::connect(path.as_c_str()).is_ok_and(|socket| socket.send(&message.to_bytes()).is_ok())
    }
}

/// Decides what becomes of calls from now on, in this process and its children, and says why, once.
pub(crate) fn give_up(verdict: Unattached, reason: &[u8]) -> Unattached {
    if VERDICT.swap(verdict as u32, Ordering::Relaxed) == 0 {
        sys::warn(reason);
    }
    verdict
}

/// What the limits and the ledger have in common.
trait RegionFile {
    fn header(&self) -> &Header;
}

impl RegionFile for Limits {
    fn header(&self) -> &Header {
        &self.header
    }
}

impl RegionFile for Ledger {
    fn header(&self) -> &Header {
        &self.header
    }
}

/// Why a file of the region is not used.
enum Unusable {
    /// Descriptors or memory are short, or a signal came: this call is refused, and the next one tries again. If such
    /// calls passed, a program could keep its descriptors used up and run without limits.
    Now,
    /// It is not there.
    Missing,
    /// It cannot be opened, or is not what it should be.
    Closed,
}

impl Unusable {
    fn after(error: Errno) -> Unusable {
        match error {
            error if error.is_passing() => Unusable::Now,
            Errno::ENOENT => Unusable::Missing,
            _ => Unusable::Closed,
        }
    }

    /// The same where there is a region: none of its files may be missing.
    fn of_a_region(self) -> Unusable {
        if let Unusable::Missing = self { Unusable::Closed } else { self }
    }
}

fn open(name: &str, access: Access) -> Result<File, Unusable> {
    File::open(Path::beside_this_library(name).as_c_str(), access).map_err(Unusable::after)
}

fn map_file<T: RegionFile>(file: &File, bytes: usize, magic: u64, access: Access) -> Result<&'static T, Unusable> {
    let failed = |error| Unusable::after(error).of_a_region();
    // What is shorter could be mapped, and would end the process when it is read.
    if file.size_bytes().map_err(failed)? < bytes as u64 {
        return Err(Unusable::Closed);
    }
    let start = file.map(bytes, access).map_err(failed)?;
    // SAFETY: the mapping is `bytes` long, which is more than the type, and is never unmapped unless refused below; the
    // type is integers and atomics of them, valid whatever the bytes are.
    let mapped = unsafe { &*start.cast::<T>() };
    mapped.header().check(magic, bytes).map_err(|_| {
        // SAFETY: the reference ends here.
        unsafe { sys::unmap(start, bytes) };
        Unusable::Closed
    })?;
    Ok(mapped)
}

/// The file that this library was loaded from, as the loader says.
fn library() -> Option<&'static CStr> {
    /// The loader's own copy of the path, which it keeps as long as the library is loaded.
    static FILE: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
    let mut file = FILE.load(Ordering::Relaxed);
    if file.is_null() {
        // Once only: the loader's lock, which this takes, may be held for ever in a forked child.
        let here = Region::get as *const () as usize;
        file = linkmap::find(|object| object.image.contains(here).then(|| object.path.as_ptr().cast_mut()))?;
        FILE.store(file, Ordering::Relaxed);
    }
    // SAFETY: NUL-terminated, and the library is never unloaded (-z nodelete).
    Some(unsafe { CStr::from_ptr(file) })
}

/// A path built without a heap. Longer ones than a Unix socket's can be are found, so that the files at least are.
struct Path([u8; 512]);

impl Path {
    /// The file `name` in the directory of this library; empty if that is too long, or the loader does not say.
    #[inline(never)]
    fn beside_this_library(name: &str) -> Path {
        let library = library().unwrap_or(c"").to_bytes();
        let directory_bytes = library.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let mut path = Path([0; _]);
        let mut room = path.0.iter_mut();
        for from in [library.get(..directory_bytes).unwrap_or_default(), name.as_bytes()] {
            // In this order: the shorter one is asked first, so that no byte of the room is skipped at its end.
            for (&from, to) in from.iter().zip(room.by_ref()) {
                *to = from;
            }
        }
        // One byte stays for the NUL.
        if room.next().is_none() {
            path.0[0] = 0;
        }
        path
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

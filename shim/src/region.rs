//! The region of this process's container: found beside the library itself, mapped once.
//!
//! The region is in the directory from which this library was loaded, so the program cannot choose another one. A
//! tenant could change an environment variable, and a fixed path would need a mount namespace.
//!
//! If there is a region and it cannot be used, the process is refused the device, whatever the reason: otherwise a
//! tenant could get rid of the limits by damaging one of its files. If there is no region beside the library, calls
//! pass unchanged.

use crate::call::Call;
use crate::linkmap;
use crate::sys::{self, Access, Errno, File};
use aliquot_abi::cuda::CUresult;
use aliquot_abi::region::{
    ATTACH_SOCKET, AttachMessage, Header, LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, LIMITS_FILE, LIMITS_FILE_BYTES,
    LIMITS_MAGIC, Ledger, Limits,
};
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The two files, mapped as long as the process lives.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) limits: &'static Limits,
    pub(crate) ledger: &'static Ledger,
}

static LIMITS: AtomicPtr<Limits> = AtomicPtr::new(core::ptr::null_mut());
static LEDGER: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// Not zero once it is final, also for children, that there is no region or that it cannot be used.
static VERDICT: AtomicU32 = AtomicU32::new(0);

/// How the calls of a process without a region are answered.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Unattached {
    /// The calls go to the driver unchanged: the driver is not initialised, or the library has no region beside it.
    Free = 1,
    /// The calls are refused: there is a region, but it cannot be used.
    Refused,
}

impl Unattached {
    /// Makes the call, or answers it with `refusal`.
    #[cold]
    #[inline(never)]
    pub(crate) fn answer(self, refusal: CUresult, call: &dyn Call<CUresult>) -> CUresult {
        if self == Unattached::Refused { refusal } else { call.make() }
    }
}

impl Region {
    /// The region, mapped at the first call.
    pub(crate) fn get() -> Result<Region, Unattached> {
        Region::mapped().ok_or(()).or_else(|()| Region::map())
    }

    /// The region, if it has been mapped.
    #[inline]
    fn mapped() -> Option<Region> {
        if VERDICT.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // Pairs with the store in `try_map`: the ledger is stored first.
        let limits = LIMITS.load(Ordering::Acquire);
        // SAFETY: the files that are stored here stay mapped for ever, with these types.
        unsafe { Some(Region { limits: limits.as_ref()?, ledger: LEDGER.load(Ordering::Relaxed).as_ref()? }) }
    }

    /// Maps the region while its files can be found, for a process that may never use it. Errors are reported only if
    /// the process uses it.
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
            // If a region was deleted, the library's own file was deleted with it.
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
        // Each thread that races here maps the files. The last mappings are used; all are of the same files.
        LEDGER.store(core::ptr::from_ref(ledger).cast_mut(), Ordering::Relaxed);
        LIMITS.store(core::ptr::from_ref(limits).cast_mut(), Ordering::Release);
        Ok(Region { limits, ledger })
    }

    /// Sends `message` to the manager, if it is there. Never waits. Returns whether it was sent. Each message uses a
    /// new socket: programs close descriptors that they do not know, and the number may then belong to another file of
    /// the program.
    pub(crate) fn send(message: AttachMessage) -> bool {
        let path = Path::beside_this_library(ATTACH_SOCKET);
        File::connect(path.as_c_str()).is_ok_and(|socket| socket.send(&message.to_bytes()).is_ok())
    }
}

/// Decides how calls are answered from now on, in this process and its children, and reports the reason once.
pub(crate) fn give_up(verdict: Unattached, reason: &[u8]) -> Unattached {
    if VERDICT.swap(verdict as u32, Ordering::Relaxed) == 0 {
        sys::warn(reason);
    }
    verdict
}

/// The two files of a region.
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

/// Why a file of the region cannot be used.
enum Unusable {
    /// Descriptors or memory are short, or a signal came: this call is refused, and the next one tries again. If such
    /// calls passed, a program could run without limits by using up its descriptors.
    Now,
    /// It does not exist.
    Missing,
    /// It cannot be opened, or has the wrong contents.
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

    /// The same reason for a file of a region that exists: none of its files may be missing.
    fn of_a_region(self) -> Unusable {
        if let Unusable::Missing = self { Unusable::Closed } else { self }
    }
}

fn open(name: &str, access: Access) -> Result<File, Unusable> {
    File::open(Path::beside_this_library(name).as_c_str(), access).map_err(Unusable::after)
}

fn map_file<T: RegionFile>(file: &File, bytes: usize, magic: u64, access: Access) -> Result<&'static T, Unusable> {
    let failed = |error| Unusable::after(error).of_a_region();
    // A shorter file could be mapped, but reading beyond its end would kill the process.
    if file.size_bytes().map_err(failed)? < bytes as u64 {
        return Err(Unusable::Closed);
    }
    let start = file.map(bytes, access).map_err(failed)?;
    // SAFETY: the mapping has `bytes` bytes, which is at least the size of the type, and is never unmapped unless
    // refused below. The type consists of integers and atomics of them, which are valid for all bytes.
    let mapped = unsafe { &*start.cast::<T>() };
    mapped.header().check(magic, bytes).map_err(|_| {
        // SAFETY: the reference is not used after this.
        unsafe { sys::unmap(start, bytes) };
        Unusable::Closed
    })?;
    Ok(mapped)
}

/// The file from which this library was loaded, as the loader reports it.
fn library() -> Option<&'static CStr> {
    /// The loader's own copy of the path, which lives as long as the library is loaded.
    static FILE: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
    let mut file = FILE.load(Ordering::Relaxed);
    if file.is_null() {
        // Only once, because it takes the loader's lock, which may be held for ever in a forked child.
        let here = Region::get as *const () as usize;
        file = linkmap::find(|object| object.image.contains(here).then(|| object.path.as_ptr().cast_mut()))?;
        FILE.store(file, Ordering::Relaxed);
    }
    // SAFETY: NUL-terminated, and the library is never unloaded (-z nodelete).
    Some(unsafe { CStr::from_ptr(file) })
}

/// A path that is built without a heap. It may be longer than a Unix socket's path can be: then at least the files are
/// found.
struct Path([u8; 512]);

impl Path {
    /// The file `name` in the directory of this library; empty if the path is too long or the loader does not tell it.
    #[inline(never)]
    fn beside_this_library(name: &str) -> Path {
        let library = library().unwrap_or(c"").to_bytes();
        let directory_bytes = library.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let mut path = Path([0; _]);
        let mut room = path.0.iter_mut();
        for from in [library.get(..directory_bytes).unwrap_or_default(), name.as_bytes()] {
            // The order matters: `zip` asks the first iterator first, so no byte of `room` is lost when `from` ends.
            for (&from, to) in from.iter().zip(room.by_ref()) {
                *to = from;
            }
        }
        // One byte must remain for the NUL.
        if room.next().is_none() {
            path.0[0] = 0;
        }
        path
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

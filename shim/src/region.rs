//! The region of this process's container: found beside the library itself, mapped once.
//!
//! Where the region is cannot be set by the host: it is the directory that this library was loaded from.

use crate::linkmap;
use crate::sys::{self, Access, Errno, File};
use aliquot_abi::region::{
    ATTACH_SOCKET, AttachMessage, Header, HeaderError, LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, LIMITS_FILE,
    LIMITS_FILE_BYTES, LIMITS_MAGIC, Ledger, Limits,
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
/// Not zero once the region was found unusable: the shim is passive for good, in children too.
static UNUSABLE: AtomicU32 = AtomicU32::new(0);

impl Region {
    /// The region, mapped at the first call; `None` if there is none that can be used.
    pub(crate) fn get() -> Option<Region> {
        Region::mapped().or_else(Region::map)
    }

    /// The region, if it is mapped already.
    #[inline]
    fn mapped() -> Option<Region> {
        if UNUSABLE.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // Pairs with the store in `map`: the ledger is stored first.
        let limits = LIMITS.load(Ordering::Acquire);
        // SAFETY: what is stored here is mapped for ever, as the type that it is.
        unsafe { Some(Region { limits: limits.as_ref()?, ledger: LEDGER.load(Ordering::Relaxed).as_ref()? }) }
    }

    /// Maps the region while its files can be found, for a process that may never use it: what is wrong is said when it
    /// does.
    pub(crate) fn map_ahead() {
        if Region::mapped().is_none() {
            let _ = Region::try_map();
        }
    }

    #[cold]
    fn map() -> Option<Region> {
        match Region::try_map() {
            Ok(region) => region,
            Err(Unusable::Now) => None,
            Err(Unusable::ForGood(reason)) => {
                give_up(reason);
                None
            }
        }
    }

    fn try_map() -> Result<Option<Region>, Unusable> {
        if UNUSABLE.load(Ordering::Relaxed) != 0 {
            return Ok(None);
        }
        let ledger = map_file::<Ledger>(LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, Access::ReadWrite)?;
        let limits = map_file::<Limits>(LIMITS_FILE, LIMITS_FILE_BYTES, LIMITS_MAGIC, Access::ReadOnly)?;
        // Threads that get here together each map; the last one's mappings are used, all are the same files.
        LEDGER.store(core::ptr::from_ref(ledger).cast_mut(), Ordering::Relaxed);
        LIMITS.store(core::ptr::from_ref(limits).cast_mut(), Ordering::Release);
        Ok(Region::mapped())
    }

    /// Sends `message` to the manager, if it is there. Never waits. Whether it was sent.
    pub(crate) fn send(message: AttachMessage) -> bool {
        let mut path = Path::beside_this_library();
        path.push(ATTACH_SOCKET)
            && File::connect(path.as_c_str()).is_ok_and(|socket| socket.send(&message.to_bytes()).is_ok())
    }
}

/// Leaves the shim passive for good, in this process and its children, and says why, once.
pub(crate) fn give_up(reason: &[u8]) {
    if UNUSABLE.swap(1, Ordering::Relaxed) == 0 {
        sys::warn(reason);
    }
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

/// Why there is no region.
enum Unusable {
    /// For want of descriptors or memory, or because a signal came: the next call tries again.
    Now,
    /// As the text says.
    ForGood(&'static [u8]),
}

impl Unusable {
    fn after(error: Errno, reason: &'static [u8]) -> Unusable {
        if error.is_passing() { Unusable::Now } else { Unusable::ForGood(reason) }
    }
}

fn map_file<T: RegionFile>(name: &str, bytes: usize, magic: u64, access: Access) -> Result<&'static T, Unusable> {
    const MISSING: &[u8] = b"aliquot: no region beside the library: the GPU is not limited in this process\n";
    const SHORT: &[u8] =
        b"aliquot: the region's file is shorter than it should be: the GPU is not limited in this process\n";
    const UNMAPPABLE: &[u8] = b"aliquot: the region cannot be mapped: the GPU is not limited in this process\n";
    const NOT_READY: &[u8] = b"aliquot: the region is not ready: the GPU is not limited in this process\n";
    const DAMAGED: &[u8] = b"aliquot: the region's file is damaged: the GPU is not limited in this process\n";
    const OTHER_VERSION: &[u8] =
        b"aliquot: the region is of another version than the library: the GPU is not limited in this process\n";

    let mut path = Path::beside_this_library();
    if !path.push(name) {
        return Err(Unusable::ForGood(MISSING));
    }
    let file = File::open(path.as_c_str(), access).map_err(|error| Unusable::after(error, MISSING))?;
    if file.size_bytes().map_err(|error| Unusable::after(error, SHORT))? < bytes as u64 {
        return Err(Unusable::ForGood(SHORT));
    }
    let start = file.map(bytes, access).map_err(|error| Unusable::after(error, UNMAPPABLE))?;
    // SAFETY: the mapping is `bytes` long, which is more than the type, and is never unmapped unless refused below; the
    // type is integers and atomics of them, valid whatever the bytes are.
    let mapped = unsafe { &*start.cast::<T>() };
    mapped.header().check(magic, bytes).map_err(|reason| {
        // SAFETY: the reference ends here.
        unsafe { sys::unmap(start, bytes) };
        Unusable::ForGood(match reason {
            HeaderError::NotReady => NOT_READY,
            HeaderError::WrongMagic { .. } | HeaderError::WrongSize { .. } => DAMAGED,
            HeaderError::WrongMajor { .. } => OTHER_VERSION,
        })
    })?;
    Ok(mapped)
}

/// A path built without a heap.
struct Path {
    bytes: [u8; Path::BYTES_MAX],
    length: usize,
}

impl Path {
    /// Longer paths than a Unix socket's can be, so that the files at least are found.
    const BYTES_MAX: usize = 512;

    /// The directory of this library, with a closing slash; empty if the loader does not say.
    fn beside_this_library() -> Path {
        /// The loader's own copy of the path, which it keeps as long as the library is loaded.
        static FILE: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());
        let mut file = FILE.load(Ordering::Relaxed);
        if file.is_null() {
            // Once only: the loader's lock, which this takes, may be held for ever in a forked child.
            let here = Region::get as *const () as usize;
            let path = linkmap::find(|object| object.image.contains(here).then(|| object.path.as_ptr().cast_mut()));
            file = path.unwrap_or(core::ptr::null_mut());
            FILE.store(file, Ordering::Relaxed);
        }
        if file.is_null() {
            return Path { bytes: [0; Path::BYTES_MAX], length: 0 };
        }
        // SAFETY: NUL-terminated, and the library is never unloaded (-z nodelete).
        Path::directory_of(unsafe { CStr::from_ptr(file) })
    }

    fn directory_of(file: &CStr) -> Path {
        let mut path = Path { bytes: [0; Path::BYTES_MAX], length: 0 };
        for (number, (to, &from)) in path.bytes.iter_mut().zip(file.to_bytes()).enumerate() {
            *to = from;
            if from == b'/' {
                path.length = number + 1;
            }
        }
        path
    }

    /// Appends `name`. `false` if that is too long.
    fn push(&mut self, name: &str) -> bool {
        let Some(room) = self.bytes.get_mut(self.length..) else { return false };
        // One byte stays for the NUL.
        if self.length == 0 || name.len() >= room.len() {
            return false;
        }
        let mut room = room.iter_mut();
        // In this order: the shorter one is asked first, so that no byte of the room is skipped at its end.
        for (&from, to) in name.as_bytes().iter().zip(room.by_ref()) {
            *to = from;
        }
        room.for_each(|to| *to = 0);
        self.length += name.len();
        true
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

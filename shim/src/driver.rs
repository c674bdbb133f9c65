//! The real libraries, the driver and NVML, as the loader has mapped them, and their functions.

use crate::elf::Image;
use crate::linkmap;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// A library whose functions are hooked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    /// The CUDA driver.
    Cuda,
    /// The management library.
    Nvml,
}

impl Library {
    fn soname(self) -> &'static CStr {
        match self {
            Library::Cuda => c"libcuda.so.1",
            Library::Nvml => c"libnvidia-ml.so.1",
        }
    }

    fn known(self) -> &'static Known {
        static CUDA: Known = Known::new();
        static NVML: Known = Known::new();
        match self {
            Library::Cuda => &CUDA,
            Library::Nvml => &NVML,
        }
    }

    /// Whether `image` is this library.
    pub(crate) fn is(self, image: &Image) -> bool {
        image.has_soname(self.soname())
    }

    /// Whether `image` is linked to this library.
    pub(crate) fn is_needed_by(self, image: &Image) -> bool {
        image.needs(self.soname())
    }

    /// Notices which of the libraries have been unloaded since they were found. Must be called before anything else is
    /// loaded: objects that are linked to the next copy of the library are bound to the hooks, and do no look-up that
    /// would notice it.
    pub(crate) fn notice_all_unloadings() {
        Library::Cuda.notice_unloading();
        Library::Nvml.notice_unloading();
    }

    /// Notices if the library has been unloaded since it was found. Then the addresses of its functions are forgotten,
    /// and looked up again in the copy that is loaded next.
    ///
    /// Takes the lock that the loader holds while it loads, so it must not be called from a visitor of
    /// [`linkmap::find`].
    pub(crate) fn notice_unloading(self) {
        let Some(known) = self.known().get() else { return };
        if !linkmap::is_loaded(known) {
            self.known().clear();
            Slot::forget_all_of(self);
        }
    }

    /// The library as it is mapped; `None` while the process has not loaded it.
    pub(crate) fn image(self) -> Option<Image> {
        let known = self.known();
        if let Some(image) = known.get() {
            return Some(image);
        }
        let image = linkmap::find(|object| self.is(&object.image).then_some(object.image))?;
        known.set(image);
        Some(image)
    }

    /// Whether `image`, a copy of this library, is the copy that the hooks stand for: the first one that was found.
    pub(crate) fn is_or_becomes(self, image: Image) -> bool {
        if let Some(known) = self.image() {
            return known == image;
        }
        self.known().set(image);
        true
    }
}

/// Where a library is mapped, once it is known.
struct Known {
    base: AtomicUsize,
    header_count: AtomicU32,
    headers: AtomicPtr<c_void>,
}

impl Known {
    const fn new() -> Known {
        Known {
            base: AtomicUsize::new(0),
            header_count: AtomicU32::new(0),
            headers: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    fn get(&self) -> Option<Image> {
        let headers = self.headers.load(Ordering::Acquire);
        if headers.is_null() {
            return None;
        }
        let (base, count) = (self.base.load(Ordering::Relaxed), self.header_count.load(Ordering::Relaxed));
        // SAFETY: `set` stored what the loader reported.
        Some(unsafe { Image::new(base, headers, count as u16) })
    }

    fn set(&self, image: Image) {
        let (base, headers, count) = image.parts();
        self.base.store(base, Ordering::Relaxed);
        self.header_count.store(u32::from(count), Ordering::Relaxed);
        // Pairs with the load in `get`. Threads that race here store the same values.
        self.headers.store(headers.cast_mut(), Ordering::Release);
    }

    fn clear(&self) {
        self.headers.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// A real function's address, looked up at its first use.
pub(crate) struct Slot {
    library: Library,
    symbol: Symbol,
    address: AtomicPtr<c_void>,
    /// Another address at which the library hands out the same function, if one has been seen.
    alias: AtomicPtr<c_void>,
    /// The next slot in the list of slots that were looked up; null: this slot was not looked up.
    next: AtomicPtr<Slot>,
}

/// The address of a text that ends with a NUL. A reference to the text would also have its length, for each of the
/// hundreds of slots.
struct Symbol(*const c_char);

// SAFETY: it points to a constant text, which may be shared.
unsafe impl Sync for Symbol {}

/// The first slot in the list of slots that were looked up.
static LOOKED_UP: AtomicPtr<Slot> = AtomicPtr::new(LAST);
/// The end of the list.
const LAST: *mut Slot = core::ptr::without_provenance_mut(1);

/// The value of a slot whose function the library lacks.
const ABSENT: *mut c_void = core::ptr::without_provenance_mut(1);

impl Slot {
    pub(crate) const fn new(library: Library, symbol_with_nul: &'static str) -> Slot {
        let symbol = match CStr::from_bytes_with_nul(symbol_with_nul.as_bytes()) {
            Ok(symbol) => Symbol(symbol.as_ptr()),
            Err(_) => panic!("a symbol ends with its only NUL"),
        };
        let null = core::ptr::null_mut();
        let next = AtomicPtr::new(core::ptr::null_mut());
        Slot { library, symbol, address: AtomicPtr::new(null), alias: AtomicPtr::new(null), next }
    }

    pub(crate) fn symbol(&self) -> &'static CStr {
        // SAFETY: `new` has made it of a constant text that ends with a NUL.
        unsafe { CStr::from_ptr(self.symbol.0) }
    }

    pub(crate) fn library(&self) -> Library {
        self.library
    }

    /// The real function; null if the library is not loaded or lacks it.
    #[inline]
    pub(crate) fn get(&'static self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.addr() > ABSENT.addr() { address } else { self.resolve(address) }
    }

    /// Whether `address`, which is not null, is an address of the real function.
    pub(crate) fn is_at(&'static self, address: *mut c_void) -> bool {
        self.get() == address || self.alias.load(Ordering::Relaxed) == address
    }

    /// Remembers that the library also hands the function out at `address`.
    pub(crate) fn note_alias(&self, address: *mut c_void) {
        self.alias.store(address, Ordering::Relaxed);
    }

    /// Forgets the addresses of a library's functions.
    fn forget_all_of(library: Library) {
        let mut slot = LOOKED_UP.load(Ordering::Acquire);
        while slot != LAST {
            // SAFETY: the list holds slots that live for ever, and ends with `LAST`.
            let Some(looked_up) = (unsafe { slot.as_ref() }) else { break };
            if looked_up.library == library {
                looked_up.address.store(core::ptr::null_mut(), Ordering::Relaxed);
                looked_up.alias.store(core::ptr::null_mut(), Ordering::Relaxed);
            }
            slot = looked_up.next.load(Ordering::Acquire);
        }
    }

    /// Adds the slot to the list of slots that were looked up, unless it is there already.
    fn enlist(&'static self) {
        let unlisted = core::ptr::null_mut();
        if self.next.compare_exchange(unlisted, LAST, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let this = core::ptr::from_ref(self).cast_mut();
        let mut first = LOOKED_UP.load(Ordering::Acquire);
        loop {
            self.next.store(first, Ordering::Release);
            match LOOKED_UP.compare_exchange(first, this, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }

    #[cold]
    fn resolve(&'static self, known: *mut c_void) -> *mut c_void {
        if known == ABSENT {
            return core::ptr::null_mut();
        }
        let Some(image) = self.library.image() else { return core::ptr::null_mut() };
        let address = image.function(self.symbol());
        // Before the address is stored, so that `forget_all_of` cannot miss it.
        self.enlist();
        self.address.store(if address.is_null() { ABSENT } else { address }, Ordering::Relaxed);
        address
    }
}

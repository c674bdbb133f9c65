//! The objects that the loader has mapped into this process.

use crate::elf::Image;
use core::ffi::{CStr, c_char, c_int, c_void};

/// What the loader says of one object; the beginning of glibc's and musl's `struct dl_phdr_info`.
#[repr(C)]
struct PhdrInfo {
    base: usize,
    name: *const c_char,
    headers: *const c_void,
    header_count: u16,
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*const PhdrInfo, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// An object of the process.
pub(crate) struct Object<'a> {
    /// Path by which it was loaded; empty for the program itself.
    pub(crate) path: &'a CStr,
    /// Its contents.
    pub(crate) image: Image,
}

/// Calls `visit` for each object in load order until it returns a value.
pub(crate) fn find<T>(visit: impl FnMut(&Object<'_>) -> Option<T>) -> Option<T> {
    struct Search<F, T> {
        visit: F,
        found: Option<T>,
    }

    unsafe extern "C" fn step<F: FnMut(&Object<'_>) -> Option<T>, T>(
        info: *const PhdrInfo,
        _: usize,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader passes a valid description, and `data` is the search below, which nothing else touches.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search<F, T>>()) };
        let path = if info.name.is_null() {
            c""
        } else {
            // SAFETY: the loader's names are NUL-terminated.
            unsafe { CStr::from_ptr(info.name) }
        };
        // SAFETY: the loader keeps the object mapped at least until this call returns; the shim keeps no image of an
        // object that can be unloaded except the driver's and NVML's: see `Library::notice_unloading`.
        let image = unsafe { Image::new(info.base, info.headers, info.header_count) };
        search.found = (search.visit)(&Object { path, image });
        c_int::from(search.found.is_some())
    }

    fn run<F: FnMut(&Object<'_>) -> Option<T>, T>(visit: F) -> Option<T> {
        let mut search = Search { visit, found: None };
        // SAFETY: `step` gets the search back as the type it is.
        unsafe { dl_iterate_phdr(step::<F, T>, (&raw mut search).cast()) };
        search.found
    }

    run(visit)
}

/// The object that holds `address`.
pub(crate) fn containing(address: usize) -> Option<Image> {
    find(|object| object.image.contains(address).then_some(object.image))
}

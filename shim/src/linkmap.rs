//! The objects that the loader has mapped into this process.

use crate::elf::Image;
use crate::lookup;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The loader's description of one object; the beginning of glibc's and musl's `struct dl_phdr_info`.
#[repr(C)]
struct PhdrInfo {
    base: usize,
    name: *const c_char,
    headers: *const c_void,
    header_count: u16,
    loads: u64,
}

/// The result of `dladdr`: glibc's `Dl_info`.
#[repr(C)]
struct Dlinfo {
    path: *const c_char,
    file_start: *const c_void,
    symbol: *const c_char,
    symbol_address: *const c_void,
}

type Dladdr = unsafe extern "C" fn(*const c_void, *mut Dlinfo) -> c_int;

type Visit = unsafe extern "C" fn(*const PhdrInfo, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Visit, *mut c_void) -> c_int;

unsafe extern "C" {
    fn dl_iterate_phdr(visit: Visit, data: *mut c_void) -> c_int;
}

/// The beginning of the loader's `struct r_debug`, which exists for debuggers.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const Link,
}

/// The beginning of the loader's `struct link_map`.
#[repr(C)]
struct Link {
    base: usize,
    path: *const c_char,
    dynamic: *const c_void,
    next: *const Link,
}

/// An object that is loaded into the process.
pub(crate) struct Object<'a> {
    /// The path by which it was loaded; empty for the program itself.
    pub(crate) path: &'a CStr,
    /// Its contents, as they are mapped.
    pub(crate) image: Image,
    /// How many objects the process had ever loaded.
    loads: u64,
}

/// Calls `visit` for each object in load order, until `visit` returns a value.
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
        // SAFETY: the loader passes a valid description, and `data` is the search below, which no other code uses now.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search<F, T>>()) };
        let path = if info.name.is_null() {
            c""
        } else {
            // SAFETY: the loader's names are NUL-terminated.
            unsafe { CStr::from_ptr(info.name) }
        };
        // SAFETY: the loader keeps the object mapped at least until this call returns. Of objects that can be unloaded
        // the shim keeps only the images of the driver and NVML: see `Library::notice_unloading`.
        let image = unsafe { Image::new(info.base, info.headers, info.header_count) };
        search.found = (search.visit)(&Object { path, image, loads: info.loads });
        c_int::from(search.found.is_some())
    }

    fn run<F: FnMut(&Object<'_>) -> Option<T>, T>(visit: F) -> Option<T> {
        let mut search = Search { visit, found: None };
        // SAFETY: `step` casts the search back to its own type.
        unsafe { iterate()(step::<F, T>, (&raw mut search).cast()) };
        search.found
    }

    run(visit)
}

/// The C library's own `dl_iterate_phdr`. The function that the shim is linked to may be another library's: thread
/// sanitizers interpose it, and look functions up before their version works.
fn iterate() -> Iterate {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut real = REAL.load(Ordering::Relaxed);
    if real.is_null() {
        let found = c_library().map_or(core::ptr::null_mut(), |image| image.function(c"dl_iterate_phdr"));
        real = if found.is_null() { (dl_iterate_phdr as *const ()).cast_mut().cast() } else { found };
        REAL.store(real, Ordering::Relaxed);
    }
    // SAFETY: the address is that of a function of this name and type.
    unsafe { core::mem::transmute::<*mut c_void, Iterate>(real) }
}

/// The C library, found without a call of any of its functions, in the list that the loader keeps for debuggers. The
/// part of the list up to the C library holds objects that were there at the start, so it never changes.
fn c_library() -> Option<Image> {
    let debug = Image::of_program()?.debug()?.cast::<Debug>();
    // SAFETY: the loader stored the address of its structure before any code of the program ran.
    let mut next = unsafe { debug.as_ref() }?.first;
    // SAFETY: the list ends with a null pointer.
    while let Some(link) = unsafe { next.as_ref() } {
        // SAFETY: the loader's names are NUL-terminated.
        let path = if link.path.is_null() { c"" } else { unsafe { CStr::from_ptr(link.path) } };
        if path.to_bytes().ends_with(b"/libc.so.6") {
            // SAFETY: `base` is the start of the file, because libraries are linked to address 0; the C library is
            // never unloaded.
            return unsafe { Image::from_file_start(core::ptr::with_exposed_provenance(link.base)) };
        }
        next = link.next;
    }
    None
}

/// How many objects the process has ever loaded: the list has changed only if this number has.
pub(crate) fn loads() -> u64 {
    find(|object| Some(object.loads)).unwrap_or(0)
}

/// The object that holds `address`, in the namespace of the shim, which is that of the program.
pub(crate) fn containing(address: usize) -> Option<Image> {
    find(|object| object.image.contains(address).then_some(object.image))
}

/// The object that holds `address`, in any namespace.
///
/// Takes the lock that the loader holds while it loads, as `dlsym` does, so it must not be called from a visitor of
/// [`find`].
pub(crate) fn containing_in_any_namespace(address: usize) -> Option<Image> {
    containing(address).or_else(|| containing_elsewhere(address))
}

/// Whether the object that holds `address`, or one of its dependencies, `is_wanted`. Dependencies are followed for a
/// few levels.
pub(crate) fn brings_along(address: usize, is_wanted: impl Fn(&Image) -> bool) -> bool {
    const STEPS_MAX: usize = 6;
    let search = || {
        let (mut seen, mut latest) = (Places::NONE, Places::NONE);
        find_with_place(|place, image| {
            if image.contains(address) {
                latest.insert(place);
            }
            None::<()>
        });
        for _ in 0..STEPS_MAX {
            let mut next = Places::NONE;
            let found = find_with_place(|place, image| {
                if !latest.contains(place) {
                    return None;
                }
                if is_wanted(image) {
                    return Some(());
                }
                find_with_place(|place, other| {
                    let is_new = !seen.contains(place) && other.soname().is_some_and(|soname| image.needs(soname));
                    if is_new {
                        seen.insert(place);
                        next.insert(place);
                    }
                    None::<()>
                })
            });
            if found.is_some() {
                return true;
            }
            latest = next;
        }
        false
    };
    // The loader keeps every object in its place while it shows the first one to the visitor.
    find(|_| Some(search())).unwrap_or(false)
}

fn find_with_place<T>(mut visit: impl FnMut(usize, &Image) -> Option<T>) -> Option<T> {
    let mut next = 0_usize;
    find(|object| {
        let place = next;
        next = next.wrapping_add(1);
        visit(place, &object.image)
    })
}

/// A set of objects, by their places in load order. It holds only places below 1024.
struct Places([u64; 16]);

impl Places {
    const NONE: Places = Places([0; 16]);

    fn contains(&self, place: usize) -> bool {
        self.0.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    fn insert(&mut self, place: usize) {
        if let Some(word) = self.0.get_mut(place / 64) {
            *word |= 1 << (place % 64);
        }
    }
}

/// Whether `image` is still loaded.
pub(crate) fn is_loaded(image: Image) -> bool {
    let (_, headers, _) = image.parts();
    find(|object| (object.image == image).then_some(())).is_some()
        || containing_elsewhere(headers.addr()) == Some(image)
}

/// Does the same as [`containing`] for other namespaces: the loader's list covers only the shim's own, but `dladdr`
/// covers all.
fn containing_elsewhere(address: usize) -> Option<Image> {
    static DLADDR: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // Before glibc 2.34 it is in libdl, and the shim is not linked to that.
    let dladdr = lookup::next_definition(&DLADDR, c"dladdr", containing_elsewhere as *const ());
    if dladdr.is_null() {
        return None;
    }
    // SAFETY: the address is that of the C library's function.
    let dladdr = unsafe { core::mem::transmute::<*mut c_void, Dladdr>(dladdr) };
    let null = core::ptr::null();
    let mut info =
        Dlinfo { path: null, file_start: core::ptr::null(), symbol: null, symbol_address: core::ptr::null() };
    // SAFETY: any address may be asked for, and `info` is what the function writes.
    let is_found = unsafe { dladdr(core::ptr::with_exposed_provenance(address), &raw mut info) } != 0;
    // SAFETY: the loader says that it has mapped an object there. As for `find`, only the images of the driver and NVML
    // are kept.
    if is_found { unsafe { Image::from_file_start(info.file_start) } } else { None }
}

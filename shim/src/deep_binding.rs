//! Opening of libraries. Before a library is opened, the shim checks whether its knowledge of the driver still holds.
//! Libraries that are opened with `RTLD_DEEPBIND` are bound to the hooks.
//!
//! Such a library, with all libraries that it brings along, looks for functions among the libraries that it needs
//! before it comes to the preloaded ones. So it is bound to the driver itself, and to the C library's own `dlsym`. Once
//! it is open, the shim goes through the references of all objects that were loaded since the last time. References
//! that bypass a hook are bound to the hook, as the loader would have done without the flag. This happens before the
//! program gets the library. There is one exception: if the name leads to different files for different callers, the C
//! library must be entered by a jump and does not return here. Then the references are bound at the next call of the
//! shim, such as the `dlsym` by which the program finds its plugin's functions. The flag itself stays set, which
//! preserves the program's own binding order: only references to the driver or to the C library's look-up functions
//! change.
//!
//! A reference is left alone if the object defines the function itself, or if the reference is bound to another
//! library's function. A reference that is not bound yet is left alone if the loader would find the function in another
//! library first: in an object in front of the shim, or in one that the referring object needs.
//!
//! Not covered:
//!
//! * calls that a library makes in its constructors, before it is open;
//! * references that are not bound yet, in a program that interposes the same function itself, or from a linker whose
//!   binding code is not known (mold);
//! * references in RELRO pages that always stay writable, or that may not be made writable.

use crate::driver::Library;
use crate::elf::{Image, Reference};
use crate::linkmap;
use crate::lookup::Wanted;
use crate::own_variables;
use crate::sys;
use crate::trampoline::{PASS, StandIn, trampoline};
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

pub(crate) static DLOPEN: StandIn = StandIn::new(c"dlopen", dlopen);
pub(crate) static DLMOPEN: StandIn = StandIn::new(c"dlmopen", dlmopen);

trampoline!(dlopen, dlopen_answer, DLOPEN);
trampoline!(dlmopen, dlmopen_answer, DLMOPEN);

const RTLD_DEEPBIND: c_int = 8;

/// Not zero once a library was opened with `RTLD_DEEPBIND`.
static IS_USED: AtomicU32 = AtomicU32::new(0);
/// The number of objects that had ever been loaded when all of them were last found to be bound correctly.
static LOADS_SEEN: AtomicU64 = AtomicU64::new(0);
/// How often since then an object was found that was still loading.
static RETRIES: AtomicU32 = AtomicU32::new(0);
/// More retries than happen during a load while other threads look functions up. A reference that is still not bound
/// then never will be.
const RETRIES_MAX: u32 = 1000;

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Dlmopen = unsafe extern "C" fn(c_long, *const c_char, c_int) -> *mut c_void;

unsafe extern "C" fn dlopen_answer(path: *const c_char, flags: c_int) -> *mut c_void {
    let real = DLOPEN.real();
    open(real, path, flags, || {
        // SAFETY: the address is that of the C library's function, and not null; the host's arguments.
        unsafe { core::mem::transmute::<*mut c_void, Dlopen>(real)(path, flags) }
    })
}

unsafe extern "C" fn dlmopen_answer(namespace: c_long, path: *const c_char, flags: c_int) -> *mut c_void {
    let real = DLMOPEN.real();
    open(real, path, flags, || {
        // SAFETY: the address is that of the C library's function, and not null; the host's arguments.
        unsafe { core::mem::transmute::<*mut c_void, Dlmopen>(real)(namespace, path, flags) }
    })
}

/// The answer of the function at `real`, which `call` calls, or [`PASS`].
fn open(real: *mut c_void, path: *const c_char, flags: c_int, call: impl FnOnce() -> *mut c_void) -> *mut c_void {
    Library::notice_all_unloadings();
    catch_up();
    if real.is_null() {
        return real;
    }
    // SAFETY: the host's path.
    unsafe { own_variables::give_back_before_opening(path) };
    if flags & RTLD_DEEPBIND == 0 {
        return PASS;
    }
    IS_USED.store(1, Ordering::Relaxed);
    // SAFETY: the host's path.
    if !unsafe { is_found_by_anybody(path) } {
        return PASS;
    }
    let opened = call();
    catch_up();
    opened
}

/// Whether `path` leads to the same file for every caller: it is not searched for, and has no part that depends on the
/// caller.
///
/// # Safety
/// `path` must be null or NUL-terminated.
unsafe fn is_found_by_anybody(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: vouched for by the caller.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    path.contains(&b'/') && !path.contains(&b'$')
}

/// Binds references to the hooks that were bound past them since the last call.
#[inline]
pub(crate) fn catch_up() {
    if IS_USED.load(Ordering::Relaxed) != 0 {
        bind_new_objects();
    }
}

#[cold]
fn bind_new_objects() {
    // Read before the objects are visited: objects that are loaded meanwhile are handled by the next call.
    let loads = linkmap::loads();
    if loads == LOADS_SEEN.load(Ordering::Relaxed) {
        return;
    }
    // The references are compared with the driver's functions, which may have been unloaded.
    Library::notice_all_unloadings();
    let mut is_complete = true;
    // The loader keeps every object in its place until this ends, and admits one thread at a time.
    linkmap::find(|object| {
        is_complete &= bind(&object.image);
        None::<()>
    });
    if is_complete || RETRIES.fetch_add(1, Ordering::Relaxed) >= RETRIES_MAX {
        RETRIES.store(0, Ordering::Relaxed);
        LOADS_SEEN.store(loads, Ordering::Relaxed);
    }
}

/// Binds an object's references to the hooks. `false` if another thread is still loading the object.
fn bind(image: &Image) -> bool {
    let mut is_complete = true;
    image.each_reference(|reference| {
        // SAFETY: an object's names are NUL-terminated.
        let Some(wanted) = (unsafe { Wanted::from_name(reference.name) }) else { return };
        is_complete &= match binding(image, &reference, &wanted) {
            Binding::PastTheHook => write(image, &reference, wanted.ours()),
            Binding::Pending => false,
            Binding::Right => true,
        };
    });
    is_complete
}

/// The state of a reference.
enum Binding {
    /// Bound to the real function, or not bound yet and would be bound to it at its first use.
    PastTheHook,
    /// Not bound: the loader has not reached it yet.
    Pending,
    /// Bound to the hook, or to another function that is right.
    Right,
}

fn binding(image: &Image, reference: &Reference<'_>, wanted: &Wanted) -> Binding {
    let target = reference.slot.load(Ordering::Relaxed);
    if target == wanted.ours() {
        Binding::Right
    } else if image.contains(target.addr()) {
        let is_past = reference.is_unbound(image) && finds_real_first(image, wanted);
        if is_past { Binding::PastTheHook } else { Binding::Right }
    } else if target.is_null() || image.has_at_offset(target.addr()) {
        // A weak reference may stay unbound.
        if reference.is_weak { Binding::Right } else { Binding::Pending }
    } else if wanted.is_real(target, linkmap::containing) {
        Binding::PastTheHook
    } else {
        Binding::Right
    }
}

/// Whether a search on behalf of `image` comes to the shim or the real function before another library's function.
fn finds_real_first(image: &Image, wanted: &Wanted) -> bool {
    let ours = wanted.ours().addr();
    let mut is_before_shim = true;
    let other = linkmap::find(|object| {
        let other = &object.image;
        is_before_shim &= !other.contains(ours);
        let is_asked_first = is_before_shim || other.soname().is_some_and(|soname| image.needs(soname));
        let is_real = other.contains(ours) || wanted.is_of(other) || other.is_c_library();
        (is_asked_first && !is_real && !other.function(wanted.name()).is_null()).then_some(())
    });
    other.is_none()
}

/// Binds `reference` to `function`. `false` if another thread is still loading the object.
pub(crate) fn write(image: &Image, reference: &Reference<'_>, function: *mut c_void) -> bool {
    let slot = reference.slot;
    match image.read_only_after_relocation(sys::page_bytes()) {
        Some(pages) if pages.contains(&(slot.as_ptr().addr())) => write_protected(&pages, slot, function),
        _ => {
            slot.store(function, Ordering::Relaxed);
            true
        }
    }
}

fn write_protected(pages: &Range<usize>, slot: &AtomicPtr<c_void>, function: *mut c_void) -> bool {
    // Writable pages are still being relocated by another thread: if they were made read-only now, that thread would
    // crash.
    if sys::is_writable(slot.as_ptr().cast()) {
        return false;
    }
    match sys::protect(pages, true) {
        Ok(()) => {
            slot.store(function, Ordering::Relaxed);
            let _ = sys::protect(pages, false);
            true
        }
        // If the error will not pass, a retry would not help.
        Err(error) => !error.is_passing(),
    }
}

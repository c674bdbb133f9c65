//! Libraries that are opened: what is known of the driver is checked before, and those that are opened with
//! `RTLD_DEEPBIND` are bound to the hooks.
//!
//! Such a library, with all that it brings along, looks for functions among the libraries that it needs before it comes
//! to the preloaded ones: it is bound to the driver itself, and to the C library's own `dlsym`. Once it is open, the
//! references of objects that have come since are looked through, and those that are bound past a hook are bound to it:
//! what the loader would have done without the flag. This is done before the program gets the library. Where the name
//! leads to another file for another caller, the C library must be left by a jump and not come back here; then it is
//! done at the next call of the shim, as the `dlsym` by which the program finds its plugin's functions. The flag itself
//! stays set, so the host's own binding order is kept: only what leads to the driver or to the C library's look-up
//! changes.
//!
//! A reference is left alone if the object has the function itself, or is bound to somebody else's. One that is not
//! bound yet is left alone if somebody other than the shim would be asked first: an object in front of the shim, or one
//! that the referring object needs.
//!
//! Not covered: what a library does in its constructors, before it is open; references that are not bound yet in a
//! program that interposes the same function itself, or of a linker whose code for binding them is not known (mold);
//! references in pages that can be written for ever though they are RELRO, or that may not be made writable.

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
/// The number of objects that had ever been loaded when all were last found well bound.
static LOADS_SEEN: AtomicU64 = AtomicU64::new(0);
/// How often some object was found to be still loading since then.
static RETRIES: AtomicU32 = AtomicU32::new(0);
/// More than a load takes while others look functions up: what is still not bound then never will be.
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

/// What the function at `real` answers, which `call` calls, or [`PASS`].
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

/// Whether `path` leads to the same file whoever asks for it: it is searched for nowhere, and names no place of the
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

/// Binds to the hooks what was bound past them since the last time.
#[inline]
pub(crate) fn catch_up() {
    if IS_USED.load(Ordering::Relaxed) != 0 {
        bind_new_objects();
    }
}

#[cold]
fn bind_new_objects() {
    // Before the objects are looked at: those that come meanwhile are for the next time.
    let loads = linkmap::loads();
    if loads == LOADS_SEEN.load(Ordering::Relaxed) {
        return;
    }
    // What a reference is bound to is compared with the driver's functions, which may have gone.
    Library::notice_all_unloadings();
    let mut is_complete = true;
    // The loader keeps every object where it is until this ends, and lets one thread at a time do it.
    linkmap::find(|object| {
        is_complete &= bind(&object.image);
        None::<()>
    });
    if is_complete || RETRIES.fetch_add(1, Ordering::Relaxed) >= RETRIES_MAX {
        RETRIES.store(0, Ordering::Relaxed);
        LOADS_SEEN.store(loads, Ordering::Relaxed);
    }
}

/// Binds an object's references. `false` if another thread is still loading it.
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

/// What a reference is bound to.
enum Binding {
    /// The real function, or nothing yet and the real one at its first use.
    PastTheHook,
    /// Nothing: the loader has not come to it.
    Pending,
    /// The hook or what else it should be.
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
        // Of a weak reference nothing can be right.
        if reference.is_weak { Binding::Right } else { Binding::Pending }
    } else if wanted.is_real(target, linkmap::containing) {
        Binding::PastTheHook
    } else {
        Binding::Right
    }
}

/// Whether a search on behalf of `image` comes to the shim or the real function before it comes to somebody else's.
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
    // Pages that can be written are still being relocated: protecting them now would end the process in the other
    // thread.
    if sys::is_writable(slot.as_ptr().cast()) {
        return false;
    }
    match sys::protect(pages, true) {
        Ok(()) => {
            slot.store(function, Ordering::Relaxed);
            let _ = sys::protect(pages, false);
            true
        }
        // Refused for good, there is nothing to try again.
        Err(error) => !error.is_passing(),
    }
}

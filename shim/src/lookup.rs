//! `dlsym` and `dlvsym`: most programs reach the driver through these, on a handle of their own.
//!
//! A name that is not hooked is left to the C library by a jump (trampoline.rs). For a hooked name the C library is
//! asked first, and its answer is replaced only if it is the real function.
//!
//! A process can hold several copies of the driver: from another file, or in a namespace of its own (`dlmopen`). The
//! first one that is found is *the* driver, in whichever namespace it is. The functions of any other copy pass through,
//! because a handle of one copy means nothing to another. A process with two copies is left to the manager's audit. So
//! are libraries that were themselves loaded into another namespace, where the shim is not loaded.

use crate::deep_binding;
use crate::elf::Image;
use crate::hooks::{self, Hook};
use crate::linkmap;
use crate::trampoline::{PASS, StandIn, trampoline};
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

static DLSYM: StandIn = StandIn::new(c"dlsym", dlsym);
static DLVSYM: StandIn = StandIn::new(c"dlvsym", dlvsym);

trampoline!(dlsym, dlsym_answer, DLSYM);
trampoline!(dlvsym, dlvsym_answer, DLVSYM);

const RTLD_NEXT: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// The answer of `dlsym`, or [`PASS`].
unsafe extern "C" fn dlsym_answer(handle: *mut c_void, name: *const c_char, _: usize, caller: usize) -> *mut c_void {
    deep_binding::catch_up();
    let real = DLSYM.real();
    if real.is_null() {
        return real;
    }
    // SAFETY: the address is that of the C library's function.
    let real = unsafe { core::mem::transmute::<*mut c_void, Dlsym>(real) };
    // SAFETY: the host's name.
    let Some(wanted) = (unsafe { Wanted::from_name(name) }) else { return PASS };
    // SAFETY: the host's arguments.
    wanted.answer(handle, caller, &|handle| unsafe { real(handle, name) })
}

/// The answer of `dlvsym`, or [`PASS`].
unsafe extern "C" fn dlvsym_answer(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> *mut c_void {
    deep_binding::catch_up();
    let real = DLVSYM.real();
    if real.is_null() {
        return real;
    }
    // SAFETY: the address is that of the C library's function.
    let real = unsafe { core::mem::transmute::<*mut c_void, Dlvsym>(real) };
    // SAFETY: the host's name.
    let Some(wanted) = (unsafe { Wanted::from_name(name) }) else { return PASS };
    // SAFETY: the host's arguments.
    wanted.answer(handle, caller, &|handle| unsafe { real(handle, name, version) })
}

/// Asks the C library for a name on a handle. A reference, so that the code that uses it is compiled only once.
type Ask<'a> = dyn Fn(*mut c_void) -> *mut c_void + 'a;

/// A name that the shim stands in for.
pub(crate) enum Wanted {
    /// A function of the driver or of NVML.
    Hook(&'static Hook),
    /// A function of the C library.
    StandIn(&'static StandIn),
}

impl Wanted {
    /// The shim's function for `name`. `None` for nearly all names; most are ruled out by their first two letters.
    ///
    /// # Safety
    /// `name` must be null or NUL-terminated.
    pub(crate) unsafe fn from_name(name: *const c_char) -> Option<Wanted> {
        if name.is_null() {
            return None;
        }
        // SAFETY: NUL-terminated, so the second byte may be read if the first is not NUL.
        let (first, second) = unsafe { (*name as u8, if *name == 0 { 0 } else { *name.add(1) as u8 }) };
        if !matches!((first, second), (b'c', b'u') | (b'n', b'v') | (b'd', b'l')) {
            return None;
        }
        // SAFETY: vouched for by the caller.
        let name = unsafe { CStr::from_ptr(name) };
        if first == b'd' {
            let stand_ins = [&DLSYM, &DLVSYM, &deep_binding::DLOPEN, &deep_binding::DLMOPEN];
            return stand_ins.into_iter().find(|stand_in| stand_in.name() == name).map(Wanted::StandIn);
        }
        hooks::by_symbol(name).map(Wanted::Hook)
    }

    /// The address of the shim's function.
    pub(crate) fn ours(&self) -> *mut c_void {
        match self {
            Wanted::Hook(hook) => hook.export(),
            Wanted::StandIn(stand_in) => stand_in.export(),
        }
    }

    pub(crate) fn name(&self) -> &'static CStr {
        match self {
            Wanted::Hook(hook) => hook.symbol(),
            Wanted::StandIn(stand_in) => stand_in.name(),
        }
    }

    /// The answer to a look-up on `handle` by code at `caller`. `real` asks the C library.
    fn answer(&self, handle: *mut c_void, caller: usize, real: &Ask<'_>) -> *mut c_void {
        if let Wanted::Hook(hook) = self {
            hook.library().notice_unloading();
        }
        if handle == RTLD_NEXT {
            return self.answer_next(caller, real);
        }
        let found = real(handle);
        if found.is_null() {
            return found;
        }
        if found == self.ours() {
            // The search found the shim itself, as on RTLD_DEFAULT. Without the shim it would have gone on behind it,
            // at last among the libraries that the caller itself needs. A look-up by the shim does not search those.
            let behind = self.answer_found(real(RTLD_NEXT));
            let is_found = behind.is_null() && self.is_needed_by(caller);
            // Repeated, because the C library remembers for `dlerror` that the last look-up found nothing.
            return if is_found { real(handle) } else { behind };
        }
        self.answer_found(found)
    }

    /// `RTLD_NEXT` means the objects behind the caller's, but the C library would take the shim for the caller. So the
    /// order of objects decides: if the next object that defines the name is the shim or the hooked library, the answer
    /// is the hook. Otherwise the C library answers, called in the way that the program called it.
    fn answer_next(&self, caller: usize, real: &Ask<'_>) -> *mut c_void {
        let mut behind_caller = false;
        let next = linkmap::find(|object| {
            let was_behind = behind_caller;
            behind_caller |= object.image.contains(caller);
            (was_behind && !object.image.function(self.name()).is_null()).then_some(object.image)
        });
        match next {
            Some(image) if image.contains(self.ours().addr()) => self.answer_found(real(RTLD_NEXT)),
            Some(image) if self.is_of(&image) => self.answer_found(image.function(self.name())),
            _ => PASS,
        }
    }

    /// The answer, if the C library's is `found`.
    fn answer_found(&self, found: *mut c_void) -> *mut c_void {
        let is_real = !found.is_null() && self.is_real(found, linkmap::containing_in_any_namespace);
        if is_real { self.ours() } else { found }
    }

    /// Whether `found`, which is not null, is the real function. `containing` finds the object that holds an address.
    pub(crate) fn is_real(&self, found: *mut c_void, containing: impl Fn(usize) -> Option<Image>) -> bool {
        match self {
            Wanted::Hook(hook) => {
                hook.real() == found
                    || containing(found.addr()).is_some_and(|image| {
                        let library = hook.library();
                        library.is(&image) && library.is_or_becomes(image)
                    })
            }
            Wanted::StandIn(stand_in) => {
                stand_in.real() == found || containing(found.addr()).is_some_and(|image| image.is_c_library())
            }
        }
    }

    /// Whether the object at `caller`, or one of its dependencies, is linked to the hooked library, and that library
    /// has the function.
    fn is_needed_by(&self, caller: usize) -> bool {
        let Wanted::Hook(hook) = self else { return false };
        !hook.real().is_null() && linkmap::brings_along(caller, |image| hook.library().is_needed_by(image))
    }

    /// Whether `image` is the library that defines the real function.
    pub(crate) fn is_of(&self, image: &Image) -> bool {
        match self {
            Wanted::Hook(hook) => hook.library().is(image),
            Wanted::StandIn(_) => false,
        }
    }
}

/// The first function `name` behind the object of `ours` in load order: that of the C library (libdl before glibc
/// 2.34), or that of another library which interposes it and was loaded after the shim.
pub(crate) fn next_definition(known: &AtomicPtr<c_void>, name: &CStr, ours: *const ()) -> *mut c_void {
    let mut address = known.load(Ordering::Relaxed);
    if address.is_null() {
        address = definition_behind(name, ours);
        // Read by the jump in the trampolines, which runs on the same thread.
        known.store(address, Ordering::Relaxed);
    }
    address
}

/// The first function `name` behind the object of `ours` in load order, or null. It is valid only while its library is
/// loaded.
pub(crate) fn definition_behind(name: &CStr, ours: *const ()) -> *mut c_void {
    let mut behind = false;
    let found = linkmap::find(|object| {
        if object.image.contains(ours.addr()) {
            behind = true;
            return None;
        }
        let address = if behind { object.image.function(name) } else { core::ptr::null_mut() };
        (!address.is_null()).then_some(address)
    });
    found.unwrap_or(core::ptr::null_mut())
}

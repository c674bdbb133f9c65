//! `dlsym` and `dlvsym`: most programs reach the driver through these, on a handle of their own.
//!
//! A name that is not hooked goes to the C library's function by a jump that leaves registers, stack and return address as
//! the host made them, so that what depends on the caller (`RTLD_NEXT`, `RTLD_DEFAULT` in a namespace) is exactly as without the
//! shim. For a hooked name the C library is asked first; its answer is replaced only if it is the driver's function.

use crate::elf::Image;
use crate::hooks::{self, Hook};
use crate::linkmap;
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// The C library's functions, once they have been found.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The answer "let the C library do it".
const PASS: *mut c_void = core::ptr::without_provenance_mut(1);

const RTLD_NEXT: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// `dlsym`, for the whole process.
///
/// # Safety
/// As the C library's function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "mov rdx, [rsp + 16]", // the return address: who asks
        "sub rsp, 8",
        "call {answer}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "cmp rax, 1",
        "je 2f",
        "ret",
        "2: mov rax, [rip + {real}]",
        "jmp rax",
        answer = sym dlsym_answer,
        real = sym REAL_DLSYM,
    )
}

/// `dlvsym`, for the whole process.
///
/// # Safety
/// As the C library's function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rcx, [rsp + 24]", // the return address: who asks
        "call {answer}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "cmp rax, 1",
        "je 2f",
        "ret",
        "2: mov rax, [rip + {real}]",
        "jmp rax",
        answer = sym dlvsym_answer,
        real = sym REAL_DLVSYM,
    )
}

/// `dlsym`, for the whole process.
///
/// # Safety
/// As the C library's function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    naked_asm!(
        "hint 34", // bti c
        "stp x29, x30, [sp, -32]!",
        "stp x0, x1, [sp, 16]",
        "mov x2, x30", // the return address: who asks
        "bl {answer}",
        "mov x9, x0",
        "ldp x0, x1, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "cmp x9, 1",
        "b.eq 2f",
        "mov x0, x9",
        "ret",
        "2: adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        answer = sym dlsym_answer,
        real = sym REAL_DLSYM,
    )
}

/// `dlvsym`, for the whole process.
///
/// # Safety
/// As the C library's function.
#[unsafe(no_mangle)]
#[unsafe(naked)]
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    naked_asm!(
        "hint 34", // bti c
        "stp x29, x30, [sp, -48]!",
        "stp x0, x1, [sp, 16]",
        "str x2, [sp, 32]",
        "mov x3, x30", // the return address: who asks
        "bl {answer}",
        "mov x9, x0",
        "ldp x0, x1, [sp, 16]",
        "ldr x2, [sp, 32]",
        "ldp x29, x30, [sp], 48",
        "cmp x9, 1",
        "b.eq 2f",
        "mov x0, x9",
        "ret",
        "2: adrp x16, {real}",
        "ldr x16, [x16, :lo12:{real}]",
        "br x16",
        answer = sym dlvsym_answer,
        real = sym REAL_DLVSYM,
    )
}

/// What `dlsym` answers, or [`PASS`].
unsafe extern "C" fn dlsym_answer(handle: *mut c_void, name: *const c_char, caller: usize) -> *mut c_void {
    let Some(real) = real_dlsym() else { return core::ptr::null_mut() };
    // SAFETY: the host's name.
    let Some(wanted) = (unsafe { Wanted::from_name(name) }) else { return PASS };
    // SAFETY: the host's arguments.
    wanted.answer(handle, caller, |handle| unsafe { real(handle, name) })
}

/// What `dlvsym` answers, or [`PASS`].
unsafe extern "C" fn dlvsym_answer(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> *mut c_void {
    let Some(real) = real_dlvsym() else { return core::ptr::null_mut() };
    // SAFETY: the host's name.
    let Some(wanted) = (unsafe { Wanted::from_name(name) }) else { return PASS };
    // SAFETY: the host's arguments.
    wanted.answer(handle, caller, |handle| unsafe { real(handle, name, version) })
}

/// A name that is hooked.
enum Wanted {
    /// A function of the driver or of NVML.
    Hook(&'static Hook),
    /// `dlsym` itself.
    Dlsym,
    /// `dlvsym` itself.
    Dlvsym,
}

impl Wanted {
    /// What `name` asks for; `None` for nearly all names, decided by their first letters.
    ///
    /// # Safety
    /// `name` must be null or NUL-terminated.
    unsafe fn from_name(name: *const c_char) -> Option<Wanted> {
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
        if name == c"dlsym" {
            Some(Wanted::Dlsym)
        } else if name == c"dlvsym" {
            Some(Wanted::Dlvsym)
        } else {
            hooks::by_symbol(name).map(Wanted::Hook)
        }
    }

    /// The shim's function.
    fn ours(&self) -> *mut c_void {
        match self {
            Wanted::Hook(hook) => hook.export(),
            Wanted::Dlsym => (dlsym as *const ()).cast_mut().cast(),
            Wanted::Dlvsym => (dlvsym as *const ()).cast_mut().cast(),
        }
    }

    fn name(&self) -> &'static CStr {
        match self {
            Wanted::Hook(hook) => hook.symbol(),
            Wanted::Dlsym => c"dlsym",
            Wanted::Dlvsym => c"dlvsym",
        }
    }

    /// The answer to a look-up on `handle` by code at `caller`; `real` asks the C library.
    fn answer(&self, handle: *mut c_void, caller: usize, real: impl Fn(*mut c_void) -> *mut c_void) -> *mut c_void {
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
            // The search found the shim itself, as on RTLD_DEFAULT. Without the shim it would have gone on behind it, and in the
            // end among the libraries that the caller itself needs, where a look-up by the shim does not come.
            return if self.is_needed_by(caller) { found } else { self.answer_found(real(RTLD_NEXT)) };
        }
        self.answer_found(found)
    }

    /// `RTLD_NEXT` means the objects behind the caller's, and the C library would take the shim for the caller. So the order of
    /// objects decides: if the next one that defines the name is the shim or the hooked library, the answer is the hook;
    /// anything else is left to the C library, called as the host called it.
    fn answer_next(&self, caller: usize, real: impl Fn(*mut c_void) -> *mut c_void) -> *mut c_void {
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

    /// The answer where the C library's is `found`.
    fn answer_found(&self, found: *mut c_void) -> *mut c_void {
        let is_real = match self {
            Wanted::Hook(hook) => {
                !found.is_null()
                    && (hook.real() == found
                        || linkmap::containing(found.addr()).is_some_and(|image| self.is_of(&image)))
            }
            Wanted::Dlsym => real_dlsym().is_some_and(|real| found.addr() == real as usize),
            Wanted::Dlvsym => real_dlvsym().is_some_and(|real| found.addr() == real as usize),
        };
        if is_real { self.ours() } else { found }
    }

    /// Whether the object of the code at `caller` is linked to the hooked library, and the library has the function.
    fn is_needed_by(&self, caller: usize) -> bool {
        let Wanted::Hook(hook) = self else { return false };
        !hook.real().is_null() && linkmap::containing(caller).is_some_and(|image| hook.library().is_needed_by(&image))
    }

    /// Whether `image` is the library whose function this is.
    fn is_of(&self, image: &Image) -> bool {
        match self {
            Wanted::Hook(hook) => hook.library().is(image),
            Wanted::Dlsym | Wanted::Dlvsym => false,
        }
    }
}

fn real_dlsym() -> Option<Dlsym> {
    let address = next_definition(&REAL_DLSYM, c"dlsym", dlsym as *const ());
    // SAFETY: the address is that of the C library's function.
    (!address.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Dlsym>(address) })
}

fn real_dlvsym() -> Option<Dlvsym> {
    let address = next_definition(&REAL_DLVSYM, c"dlvsym", dlvsym as *const ());
    // SAFETY: the address is that of the C library's function.
    (!address.is_null()).then(|| unsafe { core::mem::transmute::<*mut c_void, Dlvsym>(address) })
}

/// The first function `name` behind the shim's own in load order: the C library's (libdl's before glibc 2.34), or that of
/// another library which interposes it and was loaded after the shim.
pub(crate) fn next_definition(known: &AtomicPtr<c_void>, name: &CStr, ours: *const ()) -> *mut c_void {
    let address = known.load(Ordering::Relaxed);
    if !address.is_null() {
        return address;
    }
    let mut behind = false;
    let found = linkmap::find(|object| {
        if object.image.contains(ours.addr()) {
            behind = true;
            return None;
        }
        let address = if behind { object.image.function(name) } else { core::ptr::null_mut() };
        (!address.is_null()).then_some(address)
    });
    // Pairs with the jump in the trampolines, which runs on the same thread.
    let address = found.unwrap_or(core::ptr::null_mut());
    known.store(address, Ordering::Relaxed);
    address
}

//! Stand-ins for functions of the C library whose answers depend on the caller.
//!
//! The meaning of `RTLD_NEXT`, the search path and the namespace depend on the calling library, which the C library
//! finds by the return address. So a stand-in ends with a jump to the real function. Registers, stack and return
//! address are as the program made them, and there is no return without a call, so that shadow stacks stay consistent.

use crate::lookup;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The answer of a stand-in's first part if the C library is to answer.
pub(crate) const PASS: *mut c_void = core::ptr::without_provenance_mut(1);

/// A function of the C library that the shim stands in for.
#[repr(C)]
pub(crate) struct StandIn {
    /// The real function, once it has been found. The first field, because the jump reads it.
    real: AtomicPtr<c_void>,
    name: &'static CStr,
    export: unsafe extern "C" fn(),
}

impl StandIn {
    pub(crate) const fn new(name: &'static CStr, export: unsafe extern "C" fn()) -> StandIn {
        StandIn { real: AtomicPtr::new(core::ptr::null_mut()), name, export }
    }

    pub(crate) fn name(&self) -> &'static CStr {
        self.name
    }

    /// The address of the shim's function.
    pub(crate) fn export(&self) -> *mut c_void {
        (self.export as *const ()).cast_mut().cast()
    }

    /// The next function of this name behind the shim; null if there is none.
    pub(crate) fn real(&self) -> *mut c_void {
        let known = self.real.load(Ordering::Relaxed);
        if known.is_null() { lookup::next_definition(&self.real, self.name, self.export as *const ()) } else { known }
    }
}

/// Exports `$name`. It calls `$answer` and, if that returns [`PASS`], jumps to the function in `$stand_in`.
///
/// `$answer` gets the first three arguments and the return address. If it returns [`PASS`], it must have found the real
/// function. The stack can be unwound during the call of `$answer`: if it opens a library, constructors run.
macro_rules! trampoline {
    ($name:ident, $answer:ident, $stand_in:ident) => {
        #[doc = concat!("`", stringify!($name), "`, for the whole process.")]
        ///
        /// # Safety
        /// As the C library's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "x86_64")]
        pub(crate) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "mov rcx, [rsp + 24]", // the return address: who asks
                "call {answer}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "cmp rax, 1",
                "je 2f",
                "ret",
                "2: mov rax, [rip + {stand_in}]",
                "jmp rax",
                ".cfi_endproc",
                answer = sym $answer,
                stand_in = sym $stand_in,
            )
        }

        #[doc = concat!("`", stringify!($name), "`, for the whole process.")]
        ///
        /// # Safety
        /// As the C library's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[cfg(target_arch = "aarch64")]
        pub(crate) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "hint 34", // bti c
                "stp x29, x30, [sp, -48]!",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset x29, -48",
                ".cfi_offset x30, -40",
                "stp x0, x1, [sp, 16]",
                "str x2, [sp, 32]",
                "mov x3, x30", // the return address: who asks
                "bl {answer}",
                "mov x9, x0",
                "ldp x0, x1, [sp, 16]",
                "ldr x2, [sp, 32]",
                "ldp x29, x30, [sp], 48",
                ".cfi_restore x29",
                ".cfi_restore x30",
                ".cfi_def_cfa_offset 0",
                "cmp x9, 1",
                "b.eq 2f",
                "mov x0, x9",
                "ret",
                "2: adrp x16, {stand_in}",
                "ldr x16, [x16, :lo12:{stand_in}]",
                "br x16",
                ".cfi_endproc",
                answer = sym $answer,
                stand_in = sym $stand_in,
            )
        }
    };
}
pub(crate) use trampoline;

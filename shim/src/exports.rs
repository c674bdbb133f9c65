//! The exported hooks: one for each line of the tables whose class is not `forward`. A preloaded library must not
//! shadow functions that it does not know, so every other function stays the driver's own.
//!
//! A hook finds the real function of exactly its own symbol and passes it, with the arguments, to the policy that the
//! table names. The policy calls the real function. Nothing in the shim ever calls a hooked name.
//!
//! If there is no real function, the call goes to the function that would have got it without the shim: some libraries
//! define functions of these names, which load the driver at their first call.

use crate::driver::{Library, Slot};
use crate::hooks::{real, slots, types};
use crate::lookup;
use crate::markers;
#[allow(clippy::wildcard_imports, reason = "the tables use all of the types")]
use aliquot_abi::{cuda::*, nvml::*};

/// The function that gets the calls of `slot`'s function while the real one does not exist.
#[cold]
#[inline(never)]
fn stand_in_of(slot: &Slot) -> *mut c_void {
    let next = lookup::definition_behind(slot.symbol(), stand_in_of as *const ());
    if !next.is_null() {
        return next;
    }
    let nobody = match slot.library() {
        Library::Cuda => not_found_in_cuda as *const (),
        Library::Nvml => not_found_in_nvml as *const (),
    };
    nobody.cast_mut().cast()
}

extern "C" fn not_found_in_cuda() -> CUresult {
    CUresult::NOT_FOUND
}

extern "C" fn not_found_in_nvml() -> nvmlReturn_t {
    nvmlReturn_t::FUNCTION_NOT_FOUND
}

/// [`stand_in_of`] a table line, typed.
macro_rules! stand_in {
    ($symbol:ident) => {{
        let address = stand_in_of(&slots::$symbol);
        // SAFETY: a function of this name, whose type the table states; or a function without parameters, for which the
        // C calling convention lets the caller put and remove the arguments.
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, types::$symbol>(address) }
    }};
}

macro_rules! cuda_exports {
    ($($class:ident $policy:ident : $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal
        $arguments:tt;)*) => {
        $(
            cuda_export!($class $symbol $arguments);
            $(cuda_export!($class $per_thread $arguments);)?
        )*

        /// The hooks behind the exports of the same names.
        mod hooks_of_cuda {
            #[allow(clippy::wildcard_imports, reason = "the table uses all of the types")]
            use super::*;
            $(
                cuda_hook!($class $policy Legacy $symbol $arguments);
                $(cuda_hook!($class $policy PerThread $per_thread $arguments);)?
            )*
        }
    };
}

/// The export jumps to the hook. On x86-64 it begins with 15 bytes that do nothing and mean the same at any address.
/// UCX writes its own jump over the first 12 bytes of the functions that allocate, and runs a copy of these bytes
/// elsewhere to reach the function. It can copy only few kinds of instructions. At the first function that begins with
/// others, it gives up on all.
///
/// There is no unwind information, which would be larger than the code: nothing here is called or on the stack.
macro_rules! cuda_export {
    (forward $($line:tt)*) => {};
    ($class:ident $symbol:ident ($($argument:ident : $type:ty),* $(,)?)) => {
        /// The driver function of this name, within the slice.
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                // A caller expects no value in this register.
                "mov eax, 0",
                "mov eax, 0",
                "mov eax, 0",
                "jmp {hook}",
                hook = sym hooks_of_cuda::$symbol,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!("b {hook}", hook = sym hooks_of_cuda::$symbol)
        }
    };
}

macro_rules! cuda_hook {
    (forward $($line:tt)*) => {};
    ($class:ident $policy:ident $null_stream:ident $symbol:ident ($($argument:ident : $type:ty),* $(,)?)) => {
        /// # Safety
        /// As the driver's function.
        pub(super) unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            let Some(real) = real!($symbol) else {
                let stand_in: types::$symbol = stand_in!($symbol);
                // SAFETY: the caller vouches for the arguments, whichever function gets them.
                return unsafe { stand_in($($argument),*) };
            };
            // SAFETY: the caller vouches for the arguments; `real` is the driver's function of this very symbol.
            let result = unsafe { crate::$class::$policy(NullStream::$null_stream, real, $($argument),*) };
            told!($class result)
        }
    };
}

/// The result of a policy. A fault of which it tells is noticed here, if the class's policies do not do it themselves:
/// the driver tells of a fault in whichever call comes next.
macro_rules! told {
    // No work comes before it.
    (start $result:ident) => {
        $result
    };
    // Before they leave their marker.
    (launch $result:ident) => {
        $result
    };
    // Before they look at markers.
    (synchronize $result:ident) => {
        $result
    };
    // In the few functions that they share, which takes less code.
    (copy $result:ident) => {
        $result
    };
    ($class:ident $result:ident) => {
        told($result)
    };
}

/// Returns `result`. Not inlined, because many hooks use it.
#[inline(never)]
fn told(result: CUresult) -> CUresult {
    markers::note_failure(result);
    result
}

macro_rules! nvml_exports {
    ($($class:ident $policy:ident : $symbol:ident $arguments:tt;)*) => {
        $(nvml_export!($class $policy $symbol $arguments);)*
    };
}

macro_rules! nvml_export {
    (forward $($line:tt)*) => {};
    ($class:ident $policy:ident $symbol:ident ($($argument:ident : $type:ty),* $(,)?)) => {
        /// The NVML function of this name, as the slice sees it.
        ///
        /// # Safety
        /// As NVML's function.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $symbol($($argument: $type),*) -> nvmlReturn_t {
            let Some(real) = real!($symbol) else {
                let stand_in: types::$symbol = stand_in!($symbol);
                // SAFETY: the caller vouches for the arguments, whichever function gets them.
                return unsafe { stand_in($($argument),*) };
            };
            // SAFETY: the caller vouches for the arguments; `real` is NVML's function of this very symbol.
            unsafe { crate::$class::$policy(real, $($argument),*) }
        }
    };
}

aliquot_abi::cuda_api!(cuda_exports);
aliquot_abi::nvml_api!(nvml_exports);

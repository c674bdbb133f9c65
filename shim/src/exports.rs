//! The exported hooks: one for each line of the tables whose class is not `forward`.
//!
//! A hook finds the real function of exactly its own symbol and hands both to the policy that the table names. The policy
//! calls the real function; nothing here or there ever calls a hooked name.

use crate::hooks::real;
#[allow(clippy::wildcard_imports, reason = "the tables use all of the types")]
use aliquot_abi::{cuda::*, nvml::*};

macro_rules! cuda_exports {
    ($($class:ident $policy:ident : $symbol:ident $(| $per_thread:ident)? = $name:ident @ $since:literal
        $arguments:tt;)*) => {
        $(
            cuda_export!($class $policy Legacy $symbol $arguments);
            $(cuda_export!($class $policy PerThread $per_thread $arguments);)?
        )*
    };
}

macro_rules! cuda_export {
    (forward $($line:tt)*) => {};
    ($class:ident $policy:ident $null_stream:ident $symbol:ident ($($argument:ident : $type:ty),* $(,)?)) => {
        /// The driver function of this name, within the slice.
        ///
        /// # Safety
        /// As the driver's function.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            let Some(real) = real!($symbol) else { return CUresult::NOT_FOUND };
            // SAFETY: the caller vouches for the arguments; `real` is the driver's function of this very symbol.
            unsafe { crate::$class::$policy(NullStream::$null_stream, real, $($argument),*) }
        }
    };
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
            let Some(real) = real!($symbol) else { return nvmlReturn_t::FUNCTION_NOT_FOUND };
            // SAFETY: the caller vouches for the arguments; `real` is NVML's function of this very symbol.
            unsafe { crate::$class::$policy(real, $($argument),*) }
        }
    };
}

aliquot_abi::cuda_api!(cuda_exports);
aliquot_abi::nvml_api!(nvml_exports);

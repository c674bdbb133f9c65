//! The exported functions, expanded from the table of `aliquot-abi`.
//!
//! Each calls the implementation of the same name. A line with a per-thread form makes two functions, which differ in
//! the meaning of a null stream.

#![allow(unreachable_pub, reason = "these functions are what the library exports")]
#![allow(clippy::missing_safety_doc, reason = "the driver API's documentation says what each function may be given")]
#![allow(clippy::too_many_arguments, reason = "the driver API's signatures")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use aliquot_abi::cuda::*;

use crate::lookup::Export;

/// The modules with the implementations.
mod implementations {
    pub(super) use crate::array_copies::*;
    pub(super) use crate::arrays::*;
    pub(super) use crate::attributes::*;
    pub(super) use crate::batches::*;
    pub(super) use crate::capture::*;
    pub(super) use crate::conditionals::*;
    pub(super) use crate::context::*;
    pub(super) use crate::copies::*;
    pub(super) use crate::device::*;
    pub(super) use crate::events::*;
    pub(super) use crate::external_memory::*;
    pub(super) use crate::external_semaphores::*;
    pub(super) use crate::graph_attributes::*;
    pub(super) use crate::graph_exec::*;
    pub(super) use crate::graph_node_parameters::*;
    pub(super) use crate::graph_nodes::*;
    pub(super) use crate::graph_print::*;
    pub(super) use crate::graph_update::*;
    pub(super) use crate::graphs::*;
    pub(super) use crate::green_contexts::*;
    pub(super) use crate::host_memory::*;
    pub(super) use crate::interface_v1::*;
    pub(super) use crate::ipc::*;
    pub(super) use crate::kernels::*;
    pub(super) use crate::launches::*;
    pub(super) use crate::linking::*;
    pub(super) use crate::lookup::*;
    pub(super) use crate::memory::*;
    pub(super) use crate::memory_operations::*;
    pub(super) use crate::modules::*;
    pub(super) use crate::multicast::*;
    pub(super) use crate::occupancy::*;
    pub(super) use crate::physical_memory::*;
    pub(super) use crate::pointers::*;
    pub(super) use crate::pool_settings::*;
    pub(super) use crate::pool_sharing::*;
    pub(super) use crate::process::*;
    pub(super) use crate::sets::*;
    pub(super) use crate::sparse_arrays::*;
    pub(super) use crate::stream_ordered::*;
    pub(super) use crate::streams::*;
    pub(super) use crate::textures::*;
    pub(super) use crate::user_objects::*;
    pub(super) use crate::virtual_memory::*;
}

#[inline]
fn code(done: crate::Done) -> CUresult {
    match done {
        Ok(()) => CUresult::SUCCESS,
        Err(error) => error,
    }
}

/// The exported symbol, which jumps to the function of the same name in [`functions`]. As in NVIDIA's driver, programs
/// can write a jump of their own over its beginning, and run a copy of that elsewhere: these bytes do nothing.
macro_rules! export {
    ($symbol:ident ($($argument:ident: $kind:ty),*)) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $symbol($($argument: $kind),*) -> CUresult {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                ".cfi_startproc",
                "mov eax, 0",
                "mov eax, 0",
                "mov eax, 0",
                "jmp {function}",
                ".cfi_endproc",
                function = sym functions::$symbol,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(".cfi_startproc", "b {function}", ".cfi_endproc", function = sym functions::$symbol)
        }
    };
}

macro_rules! function {
    ($symbol:ident ($($argument:ident: $kind:ty),*)) => {
        pub(super) unsafe extern "C" fn $symbol($($argument: $kind),*) -> CUresult {
            code(implementations::$symbol($($argument),*))
        }
    };
    ($symbol:ident | $per_thread:ident ($($argument:ident: $kind:ty),*)) => {
        pub(super) unsafe extern "C" fn $symbol($($argument: $kind),*) -> CUresult {
            code(implementations::$symbol(NullStream::Legacy, $($argument),*))
        }

        pub(super) unsafe extern "C" fn $per_thread($($argument: $kind),*) -> CUresult {
            code(implementations::$symbol(NullStream::PerThread, $($argument),*))
        }
    };
}

macro_rules! per_thread {
    () => {
        None
    };
    ($per_thread:ident) => {
        Some($per_thread as *const c_void)
    };
}

macro_rules! exports {
    ($($class:ident $policy:ident:
        $symbol:ident $(| $per_thread:ident)? = $name:ident @ $version:literal $arguments:tt;)*) => {
        $(
            export! { $symbol $arguments }
            $(export! { $per_thread $arguments })?
        )*

        /// The bodies of the exports with the same names.
        mod functions {
            #[allow(clippy::wildcard_imports, reason = "the table uses all of the types")]
            use super::*;
            $(function! { $symbol $(| $per_thread)? $arguments })*
        }

        pub(crate) fn all() -> Vec<Export> {
            vec![$(Export {
                name: stringify!($name),
                version: $version,
                function: $symbol as *const c_void,
                per_thread: per_thread!($($per_thread)?),
            }),*]
        }
    };
}

aliquot_abi::cuda_api!(exports);

//! Loads of modules: the driver takes memory for their code, their variables and the heap of kernels. So it does for
//! some limits of a context.
//!
//! How much is known only afterwards, and no ledger shows it: it is overhead. A look takes some time to find it, so that
//! the driver's own figure before and after the load is noted until then. What other processes take of the device
//! meanwhile is included; at worst a request then waits for the look. Code that the driver loads only when it is first
//! needed is found by the looks alone.

use crate::call::Call;
use crate::hooks::{real, types};
use crate::process::Process;
use aliquot_abi::cuda::{CUmodule, CUresult, NullStream, c_uint, c_void};
use aliquot_abi::rounding;

/// Makes a call for which the driver can take memory of the calling thread's device.
#[inline(never)]
pub(crate) fn loading(call: &dyn Call<CUresult>) -> CUresult {
    let free_before = free_bytes();
    let result = call.make();
    let taken_bytes = free_before.saturating_sub(free_bytes()) as u64;
    if taken_bytes > 0
        && let Some(process) = Process::attached()
        && let Some(part) = process.current_ordinal().ok().and_then(|device| process.part(device))
        && let Some((account, _)) = part.books()
    {
        rounding::note_overhead(account, taken_bytes);
        part.ask_for_look();
    }
    result
}

/// The bytes that are free on the calling thread's device, as the driver says; 0 if it does not.
fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are valid.
    let told = real!(cuMemGetInfo_v2).map(|get| unsafe { get(&raw mut free, &raw mut total) });
    if told.is_some_and(CUresult::is_ok) { free } else { 0 }
}

/// `cuModuleLoad`, `cuModuleLoadData`, `cuModuleLoadFatBinary`.
pub(crate) unsafe fn load_module<I>(
    _: NullStream,
    real: unsafe extern "C" fn(*mut CUmodule, *const I) -> CUresult,
    module: *mut CUmodule,
    image: *const I,
) -> CUresult {
    // SAFETY: the host's call.
    loading(&|| unsafe { real(module, image) })
}

/// `cuModuleLoadDataEx`.
pub(crate) unsafe fn load_module_with_options(
    _: NullStream,
    real: types::cuModuleLoadDataEx,
    module: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut c_uint,
    values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the host's call.
    loading(&|| unsafe { real(module, image, count, options, values) })
}

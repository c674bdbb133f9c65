//! The end of a context, which frees all that was allocated in it.

use crate::allocations;
use crate::arrays;
use crate::hooks::{real, types};
use aliquot_abi::cuda::{CUcontext, CUdevice, CUresult, NullStream, c_uint};

/// `cuCtxDestroy`.
pub(crate) unsafe fn destroy(_: NullStream, real: types::cuCtxDestroy, context: CUcontext) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(context) };
    if result.is_ok() {
        refund_what_is_gone(context);
    }
    result
}

/// `cuDevicePrimaryCtxReset`.
pub(crate) unsafe fn primary_reset(_: NullStream, real: types::cuDevicePrimaryCtxReset, device: CUdevice) -> CUresult {
    // SAFETY: the host's call.
    unsafe { end_primary(device, || real(device)) }
}

/// `cuDevicePrimaryCtxRelease`: ends the context with its last reference.
pub(crate) unsafe fn primary_release(
    _: NullStream,
    real: types::cuDevicePrimaryCtxRelease,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the host's call.
    unsafe { end_primary(device, || real(device)) }
}

/// Makes a call that can end the primary context of `device`.
///
/// # Safety
/// The driver must be loaded.
unsafe fn end_primary(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let context = if is_active(device) { primary_context(device) } else { CUcontext::NULL };
    let result = call();
    if result.is_ok() && !context.is_null() && !is_active(device) {
        refund_what_is_gone(context);
    }
    result
}

/// Whether the primary context of `device` lives.
fn is_active(device: CUdevice) -> bool {
    let (mut flags, mut active): (c_uint, _) = (0, 0);
    let Some(get_state) = real!(cuDevicePrimaryCtxGetState) else { return false };
    // SAFETY: the pointers are valid.
    unsafe { get_state(device, &raw mut flags, &raw mut active) }.is_ok() && active != 0
}

/// The primary context of `device`, which is active. Only its handle is wanted: the reference is given back at once.
fn primary_context(device: CUdevice) -> CUcontext {
    let mut context = CUcontext::NULL;
    let release = real!(cuDevicePrimaryCtxRelease_v2).or_else(|| real!(cuDevicePrimaryCtxRelease));
    if let (Some(retain), Some(release)) = (real!(cuDevicePrimaryCtxRetain), release) {
        // SAFETY: the pointer is valid; the context stays alive, since whoever activated it holds a reference too.
        unsafe {
            if retain(&raw mut context, device).is_ok() {
                let _ = release(device);
            }
        }
    }
    context
}

/// Gives back what the driver does not know any more after `context` has ended.
///
/// The driver is asked for each address: so an allocation needs no note of its context, and what lives on in other contexts is
/// left alone. This is as slow as there are allocations, and as rare as contexts end.
fn refund_what_is_gone(context: CUcontext) {
    const MEMORY_TYPE: c_uint = 2; // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    if let Some(get_attribute) = real!(cuPointerGetAttribute) {
        let is_gone = |address| {
            let mut kind: c_uint = 0;
            // SAFETY: the pointer is valid for the attribute, which is an unsigned int.
            !unsafe { get_attribute((&raw mut kind).cast(), MEMORY_TYPE, address) }.is_ok()
        };
        allocations::sweep_addresses(is_gone, allocations::Charge::refund);
    }
    arrays::refund_of_context(context);
}

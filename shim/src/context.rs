//! The end of a context, which frees all that was allocated in it.

use crate::allocations::{self, Charge};
use crate::arrays;
use crate::hooks::{real, types};
use crate::markers;
use crate::process::Process;
use aliquot_abi::cuda::{CUcontext, CUdevice, CUresult, NullStream, c_uint};

/// `cuCtxDestroy`.
pub(crate) unsafe fn destroy(_: NullStream, real: types::cuCtxDestroy, context: CUcontext) -> CUresult {
    // SAFETY: the host's call.
    ending(context, || unsafe { real(context) }, CUresult::is_ok)
}

/// `cuDevicePrimaryCtxReset`.
pub(crate) unsafe fn primary_reset(_: NullStream, real: types::cuDevicePrimaryCtxReset, device: CUdevice) -> CUresult {
    // SAFETY: the host's call.
    ending_primary(device, || unsafe { real(device) })
}

/// `cuDevicePrimaryCtxRelease`: ends the context with its last reference.
pub(crate) unsafe fn primary_release(
    _: NullStream,
    real: types::cuDevicePrimaryCtxRelease,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the host's call.
    ending_primary(device, || unsafe { real(device) })
}

/// Makes a call that can end the primary context of `device`.
fn ending_primary(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    if !is_active(device) {
        return call();
    }
    ending(primary_context(device), call, |result| result.is_ok() && !is_active(device))
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

/// Makes a call that can end `context`; `ended` says whether it did. Then what was allocated in it is given back.
///
/// Whose an address is, is asked of the driver while the context lives: so an allocation needs no note of its context, and what
/// lives on elsewhere is left alone. This is as slow as there are allocations, and as rare as contexts end.
fn ending(context: CUcontext, call: impl FnOnce() -> CUresult, ended: impl FnOnce(CUresult) -> bool) -> CUresult {
    let Some(process) = Process::attached().filter(|_| !context.is_null()) else { return call() };
    note_what_belongs_to(context);
    let result = call();
    let ended = ended(result);
    allocations::finish_ending(ended, Charge::refund);
    if ended {
        arrays::refund_of_context(context);
        markers::forget_contexts(process);
    }
    result
}

fn note_what_belongs_to(context: CUcontext) {
    const CONTEXT: c_uint = 1; // CU_POINTER_ATTRIBUTE_CONTEXT
    let Some(get_attribute) = real!(cuPointerGetAttribute) else { return };
    // The driver answers only a thread that has a context.
    let mut current = CUcontext::NULL;
    let (push, pop) = (real!(cuCtxPushCurrent_v2), real!(cuCtxPopCurrent_v2));
    // SAFETY: the pointer is valid.
    let has_current =
        real!(cuCtxGetCurrent).is_some_and(|get| unsafe { get(&raw mut current) }.is_ok() && !current.is_null());
    // SAFETY: the driver checks the handle.
    let pushed = !has_current && push.is_some_and(|push| unsafe { push(context) }.is_ok());
    allocations::begin_ending(|address| {
        let mut owner = CUcontext::NULL;
        // SAFETY: the pointer is valid for the attribute, which is a context.
        unsafe { get_attribute((&raw mut owner).cast(), CONTEXT, address) }.is_ok() && owner == context
    });
    if let (true, Some(pop)) = (pushed, pop) {
        // SAFETY: the pointer is valid; what was pushed above is on top.
        let _ = unsafe { pop(&raw mut current) };
    }
}

//! The end of a context, which frees all that was allocated in it.
//!
//! A green context holds no memory: what is allocated while one is current belongs to the primary context of its device. But it keeps
//! that alive, so its end can be the primary's.

use crate::allocations::Ending;
use crate::hooks::{real, types};
use crate::process::Process;
use crate::{arrays, markers, pools};
use aliquot_abi::cuda::{CUcontext, CUdevice, CUgreenCtx, CUresult, NullStream, c_uint};

/// `cuCtxDestroy`.
pub(crate) unsafe fn destroy(_: NullStream, real: types::cuCtxDestroy, context: CUcontext) -> CUresult {
    // SAFETY: the host's call.
    ending(context, &|| unsafe { real(context) }, &CUresult::is_ok)
}

/// `cuCtxDetach`: destroys the context with its last attachment.
pub(crate) unsafe fn detach(_: NullStream, real: types::cuCtxDetach, context: CUcontext) -> CUresult {
    // SAFETY: the host's call.
    ending(context, &|| unsafe { real(context) }, &|result| result.is_ok() && !is_alive(context))
}

/// Whether the driver still knows `context`.
fn is_alive(context: CUcontext) -> bool {
    let mut version = 0;
    // SAFETY: the pointer is valid; the driver checks the handle.
    real!(cuCtxGetApiVersion).is_some_and(|get| unsafe { get(context, &raw mut version) }.is_ok())
}

/// `cuDevicePrimaryCtxReset`.
pub(crate) unsafe fn primary_reset(_: NullStream, real: types::cuDevicePrimaryCtxReset, device: CUdevice) -> CUresult {
    // SAFETY: the host's call.
    ending_primary(device, &|| unsafe { real(device) })
}

/// `cuDevicePrimaryCtxRelease`: ends the context with its last reference.
pub(crate) unsafe fn primary_release(
    _: NullStream,
    real: types::cuDevicePrimaryCtxRelease,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the host's call.
    ending_primary(device, &|| unsafe { real(device) })
}

/// `cuGreenCtxDestroy`: ends the primary context of its device if nobody else holds that.
pub(crate) unsafe fn green_destroy(_: NullStream, real: types::cuGreenCtxDestroy, context: CUgreenCtx) -> CUresult {
    // SAFETY: the host's call.
    let result = unsafe { real(context) };
    if let Some(process) = Process::if_attached()
        && result.is_ok()
        && (0..process.ordinals()).any(|device| !is_active(device))
    {
        refund_what_is_unknown(process);
    }
    result
}

/// Makes a call that can end the primary context of `device`.
fn ending_primary(device: CUdevice, call: &dyn Fn() -> CUresult) -> CUresult {
    if !is_active(device) {
        return call();
    }
    ending(primary_context(device), call, &|result| result.is_ok() && !is_active(device))
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
/// lives on elsewhere is left alone. What other threads allocate in the context between that question and its end, the driver does
/// not know any more afterwards. This is as slow as there are allocations, and as rare as contexts end.
fn ending(context: CUcontext, call: &dyn Fn() -> CUresult, ended: &dyn Fn(CUresult) -> bool) -> CUresult {
    let Some(process) = Process::attached().filter(|_| !context.is_null()) else { return call() };
    let end = Ending::new();
    note_what_belongs_to(context, &end);
    let result = call();
    if !ended(result) {
        end.finish(|_| false);
        return result;
    }
    end.finish(|_| true);
    arrays::refund_of_context(context);
    refund_what_is_unknown(process);
    markers::forget_contexts(process);
    result
}

/// Gives back what the driver does not know any more, after the end of a context.
fn refund_what_is_unknown(process: &'static Process) {
    let end = Ending::new();
    end.note(|_| true);
    end.finish(is_unknown);
    pools::settle_all(process);
}

fn note_what_belongs_to(context: CUcontext, end: &Ending) {
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
    end.note(|address| {
        let mut owner = CUcontext::NULL;
        // SAFETY: the pointer is valid for the attribute, which is a context.
        unsafe { get_attribute((&raw mut owner).cast(), CONTEXT, address) }.is_ok() && owner == context
    });
    if let (true, Some(pop)) = (pushed, pop) {
        // SAFETY: the pointer is valid; what was pushed above is on top.
        let _ = unsafe { pop(&raw mut current) };
    }
}

/// Whether the driver says that `address` is nobody's. A thread without a context gets no answer.
fn is_unknown(address: u64) -> bool {
    const MEMORY_TYPE: c_uint = 2; // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    let mut kind: c_uint = 0;
    // SAFETY: the pointer is valid for the attribute, which is an unsigned number.
    let asked = |get: types::cuPointerGetAttribute| unsafe { get((&raw mut kind).cast(), MEMORY_TYPE, address) };
    real!(cuPointerGetAttribute).map(asked) == Some(CUresult::INVALID_VALUE)
}

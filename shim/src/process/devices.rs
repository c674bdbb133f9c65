//! The driver's answers about devices: their ordinals and UUIDs.

use super::Process;
use crate::hooks::real;
use aliquot_abi::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUdevice, CUresult, CUstream, CUuuid};

/// The ordinal of the device of the calling thread's context, as the driver says.
pub(crate) fn current_ordinal() -> Result<CUdevice, CUresult> {
    let mut device = 0;
    let get = real!(cuCtxGetDevice).ok_or(CUresult::NOT_FOUND)?;
    // SAFETY: the pointer is valid.
    let result = unsafe { get(&raw mut device) };
    if result.is_ok() { Ok(device) } else { Err(result) }
}

/// The ordinal of the device on which `stream` runs.
pub(crate) fn ordinal_of_stream(process: &Process, stream: CUstream) -> Result<CUdevice, CUresult> {
    // The default streams are those of the calling thread's context.
    if process.ordinals() == 1 || [CUstream::NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&stream) {
        return process.current_ordinal();
    }
    if let Some(get_device) = real!(cuStreamGetDevice) {
        let mut device = 0;
        // SAFETY: the pointer is valid; the driver checks the stream.
        if unsafe { get_device(stream, &raw mut device) }.is_ok() {
            return Ok(device);
        }
    }
    // For drivers before CUDA 12.8.
    let (mut context, mut popped) = (CUcontext::NULL, CUcontext::NULL);
    let get = real!(cuStreamGetCtx).ok_or(CUresult::NOT_FOUND)?;
    let (push, pop) = (real!(cuCtxPushCurrent_v2), real!(cuCtxPopCurrent_v2));
    let (push, pop) = (push.ok_or(CUresult::NOT_FOUND)?, pop.ok_or(CUresult::NOT_FOUND)?);
    let get_current = real!(cuCtxGetCurrent).ok_or(CUresult::NOT_FOUND)?;
    // SAFETY: the pointers are valid; the driver checks the handles; what is pushed is popped.
    unsafe {
        let found = get(stream, &raw mut context);
        if !found.is_ok() {
            return Err(found);
        }
        let mut current = CUcontext::NULL;
        // Mostly the context is current on this thread already.
        if get_current(&raw mut current).is_ok() && current == context {
            return current_ordinal();
        }
        let pushed = push(context);
        if !pushed.is_ok() {
            return Err(pushed);
        }
        let ordinal = current_ordinal();
        let _ = pop(&raw mut popped);
        ordinal
    }
}

/// The UUID of device `ordinal`.
pub(super) fn uuid(ordinal: CUdevice) -> Option<CUuuid> {
    let mut device = 0;
    let mut uuid = CUuuid { bytes: [0; 16] };
    // The second version tells MIG instances apart; drivers before CUDA 11.4 have only the first.
    let get_uuid = real!(cuDeviceGetUuid_v2).or_else(|| real!(cuDeviceGetUuid))?;
    let get_device = real!(cuDeviceGet)?;
    // SAFETY: the pointers are valid.
    let found = unsafe { get_device(&raw mut device, ordinal).is_ok() && get_uuid(&raw mut uuid, device).is_ok() };
    found.then_some(uuid)
}

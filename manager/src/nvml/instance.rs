//! The instance numbers of a MIG device, and the GPU instance of a critical error. The wrapper of NVML lacks both, so
//! NVML is called directly.

use std::ffi::c_uint;
use std::mem::MaybeUninit;

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::event::EventSet;
use nvml_wrapper_sys::bindings::nvmlEventData_t;

/// NVML's value for a number that does not exist.
const NONE: c_uint = c_uint::MAX;

/// The numbers of the GPU instance and the compute instance of `device`; `None` where NVML does not say.
pub(super) fn numbers(device: &Device<'_>) -> (Option<u32>, Option<u32>) {
    let library = device.nvml().lib();
    // SAFETY: the handle is used only while `device`, and with it NVML, lives.
    let handle = unsafe { device.handle() };
    let mut number: c_uint = 0;
    let gpu_instance = library.nvmlDeviceGetGpuInstanceId.as_ref().ok().and_then(|ask| {
        // SAFETY: the handle is one that NVML gave, and the number is written to a live local.
        (unsafe { ask(handle, &raw mut number) } == 0).then_some(number)
    });
    let compute_instance = library.nvmlDeviceGetComputeInstanceId.as_ref().ok().and_then(|ask| {
        // SAFETY: the same handle, and the number is written to the same live local.
        (unsafe { ask(handle, &raw mut number) } == 0).then_some(number)
    });
    (gpu_instance, compute_instance)
}

/// Waits until the driver reports a critical error to `set`, which must be registered for critical errors only. Returns
/// the error's number, and the GPU instance that has it.
pub(super) fn wait_for_xid(set: &EventSet<'_>, timeout_ms: u32) -> Result<(u64, Option<u32>), NvmlError> {
    let wait = nvml_sym(set.nvml.lib().nvmlEventSetWait_v2.as_ref())?;
    let mut event = MaybeUninit::<nvmlEventData_t>::zeroed();
    // SAFETY: the handle is used only while the set lives, and NVML writes to a live local.
    nvml_try(unsafe { wait(set.handle(), event.as_mut_ptr(), timeout_ms) })?;
    // SAFETY: a plain structure that was zeroed, and zeros are valid for it, whatever NVML wrote.
    let event = unsafe { event.assume_init() };
    Ok((event.eventData, Some(event.gpuInstanceId).filter(|number| *number != NONE)))
}

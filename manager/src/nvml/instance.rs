//! Which instance a MIG device is. The wrapper of NVML does not ask for it, so NVML is called by itself.

use std::ffi::c_uint;

use nvml_wrapper::Device;

/// The numbers of the GPU instance and of the compute instance that `device` is; `None` where NVML does not tell.
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
        // SAFETY: as above.
        (unsafe { ask(handle, &raw mut number) } == 0).then_some(number)
    });
    (gpu_instance, compute_instance)
}

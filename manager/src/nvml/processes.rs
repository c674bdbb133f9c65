//! The processes on a device.
//!
//! The wrapper of NVML asks for the third version of the lists. From 535.43 to 535.86 the driver's entries of that version
//! are longer than the wrapper's: numbers from the second entry on are wrong, and the driver writes beyond the wrapper's
//! memory. Entries of the second version are the same on every driver, so NVML is called directly for these.

use std::ffi::c_uint;

use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlProcessInfo_v2_t, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, nvmlReturn_t,
};

use super::NvmlDevice;

/// Room for processes beyond those that the driver has just counted: others may start.
const MORE: usize = 16;
/// How often the driver is asked while there are more processes each time.
const ATTEMPTS: usize = 4;
const EMPTY: nvmlProcessInfo_v2_t =
    nvmlProcessInfo_v2_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };

/// A function of NVML that lists processes.
type List = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t;

/// The processes with a compute context.
pub(super) fn computing(device: &NvmlDevice) -> Result<Vec<ProcessInfo>, NvmlError> {
    listed(device, *nvml_sym(device.nvml().lib().nvmlDeviceGetComputeRunningProcesses_v2.as_ref())?)
}

/// The clients of MPS with a compute context.
pub(super) fn mps_clients(device: &NvmlDevice) -> Result<Vec<ProcessInfo>, NvmlError> {
    listed(device, *nvml_sym(device.nvml().lib().nvmlDeviceGetMPSComputeRunningProcesses_v2.as_ref())?)
}

/// The processes with a graphics context.
pub(super) fn drawing(device: &NvmlDevice) -> Result<Vec<ProcessInfo>, NvmlError> {
    listed(device, *nvml_sym(device.nvml().lib().nvmlDeviceGetGraphicsRunningProcesses_v2.as_ref())?)
}

fn listed(device: &NvmlDevice, list: List) -> Result<Vec<ProcessInfo>, NvmlError> {
    let mut entries = vec![EMPTY; MORE];
    for _ in 0..ATTEMPTS {
        let mut count = entries.len() as c_uint;
        // SAFETY: the handle is used only while `device`, and with it NVML, lives. The array has room for `count`
        // entries of the type that this version writes.
        let answer = unsafe { list(device.handle(), &raw mut count, entries.as_mut_ptr()) };
        if answer == nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE {
            entries.resize(count as usize + MORE, EMPTY);
            continue;
        }
        nvml_try(answer)?;
        entries.truncate(count as usize);
        return Ok(entries.into_iter().map(ProcessInfo::from).collect());
    }
    Err(NvmlError::InsufficientSize(None))
}

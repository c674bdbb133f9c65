//! Memory of the devices.

use core::ffi::c_void;

use aliquot_abi::nvml::{NVML_MEMORY_V2, nvmlBAR1Memory_t, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};

use crate::Done;
use crate::caller::{get, put};
use crate::session::{index_of, machine, not_supported};

const BAR1_BYTES: u64 = 128 << 30;

fn memory(handle: nvmlDevice_t) -> Done<nvmlMemory_v2_t> {
    let (machine, index) = (machine()?, index_of(handle)?);
    let device = &machine.config().devices[index];
    // Programs can use all of an instance's memory.
    let reserved = if device.is_mig { 0 } else { machine.config().reserved_memory_bytes };
    let used = machine.device_use(index).memory_bytes;
    let (total, free) = (device.memory_bytes.saturating_add(reserved), device.memory_bytes.saturating_sub(used));
    Ok(nvmlMemory_v2_t { version: NVML_MEMORY_V2, total, reserved, free, used })
}

/// In this version reserved memory counts as used.
pub(crate) fn nvmlDeviceGetMemoryInfo(handle: nvmlDevice_t, target: *mut nvmlMemory_t) -> Done {
    let nvmlMemory_v2_t { total, reserved, free, used, .. } = memory(handle)?;
    put(target, nvmlMemory_t { total, free, used: used.saturating_add(reserved) })
}

pub(crate) fn nvmlDeviceGetMemoryInfo_v2(handle: nvmlDevice_t, target: *mut nvmlMemory_v2_t) -> Done {
    let info = memory(handle)?;
    // Only the version is read before it is checked, because the caller's structure may be smaller.
    if get(target.cast::<u32>())? != NVML_MEMORY_V2 {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    put(target, info)
}

pub(crate) fn nvmlDeviceGetBAR1MemoryInfo(handle: nvmlDevice_t, target: *mut nvmlBAR1Memory_t) -> Done {
    index_of(handle)?;
    put(target, nvmlBAR1Memory_t { total: BAR1_BYTES, free: BAR1_BYTES, used: 0 })
}

/// Confidential computing is off.
pub(crate) fn nvmlDeviceGetConfComputeProtectedMemoryUsage(handle: nvmlDevice_t, _target: *mut nvmlMemory_t) -> Done {
    not_supported(handle)
}

pub(crate) fn nvmlDeviceGetConfComputeMemSizeInfo(handle: nvmlDevice_t, _info: *mut c_void) -> Done {
    not_supported(handle)
}

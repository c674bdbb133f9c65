//! MIG: a simulated device is capable of it, and it is off.

use core::ffi::c_uint;

use aliquot_abi::nvml::{nvmlDevice_t, nvmlReturn_t};

use crate::Done;
use crate::caller::put;
use crate::session::Device;

pub(crate) fn nvmlDeviceGetMigMode(device: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) -> Done {
    Device::of(device)?;
    put(current, 0)?;
    put(pending, 0)
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(device: nvmlDevice_t, is_mig: *mut c_uint) -> Done {
    Device::of(device)?;
    put(is_mig, 0)
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(device: nvmlDevice_t, count: *mut c_uint) -> Done {
    Device::of(device)?;
    put(count, 7)
}

pub(crate) fn nvmlDeviceGetMigDeviceHandleByIndex(device: nvmlDevice_t, _index: c_uint, _mig: *mut nvmlDevice_t) -> Done {
    Device::of(device)?;
    Err(nvmlReturn_t::NOT_FOUND)
}

/// Questions to a MIG device, which no handle is.
pub(crate) fn of_mig_device<T>(device: nvmlDevice_t, _answer: *mut T) -> Done {
    Device::of(device)?;
    Err(nvmlReturn_t::INVALID_ARGUMENT)
}

pub(crate) use of_mig_device as nvmlDeviceGetComputeInstanceId;
pub(crate) use of_mig_device as nvmlDeviceGetDeviceHandleFromMigDeviceHandle;
pub(crate) use of_mig_device as nvmlDeviceGetGpuInstanceId;

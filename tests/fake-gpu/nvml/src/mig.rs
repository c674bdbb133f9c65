//! MIG: a device whose UUID begins with `MIG-` is an instance of a GPU. Its GPU is not there, so that an instance is found as
//! a GPU is; each is the first compute instance of a GPU instance of its own.

use core::ffi::c_uint;

use aliquot_abi::nvml::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlReturn_t};

use crate::Done;
use crate::caller::put;
use crate::session::{device, index_of, not_supported};

/// Which instances a device is.
pub(crate) struct Instances {
    pub(crate) gpu: c_uint,
    pub(crate) compute: c_uint,
}

/// Those of a device; for a whole GPU, what NVML says for none.
pub(crate) fn instances(handle: nvmlDevice_t) -> Done<Instances> {
    const NONE: c_uint = c_uint::MAX;
    let is_mig = device(handle)?.is_mig;
    Ok(if is_mig {
        Instances { gpu: index_of(handle)? as c_uint + 1, compute: 0 }
    } else {
        Instances { gpu: NONE, compute: NONE }
    })
}

/// Refuses a question that only an instance can answer.
fn check_mig(handle: nvmlDevice_t) -> Done {
    if device(handle)?.is_mig { Ok(()) } else { Err(nvmlReturn_t::NOT_SUPPORTED) }
}

pub(crate) fn nvmlDeviceGetAttributes_v2(handle: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t) -> Done {
    check_mig(handle)?;
    let device = device(handle)?;
    put(
        attributes,
        nvmlDeviceAttributes_t {
            multiprocessor_count: device.sm_count,
            gpu_instance_slice_count: 1,
            compute_instance_slice_count: 1,
            memory_size_mib: device.memory_bytes >> 20,
            ..Default::default()
        },
    )
}

pub(crate) fn nvmlDeviceGetMigMode(handle: nvmlDevice_t, _current: *mut c_uint, _pending: *mut c_uint) -> Done {
    not_supported(handle)
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(handle: nvmlDevice_t, is_mig: *mut c_uint) -> Done {
    put(is_mig, device(handle)?.is_mig.into())
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(handle: nvmlDevice_t, count: *mut c_uint) -> Done {
    index_of(handle)?;
    put(count, 0)
}

pub(crate) fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: nvmlDevice_t,
    _index: c_uint,
    _target: *mut nvmlDevice_t,
) -> Done {
    not_supported(handle)
}

pub(crate) fn nvmlDeviceGetGpuInstanceId(handle: nvmlDevice_t, id: *mut c_uint) -> Done {
    check_mig(handle)?;
    put(id, instances(handle)?.gpu)
}

pub(crate) fn nvmlDeviceGetComputeInstanceId(handle: nvmlDevice_t, id: *mut c_uint) -> Done {
    check_mig(handle)?;
    put(id, instances(handle)?.compute)
}

pub(crate) fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: nvmlDevice_t, _target: *mut nvmlDevice_t) -> Done {
    not_supported(handle)
}

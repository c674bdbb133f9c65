//! MIG: GPUs in MIG mode and their instances. Each instance is the first compute instance of its own GPU instance. A
//! device whose UUID begins with `MIG-`, but whose GPU is not a device of the machine, is listed like a GPU.

use core::ffi::c_uint;

use aliquot_abi::nvml::{nvmlDevice_t, nvmlDeviceAttributes_t, nvmlReturn_t};
use aliquot_fake_machine::Machine;

use crate::Done;
use crate::caller::put;
use crate::session::{device, handle as handle_of, index_of, machine};

/// Maximum number of a GPU's GPU instances.
const INSTANCES_MAX: c_uint = 7;

/// The ids of a device's GPU instance and compute instance.
pub(crate) struct Instances {
    pub(crate) gpu: c_uint,
    pub(crate) compute: c_uint,
}

/// The instance ids of a handle's device.
pub(crate) fn instances(handle: nvmlDevice_t) -> Done<Instances> {
    Ok(instances_of(machine()?, index_of(handle)?))
}

/// The instance ids of a device; for a whole GPU, NVML's value for none.
pub(crate) fn instances_of(machine: &Machine, index: usize) -> Instances {
    const NONE: c_uint = c_uint::MAX;
    if machine.config().devices[index].is_mig {
        Instances { gpu: index as c_uint + 1, compute: 0 }
    } else {
        Instances { gpu: NONE, compute: NONE }
    }
}

/// Refuses a query that only instances support.
fn check_mig(handle: nvmlDevice_t) -> Done {
    if device(handle)?.is_mig { Ok(()) } else { Err(nvmlReturn_t::NOT_SUPPORTED) }
}

/// Fails while the driver answers no question about MIG.
fn check_answers(handle: nvmlDevice_t) -> Done {
    if machine()?.is_mig_silent(index_of(handle)?) { Err(nvmlReturn_t::TIMEOUT) } else { Ok(()) }
}

/// Refuses GPUs in MIG mode and their instances, for which NVML gives no utilisation.
pub(crate) fn check_no_mig(handle: nvmlDevice_t) -> Done {
    let is_instance = device(handle)?.gpu.is_some();
    if is_instance || machine()?.is_in_mig_mode(index_of(handle)?) {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    Ok(())
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

/// The pending mode equals the current one, because a change takes effect at once.
pub(crate) fn nvmlDeviceGetMigMode(handle: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) -> Done {
    if !device(handle)?.has_mig_mode {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    check_answers(handle)?;
    let mode = c_uint::from(machine()?.is_in_mig_mode(index_of(handle)?));
    put(current, mode)?;
    put(pending, mode)
}

pub(crate) fn nvmlDeviceIsMigDeviceHandle(handle: nvmlDevice_t, is_mig: *mut c_uint) -> Done {
    put(is_mig, device(handle)?.is_mig.into())
}

pub(crate) fn nvmlDeviceGetMaxMigDeviceCount(handle: nvmlDevice_t, count: *mut c_uint) -> Done {
    put(count, if device(handle)?.has_mig_mode { INSTANCES_MAX } else { 0 })
}

pub(crate) fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: nvmlDevice_t,
    index: c_uint,
    target: *mut nvmlDevice_t,
) -> Done {
    let gpu = index_of(handle)?;
    if !device(handle)?.has_mig_mode {
        return Err(nvmlReturn_t::NOT_SUPPORTED);
    }
    check_answers(handle)?;
    let machine = machine()?;
    let devices = machine.config().devices.iter().enumerate();
    let mut instances = devices.filter(|(index, device)| device.gpu == Some(gpu) && machine.is_present(*index));
    let (instance, _) = instances.nth(index as usize).ok_or(nvmlReturn_t::NOT_FOUND)?;
    put(target, handle_of(instance))
}

pub(crate) fn nvmlDeviceGetGpuInstanceId(handle: nvmlDevice_t, id: *mut c_uint) -> Done {
    check_mig(handle)?;
    put(id, instances(handle)?.gpu)
}

pub(crate) fn nvmlDeviceGetComputeInstanceId(handle: nvmlDevice_t, id: *mut c_uint) -> Done {
    check_mig(handle)?;
    put(id, instances(handle)?.compute)
}

pub(crate) fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: nvmlDevice_t, target: *mut nvmlDevice_t) -> Done {
    put(target, handle_of(device(handle)?.gpu.ok_or(nvmlReturn_t::NOT_SUPPORTED)?))
}

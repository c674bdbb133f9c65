//! Who uses the devices, and how much.

use core::ffi::{c_uint, c_void};
use std::time::SystemTime;

use aliquot_abi::nvml::{
    nvmlDevice_t, nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessUtilizationSample_t, nvmlReturn_t,
    nvmlUtilization_t,
};
use aliquot_fake_machine::ProcessUse;

use crate::Done;
use crate::caller::{put, put_list};
use crate::session::{index_of, machine, not_supported};

const NO_INSTANCE: c_uint = u32::MAX;
const SAMPLING_PERIOD_US: c_uint = 1_000_000;

/// The processes that can be seen from here: those in other process id namespaces have no id.
fn processes(handle: nvmlDevice_t) -> Done<impl Iterator<Item = ProcessUse>> {
    let processes = machine()?.device_use(index_of(handle)?).processes;
    Ok(processes.into_iter().filter(|process| process.pid != 0))
}

/// The processes with a context on the device.
fn running(handle: nvmlDevice_t) -> Done<impl Iterator<Item = ProcessUse>> {
    Ok(processes(handle)?.filter(|process| process.contexts > 0 || process.memory_bytes > 0))
}

fn compute_processes(handle: nvmlDevice_t) -> Done<Vec<nvmlProcessInfo_t>> {
    let info = |process: ProcessUse| nvmlProcessInfo_t {
        pid: process.pid,
        used_gpu_memory: process.memory_bytes,
        gpu_instance_id: NO_INSTANCE,
        compute_instance_id: NO_INSTANCE,
    };
    Ok(running(handle)?.map(info).collect())
}

fn compute_processes_v1(handle: nvmlDevice_t) -> Done<Vec<nvmlProcessInfo_v1_t>> {
    let info = |process: ProcessUse| nvmlProcessInfo_v1_t { pid: process.pid, used_gpu_memory: process.memory_bytes };
    Ok(running(handle)?.map(info).collect())
}

/// No process draws, and there is no MPS server.
fn none<T>(handle: nvmlDevice_t) -> Done<Vec<T>> {
    index_of(handle)?;
    Ok(Vec::new())
}

macro_rules! process_lists {
    ($($name:ident: $info:ty = $list:ident;)*) => {$(
        pub(crate) fn $name(handle: nvmlDevice_t, count: *mut c_uint, infos: *mut $info) -> Done {
            put_list(count, infos, &$list(handle)?)
        }
    )*};
}

process_lists! {
    nvmlDeviceGetComputeRunningProcesses: nvmlProcessInfo_v1_t = compute_processes_v1;
    nvmlDeviceGetComputeRunningProcesses_v2: nvmlProcessInfo_t = compute_processes;
    nvmlDeviceGetComputeRunningProcesses_v3: nvmlProcessInfo_t = compute_processes;
    nvmlDeviceGetGraphicsRunningProcesses: nvmlProcessInfo_v1_t = none;
    nvmlDeviceGetGraphicsRunningProcesses_v2: nvmlProcessInfo_t = none;
    nvmlDeviceGetGraphicsRunningProcesses_v3: nvmlProcessInfo_t = none;
    nvmlDeviceGetMPSComputeRunningProcesses: nvmlProcessInfo_v1_t = none;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: nvmlProcessInfo_t = none;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: nvmlProcessInfo_t = none;
}

pub(crate) fn nvmlDeviceGetUtilizationRates(handle: nvmlDevice_t, target: *mut nvmlUtilization_t) -> Done {
    let gpu = machine()?.device_use(index_of(handle)?).utilization_percent;
    // Kernels here are not known to use memory or not; copies are not told from them.
    put(target, nvmlUtilization_t { gpu, memory: 0 })
}

pub(crate) fn nvmlDeviceGetEncoderUtilization(
    handle: nvmlDevice_t,
    percent: *mut c_uint,
    period_us: *mut c_uint,
) -> Done {
    index_of(handle)?;
    put(percent, 0)?;
    put(period_us, SAMPLING_PERIOD_US)
}

pub(crate) fn nvmlDeviceGetDecoderUtilization(
    handle: nvmlDevice_t,
    percent: *mut c_uint,
    period_us: *mut c_uint,
) -> Done {
    nvmlDeviceGetEncoderUtilization(handle, percent, period_us)
}

pub(crate) fn nvmlDeviceGetProcessUtilization(
    handle: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen_us: u64,
) -> Done {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time_stamp = since_1970.as_micros() as u64;
    let active = processes(handle)?.filter(|process| process.utilization_percent > 0 && time_stamp > last_seen_us);
    let sample = |process: ProcessUse| nvmlProcessUtilizationSample_t {
        pid: process.pid,
        time_stamp,
        sm_util: process.utilization_percent,
        ..Default::default()
    };
    let found = active.map(sample).collect::<Vec<_>>();
    if found.is_empty() {
        put(count, 0)?;
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    put_list(count, samples, &found)
}

/// There is no history of samples but the last second's, which the functions above tell.
pub(crate) fn nvmlDeviceGetSamples(
    handle: nvmlDevice_t,
    _kind: c_uint,
    _last_seen_us: u64,
    _value_type: *mut c_uint,
    _count: *mut c_uint,
    _samples: *mut c_void,
) -> Done {
    not_supported(handle)
}

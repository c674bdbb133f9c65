//! Utilisation of the devices in the last second, in total and for each process, from the machine's history.

use core::ffi::c_uint;
use std::time::SystemTime;

use aliquot_abi::nvml::{
    NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES, NVML_PROCESSES_UTILIZATION_INFO_V1,
    NVML_VALUE_TYPE_UNSIGNED_INT, nvmlDevice_t, nvmlGpuDynamicPstatesInfo_t, nvmlGpuDynamicPstatesUtilization_t,
    nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_v1_t, nvmlReturn_t,
    nvmlSample_t, nvmlUtilization_t,
};
use aliquot_fake_machine::ProcessUse;

use crate::Done;
use crate::caller::{get, put, put_list};
use crate::mig::check_no_mig;
use crate::processes::processes;
use crate::session::{index_of, machine, not_supported};

const SAMPLING_PERIOD_US: c_uint = 1_000_000;

/// The memory utilisation is always 0: it is not known whether kernels use memory, and copies are not counted
/// separately.
fn rates(handle: nvmlDevice_t) -> Done<nvmlUtilization_t> {
    check_no_mig(handle)?;
    let gpu = machine()?.device_use(index_of(handle)?).utilization_percent;
    Ok(nvmlUtilization_t { gpu, memory: 0 })
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

pub(crate) fn nvmlDeviceGetUtilizationRates(handle: nvmlDevice_t, target: *mut nvmlUtilization_t) -> Done {
    put(target, rates(handle)?)
}

pub(crate) fn nvmlDeviceGetDynamicPstatesInfo(handle: nvmlDevice_t, target: *mut nvmlGpuDynamicPstatesInfo_t) -> Done {
    let rates = rates(handle)?;
    let mut info = nvmlGpuDynamicPstatesInfo_t::default();
    for (engine, percentage) in info.utilization.iter_mut().zip([rates.gpu, rates.memory]) {
        *engine = nvmlGpuDynamicPstatesUtilization_t { is_present: 1, percentage, ..Default::default() };
    }
    put(target, info)
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

/// Samples of the processes that used the device in the last second. Fails if none is newer than `last_seen_us`.
fn busy<T>(handle: nvmlDevice_t, last_seen_us: u64, sample: impl Fn(ProcessUse, u64) -> T) -> Done<Vec<T>> {
    check_no_mig(handle)?;
    let now_us = now_us();
    let busy = processes(handle)?.filter(|process| process.utilization_percent > 0 && now_us > last_seen_us);
    let found = busy.map(|process| sample(process, now_us)).collect::<Vec<_>>();
    if found.is_empty() { Err(nvmlReturn_t::NOT_FOUND) } else { Ok(found) }
}

pub(crate) fn nvmlDeviceGetProcessUtilization(
    handle: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen_us: u64,
) -> Done {
    let sample = |process: ProcessUse, time_stamp| nvmlProcessUtilizationSample_t {
        pid: process.pid,
        time_stamp,
        sm_util: process.utilization_percent,
        ..Default::default()
    };
    match busy(handle, last_seen_us, sample) {
        Ok(found) => put_list(count, samples, &found),
        Err(error) => put(count, 0).and(Err(error)),
    }
}

pub(crate) fn nvmlDeviceGetProcessesUtilizationInfo(
    handle: nvmlDevice_t,
    info: *mut nvmlProcessesUtilizationInfo_v1_t,
) -> Done {
    index_of(handle)?;
    // Only the version is read before it is checked.
    if get(info.cast::<c_uint>())? != NVML_PROCESSES_UTILIZATION_INFO_V1 {
        return Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH);
    }
    let nvmlProcessesUtilizationInfo_v1_t { last_seen_time_stamp, proc_util_array, .. } = get(info)?;
    let sample = |process: ProcessUse, time_stamp| nvmlProcessUtilizationInfo_v1_t {
        time_stamp,
        pid: process.pid,
        sm_util: process.utilization_percent,
        ..Default::default()
    };
    let count = info.wrapping_byte_add(core::mem::offset_of!(nvmlProcessesUtilizationInfo_v1_t, process_samples_count));
    match busy(handle, last_seen_time_stamp, sample) {
        Ok(found) => put_list(count.cast(), proc_util_array, &found),
        Err(error) => put(count.cast::<c_uint>(), 0).and(Err(error)),
    }
}

/// Returns one current sample, because the history covers only the last second. Power and clocks have no samples.
pub(crate) fn nvmlDeviceGetSamples(
    handle: nvmlDevice_t,
    kind: c_uint,
    last_seen_us: u64,
    value_kind: *mut c_uint,
    count: *mut c_uint,
    samples: *mut nvmlSample_t,
) -> Done {
    let rates = rates(handle)?;
    let percent = match kind {
        NVML_GPU_UTILIZATION_SAMPLES => rates.gpu,
        NVML_MEMORY_UTILIZATION_SAMPLES => rates.memory,
        _ => return not_supported(handle),
    };
    let time_stamp = now_us();
    if time_stamp <= last_seen_us {
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    put(value_kind, NVML_VALUE_TYPE_UNSIGNED_INT)?;
    if samples.is_null() {
        return put(count, 1);
    }
    if get(count)? == 0 {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    put_list(count, samples, &[nvmlSample_t { time_stamp, sample_value: percent.into() }])
}

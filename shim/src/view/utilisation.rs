//! How busy the device is with the container's own work, relative to the container's limit.
//!
//! 100 percent is the slice's core limit: a container that is held back by its limit sees a fully busy device, whatever
//! other containers do. The device does not tell each user's share of the time in which memory was read or written, so
//! a running kernel is assumed to do so all the time.

use super::processes::for_each_own_process;
use super::{Listing, Share, Sight, is_answered};
use crate::clock;
use crate::hooks::types;
use aliquot_abi::nvml::{
    NVML_GPU_UTILIZATION_SAMPLES, NVML_MEMORY_UTILIZATION_SAMPLES, NVML_PROCESSES_UTILIZATION_INFO_V1, c_uint,
    nvmlDevice_t, nvmlGpuDynamicPstatesInfo_t, nvmlProcessUtilizationInfo_v1_t, nvmlProcessUtilizationSample_t,
    nvmlProcessesUtilizationInfo_v1_t, nvmlReturn_t, nvmlSample_t, nvmlUtilization_t,
};
use core::sync::atomic::Ordering;

impl Share {
    /// `used_permille`, in thousandths of the device's time, as a percentage of the container's limit.
    fn percent_of_limit(&self, used_permille: u64) -> c_uint {
        let limit_percent = u64::from(self.limits.core_limit_percent.load(Ordering::Relaxed));
        let rounded = used_permille.saturating_mul(10).saturating_add(limit_percent / 2);
        rounded.checked_div(limit_percent).map_or(0, |percent| percent.min(100) as c_uint)
    }
}

impl Sight {
    /// The utilisation to show, in percent; `None`: the real one.
    #[cold]
    #[inline(never)]
    fn percent(&self) -> Option<c_uint> {
        match self {
            Sight::Whole => None,
            Sight::Part(share) => Some(share.percent_of_limit(share.used_permille)),
            Sight::Nothing => Some(0),
        }
    }
}

/// `nvmlDeviceGetUtilizationRates`.
pub(crate) unsafe fn utilization_rates(
    real: types::nvmlDeviceGetUtilizationRates,
    device: nvmlDevice_t,
    rates: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    let result = unsafe { real(device, rates) };
    if !result.is_ok() {
        return result;
    }
    // SAFETY: the call has succeeded, so the pointer is valid.
    if let (Some(rates), Some(percent)) = (unsafe { rates.as_mut() }, Sight::of(device).percent()) {
        *rates = nvmlUtilization_t { gpu: percent, memory: percent };
    }
    result
}

/// `nvmlDeviceGetDynamicPstatesInfo`: the utilisation of each engine. A slice has a part of the first two engines only.
pub(crate) unsafe fn dynamic_pstates(
    real: types::nvmlDeviceGetDynamicPstatesInfo,
    device: nvmlDevice_t,
    info: *mut nvmlGpuDynamicPstatesInfo_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    let result = unsafe { real(device, info) };
    if !result.is_ok() {
        return result;
    }
    // SAFETY: the call has succeeded, so the pointer is valid.
    if let (Some(info), Some(percent)) = (unsafe { info.as_mut() }, Sight::of(device).percent()) {
        for engine in info.utilization.iter_mut().take(2).filter(|engine| engine.is_present != 0) {
            engine.percentage = percent;
        }
    }
    result
}

/// `nvmlDeviceGetSamples`: samples of utilisation keep their times and get the current value.
pub(crate) unsafe fn samples(
    real: types::nvmlDeviceGetSamples,
    device: nvmlDevice_t,
    kind: c_uint,
    last_seen_us: u64,
    value_kind: *mut c_uint,
    count: *mut c_uint,
    samples: *mut nvmlSample_t,
) -> nvmlReturn_t {
    // SAFETY: the host's call.
    let result = unsafe { real(device, kind, last_seen_us, value_kind, count, samples) };
    let is_utilisation = matches!(kind, NVML_GPU_UTILIZATION_SAMPLES | NVML_MEMORY_UTILIZATION_SAMPLES);
    if !result.is_ok() || !is_utilisation || samples.is_null() {
        return result;
    }
    // SAFETY: the call has succeeded, so the pointer is valid.
    if let (Some(&mut count), Some(percent)) = (unsafe { count.as_mut() }, Sight::of(device).percent()) {
        for number in 0..count as usize {
            // SAFETY: the call has written `count` samples.
            unsafe { (*samples.wrapping_add(number)).sample_value = u64::from(percent) };
        }
    }
    result
}

/// Lists the processes that used the device in the last second; none if the caller has seen a newer sample.
fn list_used_lately<T>(
    sight: &Sight,
    last_seen_us: u64,
    mut list: Listing<'_, T>,
    sample: impl Fn(u32, u64, c_uint) -> T,
) -> nvmlReturn_t {
    let now_us = clock::since_1970_us();
    if let (Sight::Part(share), true) = (sight, now_us > last_seen_us) {
        for_each_own_process(share, &mut |process| {
            if process.used_permille > 0 {
                list.push(sample(process.pid, now_us, share.percent_of_limit(process.used_permille)));
            }
        });
    }
    if *list.count == 0 { nvmlReturn_t::NOT_FOUND } else { list.result() }
}

/// `nvmlDeviceGetProcessUtilization`.
pub(crate) unsafe fn process_utilization(
    real: types::nvmlDeviceGetProcessUtilization,
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen_us: u64,
) -> nvmlReturn_t {
    let sight = Sight::of(device);
    // SAFETY: a pointer that is not null is the host's count.
    let (false, Some(count)) = (matches!(sight, Sight::Whole), (unsafe { count.as_mut() })) else {
        // SAFETY: the host's call.
        return unsafe { real(device, samples, count, last_seen_us) };
    };
    let mut none = 0;
    // SAFETY: the pointer to the count is valid; without an array, NVML writes only the room that is needed.
    let answer = unsafe { real(device, core::ptr::null_mut(), &raw mut none, 0) };
    if !is_answered(answer) && answer != nvmlReturn_t::NOT_FOUND {
        return answer;
    }
    let sample = |pid, time_stamp, percent| nvmlProcessUtilizationSample_t {
        pid,
        time_stamp,
        sm_util: percent,
        mem_util: percent,
        ..Default::default()
    };
    // SAFETY: the host's array and its room.
    list_used_lately(&sight, last_seen_us, unsafe { Listing::begin(count, samples) }, sample)
}

/// `nvmlDeviceGetProcessesUtilizationInfo`.
pub(crate) unsafe fn processes_utilization(
    real: types::nvmlDeviceGetProcessesUtilizationInfo,
    device: nvmlDevice_t,
    info: *mut nvmlProcessesUtilizationInfo_v1_t,
) -> nvmlReturn_t {
    let sight = Sight::of(device);
    if info.is_null() || matches!(sight, Sight::Whole) {
        // SAFETY: the host's call.
        return unsafe { real(device, info) };
    }
    // SAFETY: not null; every version of the structure begins with its version.
    if unsafe { info.cast::<c_uint>().read() } != NVML_PROCESSES_UTILIZATION_INFO_V1 {
        // A later version, whose layout is not known here.
        return nvmlReturn_t::ARGUMENT_VERSION_MISMATCH;
    }
    // SAFETY: the host's structure, of this version.
    let info = unsafe { &mut *info };
    let mut question = nvmlProcessesUtilizationInfo_v1_t {
        process_samples_count: 0,
        last_seen_time_stamp: 0,
        proc_util_array: core::ptr::null_mut(),
        ..*info
    };
    // SAFETY: the structure is valid, and says that there is no room.
    let answer = unsafe { real(device, &raw mut question) };
    if !is_answered(answer) && answer != nvmlReturn_t::NOT_FOUND {
        return answer;
    }
    let sample = |pid, time_stamp, percent| nvmlProcessUtilizationInfo_v1_t {
        time_stamp,
        pid,
        sm_util: percent,
        mem_util: percent,
        ..Default::default()
    };
    // SAFETY: the host's array and its room.
    let list = unsafe { Listing::begin(&mut info.process_samples_count, info.proc_util_array) };
    list_used_lately(&sight, info.last_seen_time_stamp, list, sample)
}

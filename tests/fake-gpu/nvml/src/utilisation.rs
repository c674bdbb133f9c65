//! Utilisation: how much of the last sample period a device and its processes were at work.
//!
//! NVML samples by itself; this library takes a sample when it is asked, and keeps those of the last two seconds. A first
//! question is therefore answered after a short sample period of its own.

use core::ffi::{c_uint, c_void};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aliquot_abi::nvml::{nvmlDevice_t, nvmlProcessUtilizationSample_t, nvmlReturn_t, nvmlUtilization_t};
use aliquot_fake_machine::{DEVICES_MAX, DeviceUse, now_ns, sleep_until_ns};

use crate::Done;
use crate::caller::{put, put_list};
use crate::session::Device;

/// The device's time used, at one instant.
struct Sample {
    at_ns: u64,
    device: DeviceUse,
}

/// The samples of each device, oldest first.
static SAMPLES: Mutex<[VecDeque<Sample>; DEVICES_MAX]> = Mutex::new([const { VecDeque::new() }; DEVICES_MAX]);

/// NVML's sample period on recent parts lies between this and a second.
const PERIOD_NS: u64 = 100_000_000;
const KEPT_NS: u64 = 2_000_000_000;

/// Takes a sample, and calls `with` with the newest one that is at least a period older, and the new one.
fn over_last_period<T>(device: Device, with: impl Fn(&Sample, &Sample) -> T) -> T {
    loop {
        let newest = Sample { at_ns: now_ns(), device: device.machine.device_use(device.index) };
        let mut all = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
        let samples = &mut all[device.index];
        samples.retain(|sample| newest.at_ns.saturating_sub(sample.at_ns) <= KEPT_NS);
        let older = samples.iter().rev().find(|sample| newest.at_ns - sample.at_ns >= PERIOD_NS);
        if let Some(older) = older {
            let result = with(older, &newest);
            samples.push_back(newest);
            return result;
        }
        let again_at_ns = samples.front().map_or(newest.at_ns, |first| first.at_ns) + PERIOD_NS;
        if samples.is_empty() {
            samples.push_back(newest);
        }
        drop(all);
        sleep_until_ns(again_at_ns);
    }
}

fn percent(part_ns: u64, of_ns: u64) -> c_uint {
    (part_ns * 100).div_ceil(of_ns.max(1)).min(100) as c_uint
}

pub(crate) fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, utilization: *mut nvmlUtilization_t) -> Done {
    let device = Device::of(device)?;
    let gpu = over_last_period(device, |older, newer| {
        percent(newer.device.busy_ns.saturating_sub(older.device.busy_ns), newer.at_ns - older.at_ns)
    });
    put(utilization, nvmlUtilization_t { gpu, memory: gpu / 2 })
}

/// A simulated device has no encoder at work.
pub(crate) fn codec_utilization(device: nvmlDevice_t, utilization: *mut c_uint, period_us: *mut c_uint) -> Done {
    Device::of(device)?;
    put(utilization, 0)?;
    put(period_us, (PERIOD_NS / 1000) as c_uint)
}

pub(crate) use codec_utilization as nvmlDeviceGetDecoderUtilization;
pub(crate) use codec_utilization as nvmlDeviceGetEncoderUtilization;

pub(crate) fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    utilization: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    last_seen_us: u64,
) -> Done {
    let device = Device::of(device)?;
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_micros() as u64;
    let samples = over_last_period(device, |older, newer| {
        let before = |pid| older.device.processes.iter().find(|process| process.pid == pid).map_or(0, |it| it.busy_ns);
        let samples = newer.device.processes.iter().filter(|process| process.pid != 0).map(|process| {
            let used_ns = process.busy_ns.saturating_sub(before(process.pid));
            let sm_util = percent(used_ns, newer.at_ns - older.at_ns);
            let pid = process.pid;
            nvmlProcessUtilizationSample_t { pid, time_stamp: now_us, sm_util, mem_util: sm_util / 2, enc_util: 0, dec_util: 0 }
        });
        // As NVML does: a process that did nothing has no sample.
        samples.filter(|sample| sample.sm_util > 0).collect::<Vec<_>>()
    });
    if samples.is_empty() || now_us <= last_seen_us {
        put(count, 0)?;
        return Err(nvmlReturn_t::NOT_FOUND);
    }
    put_list(count, utilization, &samples)
}

/// Samples of power and clocks, which a simulated device lacks.
pub(crate) fn nvmlDeviceGetSamples(
    device: nvmlDevice_t,
    _kind: c_uint,
    _last_seen_us: u64,
    _value_kind: *mut c_uint,
    _count: *mut c_uint,
    _samples: *mut c_void,
) -> Done {
    Device::of(device)?;
    Err(nvmlReturn_t::NOT_SUPPORTED)
}

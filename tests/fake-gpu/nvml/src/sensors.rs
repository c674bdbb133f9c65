//! Temperature, power, clocks, modes: always the values of an idle device.

use core::ffi::{c_uint, c_void};

use aliquot_abi::nvml::{nvmlDevice_t, nvmlReturn_t};

use crate::Done;
use crate::caller::{get, put};
use crate::session::{index_of, machine, not_supported};

const TEMPERATURE_C: c_uint = 35;
const POWER_LIMIT_MILLIWATT: c_uint = 700_000;
const IDLE_POWER_MILLIWATT: c_uint = 70_000;
/// Clocks in MHz by kind: graphics, SM, memory, video.
const CLOCKS_MHZ: [c_uint; 4] = [1980, 1980, 2619, 1545];
/// Temperature thresholds in °C by kind: shutdown, slowdown, memory maximum, GPU maximum.
const THRESHOLDS_C: [c_uint; 4] = [92, 89, 95, 87];
const PCIE_GENERATION: c_uint = 5;
const PCIE_WIDTH: c_uint = 16;

fn put_fixed(handle: nvmlDevice_t, target: *mut c_uint, value: c_uint) -> Done {
    index_of(handle)?;
    put(target, value)
}

fn put_by_kind(handle: nvmlDevice_t, kind: c_uint, values: &[c_uint], target: *mut c_uint) -> Done {
    index_of(handle)?;
    put(target, *values.get(kind as usize).ok_or(nvmlReturn_t::INVALID_ARGUMENT)?)
}

pub(crate) fn nvmlDeviceGetTemperature(handle: nvmlDevice_t, sensor: c_uint, celsius: *mut c_uint) -> Done {
    put_by_kind(handle, sensor, &[TEMPERATURE_C], celsius)
}

/// `nvmlTemperature_t`: version, sensor, and the temperature to be written.
type TemperatureRequest = [c_uint; 3];
const TEMPERATURE_V1: c_uint = size_of::<TemperatureRequest>() as c_uint | 1 << 24;

pub(crate) fn nvmlDeviceGetTemperatureV(handle: nvmlDevice_t, request: *mut c_void) -> Done {
    index_of(handle)?;
    let request = request.cast::<TemperatureRequest>();
    match get(request)? {
        [TEMPERATURE_V1, 0, _] => put(request, [TEMPERATURE_V1, 0, TEMPERATURE_C]),
        [TEMPERATURE_V1, ..] => Err(nvmlReturn_t::INVALID_ARGUMENT),
        _ => Err(nvmlReturn_t::ARGUMENT_VERSION_MISMATCH),
    }
}

pub(crate) fn nvmlDeviceGetTemperatureThreshold(handle: nvmlDevice_t, kind: c_uint, celsius: *mut c_uint) -> Done {
    put_by_kind(handle, kind, &THRESHOLDS_C, celsius)
}

/// Not supported: the module has no fan of its own.
pub(crate) fn nvmlDeviceGetFanSpeed(handle: nvmlDevice_t, _percent: *mut c_uint) -> Done {
    not_supported(handle)
}

pub(crate) fn nvmlDeviceGetPowerUsage(handle: nvmlDevice_t, milliwatt: *mut c_uint) -> Done {
    put_fixed(handle, milliwatt, IDLE_POWER_MILLIWATT)
}

pub(crate) fn nvmlDeviceGetEnforcedPowerLimit(handle: nvmlDevice_t, milliwatt: *mut c_uint) -> Done {
    put_fixed(handle, milliwatt, POWER_LIMIT_MILLIWATT)
}

pub(crate) fn nvmlDeviceGetPowerManagementLimit(handle: nvmlDevice_t, milliwatt: *mut c_uint) -> Done {
    put_fixed(handle, milliwatt, POWER_LIMIT_MILLIWATT)
}

pub(crate) fn nvmlDeviceGetPerformanceState(handle: nvmlDevice_t, state: *mut c_uint) -> Done {
    put_fixed(handle, state, 0)
}

pub(crate) fn nvmlDeviceGetPersistenceMode(handle: nvmlDevice_t, mode: *mut c_uint) -> Done {
    put_fixed(handle, mode, 1)
}

pub(crate) fn nvmlDeviceGetDisplayActive(handle: nvmlDevice_t, active: *mut c_uint) -> Done {
    put_fixed(handle, active, 0)
}

pub(crate) fn nvmlDeviceGetDisplayMode(handle: nvmlDevice_t, mode: *mut c_uint) -> Done {
    put_fixed(handle, mode, 0)
}

pub(crate) fn nvmlDeviceGetComputeMode(handle: nvmlDevice_t, mode: *mut c_uint) -> Done {
    put_fixed(handle, mode, machine()?.config().compute_mode)
}

pub(crate) fn nvmlDeviceGetTotalEccErrors(
    handle: nvmlDevice_t,
    error: c_uint,
    counter: c_uint,
    count: *mut u64,
) -> Done {
    index_of(handle)?;
    // Corrected or uncorrected, since the last reset or ever: always 0.
    if error > 1 || counter > 1 {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    put(count, 0)
}

pub(crate) fn nvmlDeviceGetEccMode(handle: nvmlDevice_t, current: *mut c_uint, pending: *mut c_uint) -> Done {
    put_fixed(handle, current, 1)?;
    put(pending, 1)
}

/// Not supported: driver models exist only on Windows.
pub(crate) fn nvmlDeviceGetDriverModel(handle: nvmlDevice_t, _current: *mut c_uint, _pending: *mut c_uint) -> Done {
    not_supported(handle)
}

pub(crate) fn nvmlDeviceGetDriverModel_v2(handle: nvmlDevice_t, _current: *mut c_uint, _pending: *mut c_uint) -> Done {
    not_supported(handle)
}

pub(crate) fn nvmlDeviceGetClockInfo(handle: nvmlDevice_t, kind: c_uint, mhz: *mut c_uint) -> Done {
    put_by_kind(handle, kind, &CLOCKS_MHZ, mhz)
}

pub(crate) fn nvmlDeviceGetMaxClockInfo(handle: nvmlDevice_t, kind: c_uint, mhz: *mut c_uint) -> Done {
    put_by_kind(handle, kind, &CLOCKS_MHZ, mhz)
}

pub(crate) fn nvmlDeviceGetClock(handle: nvmlDevice_t, kind: c_uint, which: c_uint, mhz: *mut c_uint) -> Done {
    // Current, application target, application default, maximum boost: all the same.
    if which > 3 {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    put_by_kind(handle, kind, &CLOCKS_MHZ, mhz)
}

pub(crate) fn nvmlDeviceGetCurrPcieLinkGeneration(handle: nvmlDevice_t, generation: *mut c_uint) -> Done {
    put_fixed(handle, generation, PCIE_GENERATION)
}

pub(crate) fn nvmlDeviceGetCurrPcieLinkWidth(handle: nvmlDevice_t, width: *mut c_uint) -> Done {
    put_fixed(handle, width, PCIE_WIDTH)
}

pub(crate) fn nvmlDeviceGetMaxPcieLinkGeneration(handle: nvmlDevice_t, generation: *mut c_uint) -> Done {
    put_fixed(handle, generation, PCIE_GENERATION)
}

pub(crate) fn nvmlDeviceGetMaxPcieLinkWidth(handle: nvmlDevice_t, width: *mut c_uint) -> Done {
    put_fixed(handle, width, PCIE_WIDTH)
}

pub(crate) fn nvmlDeviceGetPcieThroughput(handle: nvmlDevice_t, counter: c_uint, kilobytes: *mut c_uint) -> Done {
    put_by_kind(handle, counter, &[0, 0], kilobytes)
}

//! Event sets: simulated devices have no accidents, so a wait ends by its time.

use core::ffi::c_uint;
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::nvml::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlReturn_t};

use crate::Done;
use crate::caller::put;
use crate::session::{index_of, machine};

/// ECC errors, performance state, critical XIDs, clocks.
const SUPPORTED_TYPES: u64 = 0x1f;

/// The sets that were made and not freed, by number. A set's handle is its number.
static SETS: Mutex<(usize, Vec<usize>)> = Mutex::new((0, Vec::new()));

fn sets() -> MutexGuard<'static, (usize, Vec<usize>)> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(set: nvmlEventSet_t) -> Done {
    machine()?;
    if sets().1.contains(&set.0.addr()) { Ok(()) } else { Err(nvmlReturn_t::INVALID_ARGUMENT) }
}

pub(crate) fn nvmlDeviceGetSupportedEventTypes(handle: nvmlDevice_t, types: *mut u64) -> Done {
    index_of(handle)?;
    put(types, SUPPORTED_TYPES)
}

pub(crate) fn nvmlEventSetCreate(target: *mut nvmlEventSet_t) -> Done {
    machine()?;
    let mut sets = sets();
    let number = sets.0 + 1;
    put(target, nvmlEventSet_t(core::ptr::without_provenance_mut(number)))?;
    sets.0 = number;
    sets.1.push(number);
    Ok(())
}

pub(crate) fn nvmlDeviceRegisterEvents(handle: nvmlDevice_t, types: u64, set: nvmlEventSet_t) -> Done {
    index_of(handle)?;
    check(set)?;
    if types & !SUPPORTED_TYPES != 0 { Err(nvmlReturn_t::NOT_SUPPORTED) } else { Ok(()) }
}

pub(crate) fn nvmlEventSetWait_v2(set: nvmlEventSet_t, _data: *mut nvmlEventData_t, timeout_ms: c_uint) -> Done {
    check(set)?;
    std::thread::sleep(Duration::from_millis(timeout_ms.into()));
    Err(nvmlReturn_t::TIMEOUT)
}

pub(crate) fn nvmlEventSetWait(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint) -> Done {
    nvmlEventSetWait_v2(set, data, timeout_ms)
}

pub(crate) fn nvmlEventSetFree(set: nvmlEventSet_t) -> Done {
    check(set)?;
    sets().1.retain(|&known| known != set.0.addr());
    Ok(())
}

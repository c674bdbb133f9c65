//! Event sets. The only events of simulated devices are the critical errors that a test triggers.

use core::ffi::c_uint;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::nvml::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t, nvmlReturn_t};
use aliquot_fake_machine::Machine;

use crate::Done;
use crate::caller::put;
use crate::mig::{Instances, instances_of};
use crate::session::{device, handle, index_of, machine};

/// ECC errors, performance state, critical XIDs, clocks.
const SUPPORTED_TYPES: u64 = 0x1f;
const CRITICAL_XID: u64 = 0x8;

/// The devices whose errors a set reports, including its GPUs' instances, each with the number of errors reported so
/// far.
type Told = BTreeMap<usize, u32>;

/// The existing sets. A set's handle is its number.
struct Sets {
    last_number: usize,
    told: BTreeMap<usize, Told>,
}

static SETS: Mutex<Sets> = Mutex::new(Sets { last_number: 0, told: BTreeMap::new() });

fn sets() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies `work` to a set.
fn with<T>(set: nvmlEventSet_t, work: impl FnOnce(&mut Told) -> T) -> Done<T> {
    machine()?;
    sets().told.get_mut(&set.0.addr()).map(work).ok_or(nvmlReturn_t::INVALID_ARGUMENT)
}

/// Refuses an instance: its events are those of its GPU.
fn check_gpu(handle: nvmlDevice_t) -> Done {
    if device(handle)?.gpu.is_some() { Err(nvmlReturn_t::NOT_SUPPORTED) } else { Ok(()) }
}

pub(crate) fn nvmlDeviceGetSupportedEventTypes(handle: nvmlDevice_t, types: *mut u64) -> Done {
    check_gpu(handle)?;
    put(types, SUPPORTED_TYPES)
}

pub(crate) fn nvmlEventSetCreate(target: *mut nvmlEventSet_t) -> Done {
    machine()?;
    let mut sets = sets();
    let number = sets.last_number + 1;
    put(target, nvmlEventSet_t(core::ptr::without_provenance_mut(number)))?;
    sets.last_number = number;
    sets.told.insert(number, Told::new());
    Ok(())
}

pub(crate) fn nvmlDeviceRegisterEvents(handle: nvmlDevice_t, types: u64, set: nvmlEventSet_t) -> Done {
    check_gpu(handle)?;
    let (machine, gpu) = (machine()?, index_of(handle)?);
    with(set, |told| {
        if types & !SUPPORTED_TYPES != 0 {
            return Err(nvmlReturn_t::NOT_SUPPORTED);
        }
        if types & CRITICAL_XID != 0 {
            let devices = machine.config().devices.iter().enumerate();
            let of_it = devices.filter(|(index, device)| *index == gpu || device.gpu == Some(gpu));
            // Errors before the registration are not events.
            told.extend(of_it.map(|(index, _)| (index, machine.critical_errors(index).count)));
        }
        Ok(())
    })?
}

/// The next event of a set. As with NVIDIA's driver, each error is an event, and all events not yet fetched have the
/// XID of the last one.
fn next_event(machine: &Machine, told: &mut Told) -> Option<Done<nvmlEventData_t>> {
    let mut reported = told.iter_mut().map(|(device, told)| (*device, machine.critical_errors(*device), told));
    if let Some((device, errors, told)) = reported.find(|(_, errors, told)| errors.count != **told) {
        *told += 1;
        return Some(Ok(event(machine, device, errors.last_xid)));
    }
    told.keys().any(|device| machine.is_lost(*device)).then_some(Err(nvmlReturn_t::GPU_IS_LOST))
}

fn event(machine: &Machine, device: usize, xid: u32) -> nvmlEventData_t {
    let Instances { gpu, compute } = instances_of(machine, device);
    nvmlEventData_t {
        device: handle(machine.config().devices[device].gpu.unwrap_or(device)),
        event_type: CRITICAL_XID,
        event_data: xid.into(),
        gpu_instance_id: gpu,
        compute_instance_id: compute,
    }
}

fn wait(set: nvmlEventSet_t, timeout_ms: c_uint) -> Done<nvmlEventData_t> {
    let machine = machine()?;
    let next = || with(set, |told| next_event(machine, told)).unwrap_or_else(|error| Some(Err(error)));
    let found = machine.wait_for_fault(Duration::from_millis(timeout_ms.into()), next);
    found.unwrap_or(Err(nvmlReturn_t::TIMEOUT))
}

pub(crate) fn nvmlEventSetWait_v2(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint) -> Done {
    put(data, wait(set, timeout_ms)?)
}

/// In the first version, the structure ends before the instances' ids.
pub(crate) fn nvmlEventSetWait(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: c_uint) -> Done {
    let nvmlEventData_t { device, event_type, event_data, .. } = wait(set, timeout_ms)?;
    let data = data.cast::<nvmlDevice_t>();
    put(data, device)?;
    put(data.wrapping_add(1).cast(), [event_type, event_data])
}

pub(crate) fn nvmlEventSetFree(set: nvmlEventSet_t) -> Done {
    machine()?;
    sets().told.remove(&set.0.addr()).map(|_| ()).ok_or(nvmlReturn_t::INVALID_ARGUMENT)
}

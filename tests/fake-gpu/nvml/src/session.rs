//! Start and end of the library, and information about the system.

use core::ffi::{c_char, c_int, c_uint};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use aliquot_abi::nvml::{nvmlDevice_t, nvmlReturn_t};
use aliquot_fake_machine::{Config, DeviceConfig, Machine};

use crate::Done;
use crate::caller::{put, put_text};

/// The machine, once it has been opened. It stays open, because closing its lock file would release this process's own
/// record.
static MACHINE: OnceLock<Machine> = OnceLock::new();
/// Number of starts without a shutdown.
static STARTS: Mutex<u32> = Mutex::new(0);

/// The targets of device handles. Only their addresses matter; they are never read.
static HANDLES: [u64; aliquot_fake_machine::DEVICES_MAX] = [0; aliquot_fake_machine::DEVICES_MAX];

fn starts() -> MutexGuard<'static, u32> {
    STARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine, while the library is started.
pub(crate) fn machine() -> Done<&'static Machine> {
    if *starts() == 0 {
        return Err(nvmlReturn_t::UNINITIALIZED);
    }
    MACHINE.get().ok_or(nvmlReturn_t::UNINITIALIZED)
}

/// The handle of the device with this index.
pub(crate) fn handle(index: usize) -> nvmlDevice_t {
    nvmlDevice_t((&raw const HANDLES[index]).cast_mut().cast())
}

/// The index of a handle's device, if the device answers.
pub(crate) fn index_of(device: nvmlDevice_t) -> Done<usize> {
    let machine = machine()?;
    let mut devices = 0..machine.config().devices.len();
    let index = devices.find(|&index| handle(index) == device).ok_or(nvmlReturn_t::INVALID_ARGUMENT)?;
    // The handle of a destroyed instance is invalid.
    if !machine.is_present(index) {
        return Err(nvmlReturn_t::INVALID_ARGUMENT);
    }
    if machine.is_lost(index) { Err(nvmlReturn_t::GPU_IS_LOST) } else { Ok(index) }
}

/// The configuration of the device that a handle names.
pub(crate) fn device(handle: nvmlDevice_t) -> Done<&'static DeviceConfig> {
    Ok(&machine()?.config().devices[index_of(handle)?])
}

/// Returns "not supported" for a valid device handle.
pub(crate) fn not_supported(handle: nvmlDevice_t) -> Done {
    index_of(handle)?;
    Err(nvmlReturn_t::NOT_SUPPORTED)
}

pub(crate) fn nvmlInitWithFlags(_flags: c_uint) -> Done {
    let mut starts = starts();
    if MACHINE.get().is_none() {
        let opened = Config::from_env().and_then(Machine::open).map_err(|error| {
            static SAID: std::sync::Once = std::sync::Once::new();
            SAID.call_once(|| eprintln!("simulated GPU: {error}"));
            nvmlReturn_t::DRIVER_NOT_LOADED
        });
        // Cannot fail: it is set only under the lock.
        let _ = MACHINE.set(opened?);
    }
    *starts += 1;
    Ok(())
}

pub(crate) fn nvmlInit() -> Done {
    nvmlInitWithFlags(0)
}

pub(crate) fn nvmlInit_v2() -> Done {
    nvmlInitWithFlags(0)
}

pub(crate) fn nvmlShutdown() -> Done {
    let mut starts = starts();
    *starts = starts.checked_sub(1).ok_or(nvmlReturn_t::UNINITIALIZED)?;
    Ok(())
}

pub(crate) fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) -> Done {
    put_text(version, length, &machine()?.config().driver_version)
}

pub(crate) fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) -> Done {
    let config = machine()?.config();
    put_text(version, length, &format!("{}.{}", config.cuda_version / 1000, config.driver_version))
}

pub(crate) fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> Done {
    put(version, machine()?.config().cuda_version as c_int)
}

pub(crate) fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> Done {
    nvmlSystemGetCudaDriverVersion(version)
}

pub(crate) fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) -> Done {
    machine()?;
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).map(|path| path.to_string_lossy().into_owned());
    let path =
        path.or_else(|_| std::fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()));
    put_text(name, length, &path.map_err(|_| nvmlReturn_t::NOT_FOUND)?)
}

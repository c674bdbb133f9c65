//! The part of NVML that the check uses.

use std::ffi::{CStr, CString, c_char, c_uint};

use aliquot_abi::nvml::{NVML_MEMORY_V2, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlProcessInfo_t, nvmlReturn_t};
use anyhow::{Context, bail};
use libloading::Library;

/// NVML, initialised for as long as the process lives.
pub(crate) struct Nvml {
    library: Library,
}

/// Maximum number of listed processes: more than share a device.
const PROCESSES_MAX: usize = 256;

/// The memory of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeviceMemory {
    /// Total bytes.
    pub(crate) total: u64,
    /// Free bytes.
    pub(crate) free: u64,
    /// Used bytes.
    pub(crate) used: u64,
    /// Bytes that the driver keeps for itself, if it reports them separately.
    pub(crate) reserved: u64,
}

impl Nvml {
    /// Loads NVML and initialises it.
    pub(crate) fn open() -> anyhow::Result<Nvml> {
        // SAFETY: NVML's initialisers are made to run in any process.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.context("cannot load libnvidia-ml.so.1")?;
        let nvml = Nvml { library };
        let init: unsafe extern "C" fn() -> nvmlReturn_t = nvml.function(c"nvmlInit_v2")?;
        // SAFETY: the call has no arguments and may be made at any time.
        check("nvmlInit_v2", unsafe { init() })?;
        Ok(nvml)
    }

    fn function<F: Copy>(&self, name: &CStr) -> anyhow::Result<F> {
        // SAFETY: each caller states the type that NVML's reference gives for the name.
        let function = unsafe { self.library.get::<F>(name.to_bytes_with_nul()) };
        Ok(*function.with_context(|| format!("NVML has no {}", name.to_string_lossy()))?)
    }

    /// The driver's version.
    pub(crate) fn driver_version(&self) -> anyhow::Result<String> {
        let get: unsafe extern "C" fn(*mut c_char, c_uint) -> nvmlReturn_t =
            self.function(c"nvmlSystemGetDriverVersion")?;
        let mut text = [0; 96];
        // SAFETY: the buffer has the given length.
        check("nvmlSystemGetDriverVersion", unsafe { get(text.as_mut_ptr(), text.len() as c_uint) })?;
        // SAFETY: NVML has written a string with a closing NUL.
        Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn device(&self, uuid: &str) -> anyhow::Result<nvmlDevice_t> {
        let get: unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t =
            self.function(c"nvmlDeviceGetHandleByUUID")?;
        let text = CString::new(uuid)?;
        let mut device = nvmlDevice_t(std::ptr::null_mut());
        // SAFETY: the text ends with a NUL; the output is a live local.
        check("nvmlDeviceGetHandleByUUID", unsafe { get(text.as_ptr(), &mut device) })?;
        Ok(device)
    }

    /// `nvmlDeviceGetMemoryInfo` of the device with `uuid`.
    pub(crate) fn memory(&self, uuid: &str) -> anyhow::Result<DeviceMemory> {
        let get: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_t) -> nvmlReturn_t =
            self.function(c"nvmlDeviceGetMemoryInfo")?;
        let mut memory = nvmlMemory_t::default();
        // SAFETY: the device is NVML's; the output is a live local.
        check("nvmlDeviceGetMemoryInfo", unsafe { get(self.device(uuid)?, &mut memory) })?;
        Ok(DeviceMemory { total: memory.total, free: memory.free, used: memory.used, reserved: 0 })
    }

    /// `nvmlDeviceGetMemoryInfo_v2` of the device with `uuid`.
    pub(crate) fn memory_v2(&self, uuid: &str) -> anyhow::Result<DeviceMemory> {
        let get: unsafe extern "C" fn(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t =
            self.function(c"nvmlDeviceGetMemoryInfo_v2")?;
        let mut memory = nvmlMemory_v2_t { version: NVML_MEMORY_V2, ..Default::default() };
        // SAFETY: the device is NVML's; the output is a live local that names its version.
        check("nvmlDeviceGetMemoryInfo_v2", unsafe { get(self.device(uuid)?, &mut memory) })?;
        let nvmlMemory_v2_t { total, reserved, free, used, .. } = memory;
        Ok(DeviceMemory { total, free, used, reserved })
    }

    /// Used memory of the device with `uuid`, without the driver's own memory if that is reported separately.
    pub(crate) fn used_bytes(&self, uuid: &str) -> anyhow::Result<u64> {
        let memory = self.memory_v2(uuid).or_else(|_| self.memory(uuid))?;
        Ok(memory.used)
    }

    /// Processes with a context on the device with `uuid`. Entries of this version of the list are the same on every
    /// driver; those of the third version are longer from 535.43 to 535.86.
    pub(crate) fn processes(&self, uuid: &str) -> anyhow::Result<Vec<nvmlProcessInfo_t>> {
        let get: unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t =
            self.function(c"nvmlDeviceGetComputeRunningProcesses_v2")?;
        let mut list = vec![nvmlProcessInfo_t::default(); PROCESSES_MAX];
        let mut count = PROCESSES_MAX as c_uint;
        // SAFETY: the device is NVML's; the list has the given number of entries.
        check("nvmlDeviceGetComputeRunningProcesses", unsafe {
            get(self.device(uuid)?, &mut count, list.as_mut_ptr())
        })?;
        list.truncate(count as usize);
        Ok(list)
    }

    /// Memory that is listed for the process `pid` on the device with `uuid`.
    pub(crate) fn listed_bytes(&self, uuid: &str, pid: u32) -> anyhow::Result<u64> {
        let processes = self.processes(uuid)?;
        Ok(processes
            .iter()
            .filter(|process| process.pid == pid)
            .map(|process| process.used_gpu_memory)
            .fold(0, u64::saturating_add))
    }
}

fn check(call: &str, result: nvmlReturn_t) -> anyhow::Result<()> {
    if result.is_ok() {
        return Ok(());
    }
    bail!("{call} answers {}", result.text_with_nul().trim_end_matches('\0'))
}

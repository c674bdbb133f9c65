//! The simulated machine's configuration file.

mod values;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::partition::{FileProfile, MigProfile, Partition};
use crate::{DEVICES_MAX, MachineError};
pub(crate) use values::{Size, in_range};
use values::{default_uuid, parse_pci, uuid_or_default};

/// The environment variable that holds the configuration file's path.
pub const CONFIG_VARIABLE: &str = "ALIQUOT_FAKE_GPU";

/// The smallest piece of device memory that a pool can reserve.
const POOL_GRANULARITY_BYTES: u64 = 2 << 20;

/// Memory of a context on an H100, and the part of it that NVML lists for the process.
const CONTEXT_BYTES: u64 = 536_128 << 10;
const CONTEXT_LISTED_BYTES: u64 = 530_432 << 10;

/// Whether device time passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Kernels and copies take device time.
    Timed,
    /// Kernels and copies take no device time, and calls cost almost nothing.
    Instant,
}

/// The kind of function addresses that `cuGetProcAddress` returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcAddress {
    /// The addresses of the library's exports.
    #[default]
    Exports,
    /// Addresses of other code that calls the exports.
    Other,
}

/// The configuration of a simulated machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The state file. The lock file has the same name plus `.lock`.
    pub state: PathBuf,
    /// Whether device time passes.
    pub mode: Mode,
    /// How long a process runs on a device while other processes wait.
    pub timeslice_ns: u64,
    /// Device time for a change of process.
    pub context_switch_ns: u64,
    /// Launches that a process can have outstanding; a further launch waits.
    pub launch_queue_depth: usize,
    /// Kernels and copies of different streams of a process that run on a device at the same time.
    pub concurrent_kernels: usize,
    /// How long a call that launches a kernel or a graph keeps the processor.
    pub launch_ns: u64,
    /// How long a stream memory operation that writes keeps its stream.
    pub write_ns: u64,
    /// How long a call that queues such an operation keeps the processor.
    pub write_call_ns: u64,
    /// Whether the stream memory operations of the API's first version exist; the device attributes report it.
    pub stream_mem_ops_v1: bool,
    /// The addresses that `cuGetProcAddress` returns.
    pub proc_address: ProcAddress,
    /// Whether NVML lists all processes as clients of MPS, and none as using the device by itself.
    pub mps_clients: bool,
    /// Whether entries of the third version of NVML's lists of processes are longer, as from 535.43 to 535.86.
    pub long_process_entries: bool,
    /// The devices' `CUcomputemode`, which the attribute reports. Programs are not kept from anything by it.
    pub compute_mode: u32,
    /// The driver's version as reported by NVML.
    pub driver_version: String,
    /// The driver's CUDA version: 13000 is 13.0.
    pub cuda_version: u32,
    /// Device memory that each context takes.
    pub context_memory_bytes: u64,
    /// The part of a context's memory that NVML lists for no process.
    pub context_memory_unlisted_bytes: u64,
    /// Allocations of contexts take device memory in multiples of this; small ones share a block of this size.
    pub allocation_block_bytes: u64,
    /// How long the memory of a dead process stays in use after its death was noticed.
    pub teardown_ns: u64,
    /// Memory that NVML reports for a GPU in addition to the memory that programs can use.
    pub reserved_memory_bytes: u64,
    /// Stream-ordered pools reserve device memory in multiples of this.
    pub pool_chunk_bytes: u64,
    /// The devices, in the order of their indices.
    pub devices: Vec<DeviceConfig>,
}

/// The configuration of a device.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct DeviceConfig {
    /// The name of the product.
    pub name: String,
    /// Memory that programs can use.
    pub memory_bytes: u64,
    /// Number of streaming multiprocessors.
    pub sm_count: u32,
    /// The major and the minor number.
    pub compute_capability: (u32, u32),
    /// The UUID's sixteen bytes.
    pub uuid: [u8; 16],
    /// Whether this is an instance of a GPU in MIG mode, whose UUID begins with `MIG-`, and not a whole GPU.
    pub is_mig: bool,
    /// For an instance: the index of its GPU, if the machine has that too.
    pub gpu: Option<usize>,
    /// Whether this GPU supports MIG mode. Such a GPU starts in MIG mode.
    pub has_mig_mode: bool,
    /// For a GPU in MIG mode whose instances are made while the machine runs: the possible profiles.
    pub mig_profiles: Vec<MigProfile>,
    /// For an instance that must be made before it exists: its profile and place.
    pub partition: Option<Partition>,
    /// Devices connected by NVLink.
    pub nvlink: Vec<usize>,
    /// Whether NVLinks lead to a switch, which connects all devices with such links.
    pub nvswitch: bool,
    /// The NUMA node to which the device is attached.
    pub numa_node: u32,
    /// PCI domain, bus and device.
    pub pci: (u32, u32, u32),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    state: Option<PathBuf>,
    mode: Option<Mode>,
    timeslice_us: Option<u64>,
    context_switch_us: Option<u64>,
    launch_queue_depth: Option<usize>,
    concurrent_kernels: Option<usize>,
    launch_ns: Option<u64>,
    write_ns: Option<u64>,
    write_call_ns: Option<u64>,
    #[serde(default)]
    stream_mem_ops_v1: bool,
    #[serde(default)]
    proc_address: ProcAddress,
    #[serde(default)]
    mps_clients: bool,
    #[serde(default)]
    long_process_entries: bool,
    #[serde(default)]
    compute_mode: u32,
    driver_version: Option<String>,
    cuda_version: Option<u32>,
    context_memory: Option<Size>,
    context_memory_unlisted: Option<Size>,
    allocation_block: Option<Size>,
    teardown_ms: Option<u64>,
    reserved_memory: Option<Size>,
    pool_chunk: Option<Size>,
    device: Option<Vec<FileDevice>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct FileDevice {
    name: Option<String>,
    memory: Option<Size>,
    sm_count: Option<u32>,
    compute_capability: Option<String>,
    uuid: Option<String>,
    #[serde(default)]
    nvlink: Vec<usize>,
    #[serde(default)]
    nvswitch: bool,
    #[serde(default)]
    numa_node: u32,
    pci_bus_id: Option<String>,
    /// Instances of a GPU in MIG mode that always exist.
    mig: Option<Vec<FileInstance>>,
    /// Profiles of a GPU in MIG mode that has no instances until they are made.
    mig_profiles: Option<Vec<FileProfile>>,
}

/// An instance of a GPU in MIG mode.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileInstance {
    profile: String,
    memory: Size,
    sm_count: u32,
    uuid: Option<String>,
}

impl Config {
    /// The configuration that [`CONFIG_VARIABLE`] names, or one device if it names none.
    ///
    /// # Errors
    /// If the file cannot be read or is not valid.
    pub fn from_env() -> Result<Config, MachineError> {
        match std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty()) {
            Some(path) => Config::load(Path::new(&path)),
            None => Config::check(File::default(), Path::new("")),
        }
    }

    /// The configuration in the file at `path`.
    ///
    /// # Errors
    /// If the file cannot be read or is not valid.
    pub fn load(path: &Path) -> Result<Config, MachineError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| MachineError::Unreadable { path: path.to_owned(), source })?;
        let file = toml::from_str(&text)
            .map_err(|error| MachineError::Invalid { path: path.to_owned(), reason: error.to_string() })?;
        Config::check(file, path)
    }

    fn check(file: File, path: &Path) -> Result<Config, MachineError> {
        let invalid = |reason: String| MachineError::Invalid { path: path.to_owned(), reason };
        let mut entries = file.device.unwrap_or_else(|| vec![FileDevice::default()]);
        // Takes the entries but leaves the key: `FileDevice::check` still sees that it was given.
        let instances: Vec<Vec<FileInstance>> =
            entries.iter_mut().map(|entry| entry.mig.as_mut().map(std::mem::take).unwrap_or_default()).collect();
        let places = |entry: &FileDevice| entry.mig_profiles.iter().flatten().map(FileProfile::places).sum::<usize>();
        let all =
            entries.len() + instances.iter().map(Vec::len).sum::<usize>() + entries.iter().map(places).sum::<usize>();
        if all > DEVICES_MAX {
            return Err(invalid(format!("it has {all} devices; at most {DEVICES_MAX} are possible")));
        }
        let count = entries.len();
        let mut devices: Vec<DeviceConfig> = Vec::with_capacity(all);
        for (index, entry) in entries.into_iter().enumerate() {
            let device = entry.check(index, count).map_err(|reason| invalid(format!("device {index}: {reason}")))?;
            if let Some(twin) = devices.iter().position(|other| other.pci == device.pci) {
                return Err(invalid(format!("devices {twin} and {index} have the same pci_bus_id")));
            }
            devices.push(device);
        }
        // Instances come after all GPUs, so that the GPUs keep the indices that the file gives them.
        for (gpu, instances) in instances.into_iter().enumerate() {
            for instance in instances {
                let device = instance.check(devices.len(), gpu, &devices[gpu]);
                devices.push(device.map_err(|reason| invalid(format!("device {gpu}: an instance: {reason}")))?);
            }
            for partition in Partition::all(&devices[gpu].mig_profiles) {
                devices.push(partition.device(default_uuid(devices.len()), gpu, &devices[gpu]));
            }
        }
        for (index, device) in devices.iter().enumerate() {
            if let Some(twin) = devices[..index].iter().position(|other| other.uuid == device.uuid) {
                return Err(invalid(format!("devices {twin} and {index} have the same uuid")));
            }
        }
        let timeslice_us =
            in_range("timeslice_us", file.timeslice_us.unwrap_or(2000), 1, 10_000_000).map_err(invalid)?;
        let context_switch_us =
            in_range("context_switch_us", file.context_switch_us.unwrap_or(150), 0, 1_000_000).map_err(invalid)?;
        let depth = in_range("launch_queue_depth", file.launch_queue_depth.unwrap_or(1024) as u64, 1, 1 << 20);
        let concurrent = in_range("concurrent_kernels", file.concurrent_kernels.unwrap_or(1) as u64, 1, 128);
        let mode = file.mode.unwrap_or(Mode::Timed);
        let in_time = |ns: Option<u64>, default_ns: u64| ns.unwrap_or(if mode == Mode::Timed { default_ns } else { 0 });
        let short = |key: &str, ns: u64| in_range(key, ns, 0, 1_000_000_000).map_err(invalid);
        let size = |key: &str, size: Option<Size>, default: u64| {
            size.map_or(Ok(default), |size| size.bytes(key)).map_err(invalid)
        };
        let pool_chunk_bytes = size("pool_chunk", file.pool_chunk, 32 << 20)?;
        // The default for the unlisted part belongs to the default size of a context.
        let unlisted_bytes = if file.context_memory.is_none() { CONTEXT_BYTES - CONTEXT_LISTED_BYTES } else { 0 };
        let context_memory_bytes = size("context_memory", file.context_memory, CONTEXT_BYTES)?;
        let unlisted_bytes = size("context_memory_unlisted", file.context_memory_unlisted, unlisted_bytes)?;
        if unlisted_bytes > context_memory_bytes {
            return Err(invalid(format!("context_memory_unlisted {unlisted_bytes} is more than context_memory")));
        }
        let allocation_block_bytes = size("allocation_block", file.allocation_block, 2 << 20)?;
        if !(512..=2 << 20).contains(&allocation_block_bytes) || !allocation_block_bytes.is_power_of_two() {
            return Err(invalid(format!(
                "allocation_block {allocation_block_bytes} must be a power of two, up to 2MiB"
            )));
        }
        if pool_chunk_bytes == 0 || !pool_chunk_bytes.is_multiple_of(POOL_GRANULARITY_BYTES) {
            return Err(invalid(format!("pool_chunk {pool_chunk_bytes} must be a multiple of 2MiB")));
        }
        Ok(Config {
            state: file.state.unwrap_or_else(|| default_state(path)),
            mode,
            timeslice_ns: timeslice_us * 1000,
            context_switch_ns: context_switch_us * 1000,
            launch_queue_depth: depth.map_err(invalid)? as usize,
            concurrent_kernels: concurrent.map_err(invalid)? as usize,
            launch_ns: short("launch_ns", in_time(file.launch_ns, 3500))?,
            write_ns: short("write_ns", in_time(file.write_ns, 2000))?,
            write_call_ns: short("write_call_ns", in_time(file.write_call_ns, 1000))?,
            stream_mem_ops_v1: file.stream_mem_ops_v1,
            proc_address: file.proc_address,
            mps_clients: file.mps_clients,
            long_process_entries: file.long_process_entries,
            compute_mode: in_range("compute_mode", file.compute_mode.into(), 0, 3).map_err(invalid)? as u32,
            driver_version: file.driver_version.unwrap_or_else(|| "580.65.06".to_owned()),
            cuda_version: in_range("cuda_version", u64::from(file.cuda_version.unwrap_or(13000)), 11000, 99990)
                .map_err(invalid)? as u32,
            context_memory_bytes,
            context_memory_unlisted_bytes: unlisted_bytes,
            allocation_block_bytes,
            teardown_ns: in_range("teardown_ms", file.teardown_ms.unwrap_or(0), 0, 3_600_000).map_err(invalid)?
                * 1_000_000,
            reserved_memory_bytes: size("reserved_memory", file.reserved_memory, 480 << 20)?,
            pool_chunk_bytes,
            devices,
        })
    }

    /// A digest of the devices, on which all processes of a machine must agree.
    pub(crate) fn devices_digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.devices.hash(&mut hasher);
        hasher.finish()
    }
}

impl FileDevice {
    fn check(self, index: usize, count: usize) -> Result<DeviceConfig, String> {
        let name = self.name.unwrap_or_else(|| "NVIDIA H100 80GB HBM3".to_owned());
        if name.is_empty() || name.len() > 95 || name.contains('\0') {
            return Err(format!("name {name:?} must have 1 to 95 bytes"));
        }
        let memory_bytes = self.memory.map_or(Ok(80 << 30), |size| size.bytes("memory"))?;
        in_range("memory", memory_bytes, 1 << 20, 1 << 42)?;
        let compute_capability = match &self.compute_capability {
            None => (9, 0),
            Some(text) => text
                .split_once('.')
                .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
                .ok_or_else(|| format!("compute_capability {text:?} must look like \"9.0\""))?,
        };
        if let Some(peer) = self.nvlink.iter().find(|&&peer| peer >= count || peer == index) {
            return Err(format!("nvlink names device {peer}, which must be another one of the {count} devices"));
        }
        if self.mig.is_some() && self.mig_profiles.is_some() {
            return Err("mig and mig_profiles cannot both be given".to_owned());
        }
        let sm_count = in_range("sm_count", u64::from(self.sm_count.unwrap_or(132)), 1, 1024)? as u32;
        let has_mig_mode = self.mig.is_some() || self.mig_profiles.is_some();
        let profiles = self.mig_profiles.unwrap_or_default().into_iter();
        let mig_profiles = profiles.map(|profile| profile.check(memory_bytes, sm_count)).collect::<Result<_, _>>()?;
        let pci = match &self.pci_bus_id {
            None => (0, 0x10 + index as u32, 0),
            Some(text) => {
                parse_pci(text).ok_or_else(|| format!("pci_bus_id {text:?} must look like \"00000000:1B:00.0\""))?
            }
        };
        Ok(DeviceConfig {
            name,
            memory_bytes,
            sm_count,
            compute_capability,
            is_mig: self.uuid.as_ref().is_some_and(|text| text.starts_with("MIG-")),
            gpu: None,
            has_mig_mode,
            mig_profiles,
            partition: None,
            uuid: uuid_or_default(self.uuid.as_deref(), index)?,
            nvlink: self.nvlink,
            nvswitch: self.nvswitch,
            numa_node: self.numa_node,
            pci,
        })
    }
}

impl FileInstance {
    /// The instance as device `index`, on GPU `gpu`.
    fn check(self, index: usize, gpu: usize, of: &DeviceConfig) -> Result<DeviceConfig, String> {
        let memory_bytes = in_range("memory", self.memory.bytes("memory")?, 1 << 20, of.memory_bytes)?;
        if self.uuid.as_ref().is_some_and(|text| !text.starts_with("MIG-")) {
            return Err(format!("uuid {:?} must begin with MIG-", self.uuid.unwrap_or_default()));
        }
        Ok(DeviceConfig {
            name: format!("{} MIG {}", of.name, self.profile),
            memory_bytes,
            sm_count: in_range("sm_count", u64::from(self.sm_count), 1, u64::from(of.sm_count))? as u32,
            uuid: uuid_or_default(self.uuid.as_deref(), index)?,
            is_mig: true,
            gpu: Some(gpu),
            has_mig_mode: false,
            mig_profiles: Vec::new(),
            nvlink: Vec::new(),
            nvswitch: false,
            ..of.clone()
        })
    }
}

impl DeviceConfig {
    /// The UUID as text, with the prefix `GPU-` or `MIG-`.
    #[must_use]
    pub fn uuid_text(&self) -> String {
        let hex = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let kind = if self.is_mig { "MIG" } else { "GPU" };
        format!("{kind}-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }

    /// The place on the PCI bus, with a domain of `domain_digits` digits.
    #[must_use]
    pub fn pci_text(&self, domain_digits: usize) -> String {
        let (domain, bus, device) = self.pci;
        format!("{domain:0domain_digits$X}:{bus:02X}:{device:02X}.0")
    }
}

/// The default path of the state file: one for each user and configuration file.
fn default_state(path: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).hash(&mut hasher);
    // SAFETY: `getuid` only returns a number.
    let user = unsafe { libc::getuid() };
    PathBuf::from(format!("/dev/shm/aliquot-fake-gpu-{user}-{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Config, String> {
        let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        Config::check(file, Path::new("machine.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_one_device() {
        let config = check("").unwrap();
        assert_eq!((config.devices.len(), config.mode, config.timeslice_ns), (1, Mode::Timed, 2_000_000));
        assert_eq!((config.launch_ns, config.write_ns, config.write_call_ns), (3500, 2000, 1000));
        let instant = check("mode = 'instant'").unwrap();
        assert_eq!((instant.launch_ns, instant.write_ns, instant.write_call_ns), (0, 0, 0));
        assert_eq!(config.devices[0].uuid_text(), "GPU-a110c07a-5130-4a7e-8000-000000000000");
        assert_eq!(config.devices[0].pci_text(8), "00000000:10:00.0");
    }

    #[test]
    fn every_key_is_read() {
        let config = check(
            "state = '/s'\nmode = 'instant'\ntimeslice_us = 5\ncontext_switch_us = 0\nlaunch_queue_depth = 3\n\
             concurrent_kernels = 4\nlaunch_ns = 3500\nwrite_ns = 1\nwrite_call_ns = 900\nstream_mem_ops_v1 = true\nproc_address = 'other'\n\
             mps_clients = true\nlong_process_entries = true\ncompute_mode = 3\ndriver_version = '1.2'\ncuda_version = 12020\ncontext_memory = '1MiB'\n\
             context_memory_unlisted = 5\nallocation_block = '4KiB'\nteardown_ms = 7\nreserved_memory = 6\npool_chunk = '4MiB'\n[[device]]\nname = 'x'\nmemory = '2GiB'\n\
             sm_count = 4\ncompute_capability = '8.6'\nuuid = 'GPU-01234567-89ab-cdef-0123-456789abcdef'\nnvlink = [1]\n\
             numa_node = 1\npci_bus_id = '0000:1B:02.0'\n[[device]]\n",
        )
        .unwrap();
        assert_eq!((config.pool_chunk_bytes, config.allocation_block_bytes), (4 << 20, 4096));
        assert_eq!((config.context_memory_unlisted_bytes, config.reserved_memory_bytes), (5, 6));
        assert_eq!(config.teardown_ns, 7_000_000);
        assert!(config.stream_mem_ops_v1 && config.proc_address == ProcAddress::Other);
        assert!(config.mps_clients && config.long_process_entries && config.compute_mode == 3);
        assert_eq!((config.launch_ns, config.write_ns, config.write_call_ns), (3500, 1, 900));
        assert_eq!((config.launch_queue_depth, config.concurrent_kernels), (3, 4));
        assert_eq!((config.context_memory_bytes, config.cuda_version, config.context_switch_ns), (1 << 20, 12020, 0));
        let device = &config.devices[0];
        assert_eq!(device.uuid_text(), "GPU-01234567-89ab-cdef-0123-456789abcdef");
        let instance = check("[[device]]\nuuid = 'MIG-01234567-89ab-cdef-0123-456789abcdef'\n").unwrap();
        assert_eq!(instance.devices[0].uuid_text(), "MIG-01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!((device.memory_bytes, device.compute_capability, device.pci), (2 << 30, (8, 6), (0, 0x1b, 2)));
        assert_eq!((device.nvlink.as_slice(), device.numa_node, device.sm_count), (&[1][..], 1, 4));
    }

    #[test]
    fn a_context_whose_size_is_given_is_listed_in_full() {
        let of = |text| check(text).map(|config| (config.context_memory_bytes, config.context_memory_unlisted_bytes));
        assert_eq!(of(""), Ok((536_128 << 10, 5696 << 10)));
        assert_eq!(of("context_memory = 7"), Ok((7, 0)));
    }

    #[test]
    fn writes_take_time_only_in_timed_mode() {
        assert_eq!((check("").unwrap().write_ns, check("mode = 'instant'").unwrap().write_ns), (2000, 0));
    }

    #[test]
    fn the_instances_of_a_gpu_in_mig_mode_come_behind_all_gpus() {
        let config = check(
            "[[device]]\nmemory = '80GiB'\nmig = [{ profile = '3g.40gb', memory = '40GiB', sm_count = 60 }, \
             { profile = '1g.10gb', memory = '10GiB', sm_count = 16 }]\n[[device]]\nnvlink = [0]\n",
        )
        .unwrap();
        let [gpu, other, large, small] = &config.devices[..] else { panic!("{config:?}") };
        assert!(gpu.has_mig_mode && !other.has_mig_mode && !gpu.is_mig && large.is_mig && !large.has_mig_mode);
        assert_eq!((large.gpu, small.gpu, other.nvlink.as_slice()), (Some(0), Some(0), &[0][..]));
        assert_eq!((small.name.as_str(), small.pci), ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", gpu.pci));
        assert!(small.uuid_text().starts_with("MIG-") && small.uuid != large.uuid);
    }

    #[test]
    fn mistakes_are_named() {
        for (text, words) in [
            ("colour = 'red'", "colour"),
            ("timeslice_us = 0", "timeslice_us 0"),
            ("mode = 'slow'", "slow"),
            ("write_ns = 2000000000", "write_ns 2000000000"),
            ("compute_mode = 4", "compute_mode 4"),
            ("pool_chunk = '1MiB'", "pool_chunk 1048576"),
            ("allocation_block = '3MiB'", "allocation_block 3145728"),
            ("context_memory = 4\ncontext_memory_unlisted = 5", "context_memory_unlisted 5"),
            ("[[device]]\nmemory = '80XB'", "80XB"),
            ("[[device]]\nmemory = 5", "memory 5"),
            ("[[device]]\nuuid = 'GPU-1'", "GPU-1"),
            ("[[device]]\nnvlink = [0]", "device 0"),
            ("[[device]]\ncompute_capability = '9'", "compute_capability"),
            ("[[device]]\npci_bus_id = 'zz:00.0'", "pci_bus_id"),
            ("[[device]]\nmig = [{ profile = '1g', memory = '90GiB', sm_count = 1 }]", "an instance: memory"),
            ("[[device]]\nmig = [{ profile = '1g', memory = '1GiB', sm_count = 133 }]", "sm_count 133"),
            ("[[device]]\nmig = []\nmig_profiles = []", "cannot both be given"),
            ("[[device]]\npci_bus_id = '10:00.0'\n[[device]]\npci_bus_id = '10:00.0'", "same pci_bus_id"),
        ] {
            let error = check(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}

//! Finds devices through NVML.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use aliquot_node::{Partition, Placement};
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{cuda_driver_version_major, cuda_driver_version_minor};
use tracing::{info, warn};

use crate::driver_root::DriverRoot;
use crate::health::{Answer, HealthWatch};
use crate::inventory::{
    Alert, Device, DeviceProcess, DeviceSource, DeviceUuid, Health, Inventory, MigInstance, SharingMode, SourceError,
    UtilisationSample,
};
use crate::pci::kernel_bus_id;

mod events;
#[allow(unsafe_code, reason = "asks what the wrapper of NVML has no function for; each block says what makes it sound")]
mod instance;
#[allow(unsafe_code, reason = "does what the wrapper of NVML has no function for; each block says what makes it sound")]
mod partition;
#[allow(
    unsafe_code,
    reason = "asks for lists that the wrapper of NVML reads wrongly; the block says what makes it sound"
)]
mod processes;
mod recovery;

use events::{Events, Report};

/// The library, by the name under which programs load it.
const LIBRARY: &str = "libnvidia-ml.so.1";

type NvmlDevice = nvml_wrapper::Device<'static>;

/// Finds devices through NVML. NVML is loaded at the first request; if that fails, each request tries again, because a
/// driver can be installed while the manager runs.
pub(crate) struct Nvml {
    library: Option<PathBuf>,
    driver: DriverRoot,
    alert: Option<Alert>,
    loaded: Option<Loaded>,
}

impl Nvml {
    /// NVML from `library`, or as the loader of `driver` finds it.
    #[must_use]
    pub(crate) fn new(library: Option<PathBuf>, driver: DriverRoot) -> Nvml {
        Nvml { library, driver, alert: None, loaded: None }
    }

    fn load(&mut self) -> Result<&mut Loaded, SourceError> {
        if self.loaded.is_none() {
            let loaded = Loaded::new(&self.library_file())?;
            self.alert.iter().for_each(|alert| loaded.events.set_alert(Arc::clone(alert)));
            self.loaded = Some(loaded);
        }
        self.loaded.as_mut().ok_or_else(|| SourceError("NVML is not loaded".into()))
    }

    /// The library to load: the configured file; else, if the driver has its own loader cache, the file found there;
    /// else the bare name, for this process's loader.
    fn library_file(&self) -> PathBuf {
        if let Some(library) = &self.library {
            return library.clone();
        }
        let found = || {
            let file = self.driver.resolve(self.driver.loader_cache().get(LIBRARY)?).ok()?;
            Some(self.driver.seen_on_node(&file))
        };
        let elsewhere = if self.driver.is_own() { None } else { found() };
        elsewhere.unwrap_or_else(|| LIBRARY.into())
    }
}

impl DeviceSource for Nvml {
    fn set_alert(&mut self, alert: Alert) {
        self.loaded.iter().for_each(|loaded| loaded.events.set_alert(Arc::clone(&alert)));
        self.alert = Some(alert);
    }

    fn inventory(&mut self) -> Result<Inventory, SourceError> {
        self.load()?.inventory()
    }

    fn processes(&mut self, uuid: &DeviceUuid) -> Result<Vec<DeviceProcess>, SourceError> {
        self.load()?.processes(uuid)
    }

    fn used_bytes(&mut self, uuid: &DeviceUuid) -> Result<Option<u64>, SourceError> {
        let device = self.load()?.open(uuid)?;
        // `used` does not include what the driver reserves for itself.
        device.memory_info().map(|memory| Some(memory.used)).map_err(|error| told(uuid, &error))
    }

    fn utilisation(&mut self, uuid: &DeviceUuid, since_us: u64) -> Result<Vec<UtilisationSample>, SourceError> {
        self.load()?.utilisation(uuid, since_us)
    }

    fn create_instance(&mut self, partition: &Partition) -> Result<(), SourceError> {
        let gpu = self.load()?.open(&DeviceUuid::new(&*partition.gpu_uuid))?;
        let made = partition::create(&gpu, &partition.profile, partition.placement);
        made.map_err(|error| SourceError(format!("cannot make {partition}: {error}")))
    }

    fn destroy_instance(&mut self, partition: &Partition) -> Result<(), SourceError> {
        let gpu = self.load()?.open(&DeviceUuid::new(&*partition.gpu_uuid))?;
        let destroyed = partition::destroy(&gpu, &partition.profile, partition.placement);
        destroyed.map_err(|error| SourceError(format!("cannot destroy {partition}: {error}")))
    }
}

/// The driver's management library, loaded.
struct Loaded {
    /// Never unloaded: the library keeps state that does not survive unloading.
    nvml: &'static nvml_wrapper::Nvml,
    /// Devices that have answered once. They are kept so that a device that falls silent is reported and not forgotten.
    known: BTreeMap<DeviceUuid, Device>,
    /// Why each other device that is listed does not answer, by its name.
    strangers: BTreeMap<String, String>,
    events: Events,
    health: HealthWatch,
}

impl Loaded {
    fn new(library: &Path) -> Result<Loaded, SourceError> {
        let nvml = nvml_wrapper::Nvml::builder()
            .lib_path(library.as_os_str())
            .init()
            .map_err(|error| SourceError(format!("{}: {error}", library.display())))?;
        // Without this function no device tells its memory.
        if nvml.lib().nvmlDeviceGetMemoryInfo_v2.is_err() {
            let version = nvml.sys_driver_version().unwrap_or_default();
            return Err(SourceError(format!(
                "the driver {version} is too old: Aliquot needs R510 (CUDA 11.6) or later"
            )));
        }
        Ok(Loaded {
            nvml: Box::leak(Box::new(nvml)),
            known: BTreeMap::new(),
            strangers: BTreeMap::new(),
            events: Events::default(),
            health: HealthWatch::default(),
        })
    }

    /// Passes the driver's reports of critical errors to `health`.
    fn take_up_reports(&mut self, now: Instant) {
        for Report { gpu, gpu_instance, xid } in self.events.take() {
            let is_it = |device: &&Device| {
                let instance = device.mig_instance.as_ref().filter(|instance| instance.gpu == gpu);
                instance.is_some_and(|instance| instance.gpu_instance == gpu_instance)
            };
            let instance = gpu_instance.and_then(|_| self.known.values().find(is_it));
            let device = instance.map_or(&gpu, |instance| &instance.uuid);
            if self.health.xid(device, xid, now) {
                warn!(%device, xid, "the driver reported a critical error of the device");
            } else {
                info!(%device, xid, "the driver reported an error that a program has made on the device");
            }
        }
    }

    fn open(&self, uuid: &DeviceUuid) -> Result<NvmlDevice, SourceError> {
        self.nvml.device_by_uuid(uuid.as_str()).map_err(|error| told(uuid, &error))
    }

    /// All devices that the driver lists: GPUs, and after each partitioned GPU its instances.
    fn listed(&self) -> Result<Listed, SourceError> {
        let count =
            self.nvml.device_count().map_err(|error| SourceError(format!("cannot count the devices: {error}")))?;
        let mut listed = Listed { handles: Vec::new(), silent: BTreeMap::new() };
        for index in 0..count {
            let gpu = match self.nvml.device_by_index(index) {
                Ok(gpu) => gpu,
                Err(error) => {
                    listed.silent.insert(index, error.to_string());
                    continue;
                }
            };
            match instances(&gpu) {
                Ok(instances) => {
                    listed.handles.push(gpu);
                    listed.handles.extend(instances);
                }
                // Its instances are silent with it: what is not told is neither destroyed nor out of MIG mode.
                Err(error) => _ = listed.silent.insert(index, format!("it does not tell its MIG instances: {error}")),
            }
        }
        Ok(listed)
    }

    fn inventory(&mut self) -> Result<Inventory, SourceError> {
        let mut answers = BTreeMap::new();
        let mut gpus = Vec::new();
        let mut placements = BTreeMap::new();
        let listed = self.listed();
        if let Err(error) = &listed {
            for uuid in self.known.keys() {
                self.health.asked(uuid, Answer::Silence(error.0.clone()), Instant::now());
            }
        }
        let Listed { handles, mut silent } = listed?;
        for handle in handles {
            let uuid = match handle.uuid() {
                Ok(uuid) => DeviceUuid::new(uuid),
                Err(error) => {
                    handle.index().into_iter().for_each(|index| _ = silent.insert(index, error.to_string()));
                    continue;
                }
            };
            match describe(&uuid, &handle, self.known.get(&uuid)) {
                Ok(mut device) => {
                    if let Some(divided) = device.mig_enabled.then(|| partition::divided(&handle)).flatten() {
                        device.partitioning = Some(divided.partitioning);
                        placements.insert(uuid.clone(), divided.placements);
                    }
                    device.mig_instance.iter_mut().for_each(|instance| place(instance, &placements));
                    let is_gpu = device.mig_instance.is_none();
                    if is_gpu {
                        self.events.listen(&uuid, &handle);
                    }
                    let wanted = if is_gpu { recovery::wanted(&handle) } else { None };
                    if is_gpu {
                        gpus.push((uuid.clone(), handle));
                    }
                    self.known.insert(uuid.clone(), device);
                    answers.insert(uuid, wanted.map_or(Answer::Well, Answer::WantsRecovery));
                }
                Err(error) => {
                    answers.insert(uuid, Answer::Silence(error.to_string()));
                }
            }
        }
        self.warn_of_strangers(&silent, &answers);
        self.forget_destroyed(&answers);
        let mut peers = nvlink_peers(&gpus);
        let mut devices = Vec::new();
        let now = Instant::now();
        self.take_up_reports(now);
        for (uuid, device) in &mut self.known {
            // A GPU that is not listed any more has fallen off the bus.
            let why = || silent.get(&device.index).cloned().unwrap_or_else(|| "it is not listed any more".into());
            let answer = answers.remove(uuid).unwrap_or_else(|| Answer::Silence(why()));
            device.health = self.health.asked(uuid, answer, now);
            if let Some(peers) = peers.remove(uuid) {
                device.nvlink_peers = peers;
            }
            devices.push(device.clone());
        }
        take_over_health(&mut devices);
        devices.sort_by_key(|device| {
            (device.index, device.mig_instance.clone().map(|of| of.gpu_instance), device.uuid.clone())
        });
        let cuda = self.nvml.sys_cuda_driver_version().unwrap_or(0);
        Ok(Inventory {
            driver_version: self.nvml.sys_driver_version().unwrap_or_default(),
            cuda_version: match cuda {
                0 => String::new(),
                _ => format!("{}.{}", cuda_driver_version_major(cuda), cuda_driver_version_minor(cuda)),
            },
            devices,
        })
    }

    /// Warns once of each device that has never answered: it is not in the inventory, because neither its memory nor,
    /// often, its UUID is known.
    fn warn_of_strangers(&mut self, silent: &BTreeMap<u32, String>, answers: &BTreeMap<DeviceUuid, Answer>) {
        let is_known = |index: u32| self.known.values().any(|device| device.index == index);
        let by_index = silent.iter().filter(|(index, _)| !is_known(**index));
        let by_uuid = answers.iter().filter_map(|(uuid, answer)| match answer {
            Answer::Silence(why) if !self.known.contains_key(uuid) => Some((uuid.to_string(), why.clone())),
            _ => None,
        });
        let strangers: BTreeMap<String, String> =
            by_index.map(|(index, why)| (format!("GPU {index}"), why.clone())).chain(by_uuid).collect();
        for (device, why) in strangers.iter().filter(|(device, _)| !self.strangers.contains_key(*device)) {
            warn!(device, why, "a device has not answered yet, and is not given out before it does");
        }
        self.strangers = strangers;
    }

    /// Forgets instances that are no longer listed by their GPU although the GPU answers: they were destroyed, or the
    /// GPU left MIG mode.
    fn forget_destroyed(&mut self, answers: &BTreeMap<DeviceUuid, Answer>) {
        let does_answer =
            |gpu: &DeviceUuid| answers.get(gpu).is_some_and(|answer| !matches!(answer, Answer::Silence(_)));
        self.known.retain(|uuid, device| {
            let gpu = device.mig_instance.as_ref().map(|instance| &instance.gpu);
            answers.contains_key(uuid) || !gpu.is_some_and(does_answer)
        });
    }

    fn processes(&mut self, uuid: &DeviceUuid) -> Result<Vec<DeviceProcess>, SourceError> {
        let device = self.open(uuid)?;
        let instance = self.known.get(uuid).and_then(|device| device.mig_instance.as_ref());
        // The driver may list processes of several instances: keep only those of this one.
        let is_same =
            |here: Option<u32>, number: Option<u32>| here.zip(number).is_none_or(|(here, number)| here == number);
        let is_here = |process: &ProcessInfo| {
            instance.is_none_or(|here| {
                is_same(here.gpu_instance, process.gpu_instance_id)
                    && is_same(here.compute_instance, process.compute_instance_id)
            })
        };
        let mut computing = processes::computing(&device).map_err(|error| told(uuid, &error))?;
        // Clients of MPS are in a list of their own, and may be in the first one as well.
        let clients = match processes::mps_clients(&device) {
            Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Vec::new(),
            listed => listed.map_err(|error| told(uuid, &error))?,
        };
        for client in clients {
            if computing.iter().all(|process| process.pid != client.pid) {
                computing.push(client);
            }
        }
        computing.retain(is_here);
        // A process that computes and draws is in both lists, with the same memory. Not every device has the second
        // list.
        let mut drawing = processes::drawing(&device).unwrap_or_default();
        drawing.retain(is_here);
        drawing.retain(|process| computing.iter().all(|computing| computing.pid != process.pid));
        let memory = |used| match used {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        let processes = computing.into_iter().map(|process| (process, true));
        let processes = processes.chain(drawing.into_iter().map(|process| (process, false)));
        Ok(processes
            .map(|(process, computes)| DeviceProcess {
                pid: process.pid,
                memory_bytes: memory(process.used_gpu_memory),
                computes,
            })
            .collect())
    }

    fn utilisation(&mut self, uuid: &DeviceUuid, since_us: u64) -> Result<Vec<UtilisationSample>, SourceError> {
        let samples = match self.open(uuid)?.process_utilization_stats(since_us) {
            // The driver reports this error if there is no sample in the period.
            Err(NvmlError::NotFound) => Vec::new(),
            other => other.map_err(|error| told(uuid, &error))?,
        };
        Ok(samples
            .into_iter()
            .map(|sample| UtilisationSample {
                pid: sample.pid,
                time_us: sample.timestamp,
                busy_percent: sample.sm_util.min(100),
            })
            .collect())
    }
}

/// The devices that the driver lists.
struct Listed {
    /// Handles of the devices that answer.
    handles: Vec<NvmlDevice>,
    /// Why each of the other devices does not answer, by index.
    silent: BTreeMap<u32, String>,
}

fn told(uuid: &DeviceUuid, error: &NvmlError) -> SourceError {
    SourceError(format!("{uuid}: {error}"))
}

/// Whether the device is in MIG mode.
///
/// # Errors
/// The driver does not say now.
fn mig_enabled(device: &NvmlDevice) -> Result<bool, NvmlError> {
    match device.mig_mode() {
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(false),
        mode => Ok(mode?.current != 0),
    }
}

/// The MIG instances of a GPU.
///
/// # Errors
/// The driver does not say now.
fn instances(gpu: &NvmlDevice) -> Result<Vec<NvmlDevice>, NvmlError> {
    let places = if mig_enabled(gpu)? { gpu.mig_device_count()? } else { 0 };
    let in_place = |place: u32| match gpu.mig_device_by_index(place) {
        // The place is empty.
        Err(NvmlError::NotFound | NvmlError::InvalidArg) => None,
        found => Some(found),
    };
    (0..places).filter_map(in_place).collect()
}

/// Makes the instances of an unhealthy GPU unhealthy too.
fn take_over_health(devices: &mut [Device]) {
    let ill: BTreeMap<DeviceUuid, String> = devices.iter().filter_map(illness).collect();
    for device in devices {
        let reason = device.mig_instance.as_ref().and_then(|instance| ill.get(&instance.gpu));
        if let (Some(reason), Health::Healthy) = (reason, &device.health) {
            device.health = Health::Unhealthy { reason: format!("of its GPU: {reason}") };
        }
    }
}

fn illness(device: &Device) -> Option<(DeviceUuid, String)> {
    match &device.health {
        Health::Unhealthy { reason } => Some((device.uuid.clone(), reason.clone())),
        Health::Healthy => None,
    }
}

/// The device as it is now. `before` is its last description.
fn describe(uuid: &DeviceUuid, handle: &NvmlDevice, before: Option<&Device>) -> Result<Device, NvmlError> {
    let memory = handle.memory_info()?;
    // An instance has no PCI address of its own.
    let parent = handle.mig_parent_device().ok();
    let gpu = parent.as_ref().unwrap_or(handle);
    // An instance is not partitioned, and not every driver answers the question for one.
    let (name, mig_enabled) = (handle.name()?, parent.is_none() && mig_enabled(handle)?);
    // The driver is asked only once whether it tells the utilisation, which does not change while the MIG mode stays.
    let before = before.filter(|before| before.mig_enabled == mig_enabled);
    let pci_bus_id = gpu.pci_info().map(|pci| pci.bus_id).unwrap_or_default();
    let capability = handle.cuda_compute_capability().ok();
    Ok(Device {
        uuid: uuid.clone(),
        index: gpu.index()?,
        // The driver's own reserve must not be given to slices.
        memory_bytes: memory.total.saturating_sub(memory.reserved),
        numa_node: numa_node(&pci_bus_id),
        pci_bus_id,
        minor: gpu.minor_number().ok(),
        nvlink_peers: Vec::new(),
        compute_capability: capability
            .and_then(|capability| Some((capability.major.try_into().ok()?, capability.minor.try_into().ok()?))),
        mig_enabled,
        partitioning: None,
        mig_instance: parent.as_ref().map(|gpu| mig_instance(gpu, handle, &name)).transpose()?,
        model: name,
        tells_utilisation: before.map_or_else(|| tells_utilisation(handle), |before| before.tells_utilisation),
        sharing: SharingMode::default(),
        health: Health::Healthy,
    })
}

fn mig_instance(gpu: &NvmlDevice, handle: &NvmlDevice, name: &str) -> Result<MigInstance, NvmlError> {
    let (gpu_instance, compute_instance) = instance::numbers(handle);
    Ok(MigInstance {
        gpu: DeviceUuid::new(gpu.uuid()?),
        // The name ends with the profile, as in `NVIDIA H100 80GB HBM3 MIG 3g.40gb`.
        profile: name.rsplit_once(" MIG ").map(|(_, profile)| profile.to_owned()).unwrap_or_default(),
        gpu_instance,
        compute_instance,
        placement: None,
    })
}

/// Sets the placement of an instance. Its GPU must be in `placements` already.
fn place(instance: &mut MigInstance, placements: &BTreeMap<DeviceUuid, BTreeMap<u32, Placement>>) {
    let of_gpu = placements.get(&instance.gpu);
    instance.placement = of_gpu.zip(instance.gpu_instance).and_then(|(of_gpu, number)| of_gpu.get(&number).copied());
}

fn tells_utilisation(handle: &NvmlDevice) -> bool {
    // The call is supported if it returns samples or any other error, for example that there were none.
    !matches!(handle.process_utilization_stats(0), Err(NvmlError::NotSupported))
}

/// For each of these GPUs, the GPUs that it reaches by NVLink. The driver is asked about pairs: where links lead to an
/// NVSwitch, the far ends of links do not tell which GPUs are behind it.
fn nvlink_peers(gpus: &[(DeviceUuid, NvmlDevice)]) -> BTreeMap<DeviceUuid, Vec<DeviceUuid>> {
    let reaches = |one: &NvmlDevice, other: &NvmlDevice| {
        one.p2p_status(other, P2pCapabilitiesIndex::NvLink).is_ok_and(|status| status == P2pStatus::Ok)
    };
    let peers_of = |(uuid, gpu): &(DeviceUuid, NvmlDevice)| {
        let others = gpus.iter().filter(|(other, handle)| other != uuid && reaches(gpu, handle));
        (uuid.clone(), others.map(|(other, _)| other.clone()).collect())
    };
    gpus.iter().map(peers_of).collect()
}

/// The NUMA node of a PCI device, from sysfs.
fn numa_node(pci_bus_id: &str) -> Option<i32> {
    let path = format!("/sys/bus/pci/devices/{}/numa_node", kernel_bus_id(pci_bus_id)?);
    fs::read_to_string(path).ok()?.trim().parse().ok().filter(|node| *node >= 0)
}

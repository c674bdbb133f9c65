//! MIG instances that are made and destroyed while the machine runs. Each possible instance, a profile at a place, is a
//! device of the configuration that exists only while the instance is made. So its UUID is the same each time, as on
//! real GPUs.

use core::sync::atomic::Ordering;

use serde::Deserialize;

use crate::Machine;
use crate::config::{DeviceConfig, Size, in_range};

/// Maximum number of a GPU's memory slices.
const MEMORY_SLICES_MAX: u32 = 32;

/// A profile: a kind of GPU instance.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct MigProfile {
    /// For example `1g.10gb`.
    pub name: String,
    /// NVML's constant for the profile.
    pub kind: u32,
    /// The GPU's id of the profile.
    pub id: u32,
    /// Number of compute slices.
    pub compute_slices: u32,
    /// Maximum number of instances with this profile on one GPU.
    pub instances_max: u32,
    /// Memory of one instance, in bytes.
    pub memory_bytes: u64,
    /// Number of streaming multiprocessors.
    pub sm_count: u32,
    /// Numbers of engines: copy, decoder, encoder, JPEG, optical flow.
    pub engines: [u32; 5],
    /// Number of memory slices.
    pub size: u32,
    /// The memory slices at which an instance can begin.
    pub starts: Vec<u32>,
}

/// A possible instance: a profile at one of its places.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Partition {
    /// The profile of the instance.
    pub profile: MigProfile,
    /// The instance's first memory slice.
    pub start: u32,
}

/// Why an instance cannot be made or destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InstanceError {
    /// Other instances occupy its place, or the maximum number with its profile exists.
    NoRoom,
    /// Processes use it, or it contains a compute instance.
    InUse,
    /// It does not exist.
    NotThere,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileProfile {
    name: String,
    kind: u32,
    id: u32,
    compute_slices: u32,
    instances_max: u32,
    memory: Size,
    sm_count: u32,
    #[serde(default)]
    engines: [u32; 5],
    size: u32,
    starts: Vec<u32>,
}

impl FileProfile {
    /// The number of places for an instance with this profile.
    pub(crate) fn places(&self) -> usize {
        self.starts.len()
    }

    /// Checks the profile against its GPU's memory and number of SMs.
    pub(crate) fn check(self, memory_bytes: u64, sm_count: u32) -> Result<MigProfile, String> {
        let name = self.name;
        let of = |key: &str| format!("mig_profiles {name:?}: {key}");
        let size = in_range(&of("size"), self.size.into(), 1, MEMORY_SLICES_MAX.into())? as u32;
        for start in &self.starts {
            in_range(&of("starts"), (*start).into(), 0, (MEMORY_SLICES_MAX - size).into())?;
        }
        Ok(MigProfile {
            kind: self.kind,
            id: self.id,
            compute_slices: self.compute_slices,
            instances_max: self.instances_max,
            memory_bytes: in_range(&of("memory"), self.memory.bytes("memory")?, 1 << 20, memory_bytes)?,
            sm_count: in_range(&of("sm_count"), self.sm_count.into(), 1, sm_count.into())? as u32,
            engines: self.engines,
            size,
            starts: self.starts,
            name,
        })
    }
}

impl Partition {
    /// All possible instances with these profiles, each considered alone.
    pub(crate) fn all(profiles: &[MigProfile]) -> Vec<Partition> {
        let places = |profile: &MigProfile| {
            let at = |&start: &u32| Partition { profile: profile.clone(), start };
            profile.starts.iter().map(at).collect::<Vec<_>>()
        };
        profiles.iter().flat_map(places).collect()
    }

    /// The instance as a device, on GPU `gpu`.
    pub(crate) fn device(self, uuid: [u8; 16], gpu: usize, of: &DeviceConfig) -> DeviceConfig {
        DeviceConfig {
            name: format!("{} MIG {}", of.name, self.profile.name),
            memory_bytes: self.profile.memory_bytes,
            sm_count: self.profile.sm_count,
            uuid,
            is_mig: true,
            gpu: Some(gpu),
            has_mig_mode: false,
            mig_profiles: Vec::new(),
            nvlink: Vec::new(),
            nvswitch: false,
            partition: Some(self),
            ..of.clone()
        }
    }

    fn overlaps(&self, other: &Partition) -> bool {
        self.start < other.start + other.profile.size && other.start < self.start + self.profile.size
    }
}

impl Machine {
    /// Whether device `device` is a GPU instance that has been made.
    #[must_use]
    pub fn has_gpu_instance(&self, device: usize) -> bool {
        self.state.gpu_instances.load(Ordering::Relaxed) & bit(device) != 0
    }

    /// Whether the compute instance in GPU instance `device` has been made.
    #[must_use]
    pub fn has_compute_instance(&self, device: usize) -> bool {
        self.state.compute_instances.load(Ordering::Relaxed) & bit(device) != 0
    }

    /// Makes GPU instance `device`.
    ///
    /// # Errors
    /// There is no room.
    pub fn create_gpu_instance(&self, device: usize) -> Result<(), InstanceError> {
        let fits = |made: u64| self.has_room(device, made).then_some(made | bit(device));
        let instances = &self.state.gpu_instances;
        instances.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| InstanceError::NoRoom)?;
        Ok(())
    }

    fn has_room(&self, device: usize, made: u64) -> bool {
        let devices = &self.config().devices;
        let Some(partition) = &devices[device].partition else { return false };
        let siblings = devices
            .iter()
            .enumerate()
            .filter(|(index, other)| made & bit(*index) != 0 && other.gpu == devices[device].gpu);
        let siblings: Vec<&Partition> = siblings.filter_map(|(_, other)| other.partition.as_ref()).collect();
        let alike = siblings.iter().filter(|other| other.profile.id == partition.profile.id).count();
        alike < partition.profile.instances_max as usize && !siblings.iter().any(|other| other.overlaps(partition))
    }

    /// Makes the compute instance that takes all of GPU instance `device`.
    ///
    /// # Errors
    /// There is one already, or no GPU instance.
    pub fn create_compute_instance(&self, device: usize) -> Result<(), InstanceError> {
        if !self.has_gpu_instance(device) {
            return Err(InstanceError::NotThere);
        }
        let before = self.state.compute_instances.fetch_or(bit(device), Ordering::Relaxed);
        if before & bit(device) == 0 { Ok(()) } else { Err(InstanceError::NoRoom) }
    }

    /// Destroys the compute instance of device `device`.
    ///
    /// # Errors
    /// Processes use it, or there is none.
    pub fn destroy_compute_instance(&self, device: usize) -> Result<(), InstanceError> {
        if !self.has_compute_instance(device) {
            return Err(InstanceError::NotThere);
        }
        if self.device_use(device).processes.iter().any(|process| process.contexts > 0) {
            return Err(InstanceError::InUse);
        }
        self.state.compute_instances.fetch_and(!bit(device), Ordering::Relaxed);
        Ok(())
    }

    /// Destroys GPU instance `device`.
    ///
    /// # Errors
    /// It has a compute instance, or is not there.
    pub fn destroy_gpu_instance(&self, device: usize) -> Result<(), InstanceError> {
        if !self.has_gpu_instance(device) {
            return Err(InstanceError::NotThere);
        }
        if self.has_compute_instance(device) {
            return Err(InstanceError::InUse);
        }
        self.state.gpu_instances.fetch_and(!bit(device), Ordering::Relaxed);
        Ok(())
    }

    /// Makes GPU instance `device` and its compute instance.
    ///
    /// # Errors
    /// There is no room.
    pub fn create_instance(&self, device: usize) -> Result<(), InstanceError> {
        self.create_gpu_instance(device)?;
        self.create_compute_instance(device)
    }

    /// Removes all instances of GPU `gpu`, as a reset does.
    pub fn forget_instances(&self, gpu: usize) {
        let devices = self.config().devices.iter().enumerate();
        let of_it = devices.filter(|(_, device)| device.gpu == Some(gpu)).fold(0, |all, (index, _)| all | bit(index));
        self.state.compute_instances.fetch_and(!of_it, Ordering::Relaxed);
        self.state.gpu_instances.fetch_and(!of_it, Ordering::Relaxed);
    }
}

fn bit(device: usize) -> u64 {
    const { assert!(crate::DEVICES_MAX <= 64) };
    1 << device
}

//! What the adapters need of the node: its devices, and slices of them. The manager implements it; tests have their
//! own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// A node that gives out slices of its devices.
///
/// All but [`devices`](Node::devices) may write files and wait for other threads: asynchronous code calls them through
/// [`blocking`].
pub trait Node: Send + Sync + 'static {
    /// The node's devices, now and whenever something about them has changed.
    fn devices(&self) -> watch::Receiver<Arc<Devices>>;

    /// Asks the driver for the devices now, rather than when it is time to.
    ///
    /// # Errors
    /// It does not answer.
    fn look(&self) -> Result<(), NodeError>;

    /// Makes a MIG instance at its place on a GPU in MIG mode. It is among the devices when this returns.
    ///
    /// # Errors
    /// The driver refuses, because others are there by now or for a reason of its own; then there is no new instance.
    fn create_instance(&self, partition: &Partition) -> Result<Device, NodeError>;

    /// Destroys the MIG instance of this profile at this place, whoever has made it. It is not among the devices any
    /// more when this returns. That there is none is no error.
    ///
    /// # Errors
    /// The driver refuses: programs use it.
    fn destroy_instance(&self, partition: &Partition) -> Result<(), NodeError>;

    /// Makes a slice, and publishes it as CDI devices. If there is one of that name with the same content, that one
    /// is the answer.
    ///
    /// # Errors
    /// See [`CreateError`]; then nothing has changed.
    fn create(&self, request: &SliceRequest) -> Result<Slice, CreateError>;

    /// Removes a slice, also under processes that are in it: they can then use nothing more. No slice of that name is
    /// no error.
    ///
    /// # Errors
    /// It cannot be removed; then nothing has changed.
    fn remove(&self, name: &str) -> Result<(), NodeError>;

    /// The slice of that name.
    fn get(&self, name: &str) -> Option<Slice>;

    /// All slices, by name; also those that others have made.
    fn list(&self) -> Vec<Slice>;

    /// Says who runs in a slice, for people and metrics to read. It is forgotten when the manager ends. No slice of
    /// that name is no error.
    fn set_consumers(&self, name: &str, consumers: &BTreeSet<Consumer>);
}

/// Calls `node` where waiting holds up nobody.
pub async fn blocking<T: Send + 'static>(
    node: &Arc<dyn Node>,
    work: impl FnOnce(&dyn Node) -> T + Send + 'static,
) -> T {
    let node = Arc::clone(node);
    match tokio::task::spawn_blocking(move || work(node.as_ref())).await {
        Ok(outcome) => outcome,
        // It is never aborted, so it has panicked.
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// What there is on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Empty if there is no driver.
    pub driver_version: String,
    /// The newest that the driver serves, for example `13.0`; empty if there is no driver.
    pub cuda_version: String,
    /// In NVML's order.
    pub devices: Vec<Device>,
}

impl Devices {
    /// The device that `uuid` names.
    #[must_use]
    pub fn get(&self, uuid: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.uuid == uuid)
    }

    /// Those that slices can be made of: all but GPUs that are partitioned by MIG.
    pub fn usable(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(|device| !device.is_partitioned)
    }
}

/// A device: a GPU, or a MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// As NVML writes it: `GPU-` or `MIG-` and 32 hexadecimal digits in five groups.
    pub uuid: String,
    /// NVML's index; an instance has its GPU's. For people, never to name a device.
    pub index: u32,
    /// For example `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// What can be given out.
    pub memory_bytes: u64,
    /// Major and minor number, if known.
    pub compute_capability: Option<(u32, u32)>,
    /// For example `0000:3b:00.0`, as the kernel writes it; an instance has its GPU's. `None` if not known.
    pub pci_bus_id: Option<String>,
    /// The PCIe root complex that it hangs on, for example `pci0000:3a`, if known.
    pub pcie_root: Option<String>,
    /// The NUMA node that it hangs on, if known.
    pub numa_node: Option<u32>,
    /// UUIDs of the devices that NVLink connects it to.
    pub nvlink_peers: Vec<String>,
    /// Whether it is partitioned by MIG: its instances are then the devices to use.
    pub is_partitioned: bool,
    /// What instances of it could be made for claims; `None` if none may be, or the driver does not tell.
    pub partitioning: Option<Partitioning>,
    /// If it is an instance of such a GPU: which.
    pub mig_instance: Option<MigInstance>,
    /// Why it cannot be given out now; `None`: it can.
    pub problem: Option<String>,
}

/// Which instance of a GPU in MIG mode a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigInstance {
    /// The GPU.
    pub gpu_uuid: String,
    /// For example `3g.40gb`; empty if the driver does not tell.
    pub profile: String,
    /// Where it is on the GPU, if known.
    pub placement: Option<Placement>,
}

/// What a GPU in MIG mode can be divided into, and what of it is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partitioning {
    /// The kinds of instances.
    pub profiles: Vec<MigProfile>,
    /// Where there are instances now, whoever has made them, and whether programs can run on them or not yet.
    pub occupied: Vec<Placement>,
}

/// A kind of MIG instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigProfile {
    /// For example `3g.40gb`.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// What it takes of its GPU besides memory slices, by name: compute slices, engines.
    pub units: BTreeMap<String, u32>,
    /// Where it can be.
    pub placements: Vec<Placement>,
}

/// Where a MIG instance is on its GPU, in memory slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Placement {
    /// The first one.
    pub start: u32,
    /// How many.
    pub size: u32,
}

impl Placement {
    /// Its memory slices.
    #[must_use]
    pub fn slices(self) -> Range<u32> {
        self.start..self.start.saturating_add(self.size)
    }

    /// Whether both have a memory slice in common, so that only one of them can be taken.
    #[must_use]
    pub fn overlaps(self, other: Placement) -> bool {
        self.slices().start < other.slices().end && other.slices().start < self.slices().end
    }
}

/// As `nvidia-smi` writes it.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.size)
    }
}

/// A MIG instance that is or could be: which, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Partition {
    /// The GPU.
    pub gpu_uuid: String,
    /// The name of its profile.
    pub profile: String,
    /// Where it is on the GPU.
    pub placement: Placement,
}

impl Partition {
    /// Whether only one of both can be.
    #[must_use]
    pub fn excludes(&self, other: &Partition) -> bool {
        self.gpu_uuid == other.gpu_uuid && self.placement.overlaps(other.placement)
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Partition { gpu_uuid, profile, placement } = self;
        write!(f, "MIG instance {profile} at {placement} of {gpu_uuid}")
    }
}

/// A slice to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRequest {
    /// Unique on the node; lower-case letters, digits, `-` and `.`, at most 63 characters.
    pub name: String,
    /// One for each device.
    pub parts: Vec<Part>,
    /// `None`: the node's default.
    pub priority_class: Option<PriorityClass>,
    /// Page-locked host memory that is never exceeded; 0: no limit.
    pub host_memory_limit_bytes: u64,
    /// What is done with processes that get past the slice; `None`: the node's policy.
    pub audit_policy: Option<AuditPolicy>,
    /// For people to read; at most 1024 bytes.
    pub description: String,
    /// Names of CDI devices by which containers may get the slice, besides `aliquot.dev/slice=` and its name: each
    /// `X` of these is published as `aliquot.dev/slice=X`. A container that gets the slice by several of its names
    /// gets it once. Each must be as a slice's name, and no other slice's.
    pub aliases: BTreeSet<String>,
    /// Variables that its containers get besides what every slice's containers get.
    pub environment: BTreeMap<String, String>,
}

/// What a slice has of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The device.
    pub device_uuid: String,
    /// Guaranteed share of its time, 1 to 100.
    pub core_request_percent: u32,
    /// Share of its time that is never exceeded, from the request to 100.
    pub core_limit_percent: u32,
    /// Its memory that is never exceeded.
    pub memory_limit_bytes: u64,
}

/// Which of the slices that want a device goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PriorityClass {
    /// For what answers requests.
    LatencyCritical,
    /// For most.
    Standard,
    /// For what nobody waits for.
    Batch,
}

/// What is done with processes that get past their slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditPolicy {
    /// It is reported.
    Report,
    /// They are ended.
    Stop,
}

/// A slice that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// As it was asked for, but `None` nowhere.
    pub content: SliceRequest,
    /// The fully qualified CDI device that is its own name, for example `aliquot.dev/slice=train-1`.
    pub cdi_device: String,
    /// Processes in it now.
    pub processes: usize,
    /// Who runs in it, as far as somebody said.
    pub consumers: BTreeSet<Consumer>,
}

/// A container that runs in a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Consumer {
    /// Of the pod.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container's name in the pod.
    pub container: String,
}

impl fmt::Display for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

/// Why a slice is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// There is one of that name with another content.
    #[error("a slice named {name:?} exists, and is another one: {difference}")]
    Differs {
        /// The name.
        name: String,
        /// What differs, and how.
        difference: String,
    },
    /// It can never be made so.
    #[error("{0}")]
    Invalid(String),
    /// There is no room for it now, or its device is ill.
    #[error("{0}")]
    Unavailable(String),
    /// A step failed.
    #[error(transparent)]
    Failed(#[from] NodeError),
}

/// The node could not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NodeError(pub String);

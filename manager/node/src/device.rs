//! The devices of a node.

use crate::mig::{MigInstance, Partitioning};

/// The devices of the node, and the driver that serves them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// Empty if there is no driver.
    pub driver_version: String,
    /// The newest CUDA version that the driver serves, for example `13.0`; empty if there is no driver.
    pub cuda_version: String,
    /// All devices, in NVML's order.
    pub devices: Vec<Device>,
    /// Why the driver did not answer the last question; `None` if it did. Until it has answered once, no device is
    /// known.
    pub problem: Option<String>,
}

impl Devices {
    /// The device that `uuid` names.
    #[must_use]
    pub fn get(&self, uuid: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.uuid == uuid)
    }

    /// The devices that slices can be made of: all but GPUs that are partitioned by MIG.
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
    /// The memory that can be given out.
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
    /// The instances of it that could be made for claims; `None` if none may be made, or if the driver does not tell.
    pub partitioning: Option<Partitioning>,
    /// If it is an instance of such a GPU: the GPU, the profile and the place.
    pub mig_instance: Option<MigInstance>,
    /// The mechanism that enforces the shares of its slices.
    pub enforcement: Enforcement,
    /// Why it cannot be given out now; `None` if it can.
    pub problem: Option<String>,
}

/// The mechanism that enforces the shares of a device's slices; the strictest is last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforcement {
    /// NVIDIA's multi-process service (MPS): limits hold, and nothing is guaranteed.
    Limits,
    /// Leases of the device's time: requests are guaranteed, and limits hold.
    Shares,
    /// The GPU itself, of which the device is a MIG instance; its slices share by leases.
    Hardware,
}

//! A node's devices, as its manager reports them to the scheduler: the device plugin's protocol has only counts.

use std::collections::BTreeSet;

use aliquot_dialects::{Dialect, NodeFacts, QgpuPolicy, Spoken};
use serde::{Deserialize, Serialize};

/// The annotation of a node that holds its [`Inventory`].
pub const INVENTORY: &str = "aliquot.dev/inventory";

/// The devices of a node, and how its manager reads requests.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Inventory {
    /// All devices that can be allocated, in the order of their numbers.
    pub devices: Vec<InventoryDevice>,
    /// The dialects that the node speaks, by name.
    pub dialects: BTreeSet<String>,
    /// The bytes that one `aliquot.dev/gpu-memory` stands for.
    pub memory_unit_bytes: u64,
    /// The percent of a device's memory that are kept for containers that ask only for a part of its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core_memory_percent: Option<u32>,
    /// Whether `aliquot.dev/gpu` is a resource.
    pub whole_devices: bool,
    /// The bytes that one `aliyun.com/gpu-mem` stands for.
    pub gpushare_unit_bytes: u64,
    /// How qGPU shares time: the long name of the policy.
    pub qgpu_policy: String,
    /// The containers that may share one device for HAMi and Volcano.
    pub slots_per_device: u32,
    /// The number of `nvidia.com/gpu.shared` that one device counts as.
    pub nvidia_replicas: u32,
    /// The number of `k8s.amazonaws.com/vgpu` that one device counts as.
    pub aws_vgpus: u32,
}

/// A device of a node.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InventoryDevice {
    /// The UUID of the device.
    pub uuid: String,
    /// The index of the device on the node, as NVML counts.
    pub index: u32,
    /// The model of the device, as NVML names it.
    pub model: String,
    /// The memory of the device that can be allocated.
    pub memory_bytes: u64,
    /// The NUMA node to which the device is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// The PCIe root complex to which the device is attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_root: Option<String>,
    /// UUIDs of the devices that NVLink connects it to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nvlink_peers: Vec<String>,
    /// The profile of a MIG instance; empty if the driver does not report it. Absent for other devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig_profile: Option<String>,
    /// Why the device cannot be allocated now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl Inventory {
    /// An inventory of these devices, on a node with these dialects and settings.
    #[must_use]
    pub fn new(devices: Vec<InventoryDevice>, spoken: &Spoken, facts: &NodeFacts) -> Inventory {
        Inventory {
            devices,
            dialects: spoken.iter().map(|dialect| dialect.name().to_owned()).collect(),
            memory_unit_bytes: facts.memory_unit_bytes,
            core_memory_percent: facts.core_memory_percent,
            whole_devices: facts.whole_devices,
            gpushare_unit_bytes: facts.gpushare_unit_bytes,
            qgpu_policy: facts.qgpu_policy.name().to_owned(),
            slots_per_device: facts.slots_per_device,
            nvidia_replicas: facts.nvidia_replicas,
            aws_vgpus: facts.aws_vgpus,
        }
    }

    /// The dialects and settings with which the node reads requests.
    ///
    /// # Errors
    /// The part that this program does not know, such as a dialect of a newer manager.
    pub fn reading(&self) -> Result<(Spoken, NodeFacts), String> {
        let dialects = self.dialects.iter().map(|name| name.parse::<Dialect>().map_err(|error| error.to_string()));
        let spoken = Spoken::new(dialects.collect::<Result<Vec<Dialect>, String>>()?);
        let qgpu_policy = QgpuPolicy::parse(&self.qgpu_policy);
        let facts = NodeFacts {
            memory_unit_bytes: self.memory_unit_bytes,
            core_memory_percent: self.core_memory_percent,
            whole_devices: self.whole_devices,
            gpushare_unit_bytes: self.gpushare_unit_bytes,
            qgpu_policy: qgpu_policy.ok_or_else(|| format!("{:?} is not a policy of qGPU", self.qgpu_policy))?,
            slots_per_device: self.slots_per_device,
            nvidia_replicas: self.nvidia_replicas,
            aws_vgpus: self.aws_vgpus,
        };
        Ok((spoken.map_err(|clash| clash.to_string())?, facts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_reads_requests_as_the_node_does() {
        let spoken = Spoken::new([Dialect::Hami, Dialect::Qgpu]).unwrap();
        let facts = NodeFacts {
            memory_unit_bytes: 1 << 30,
            core_memory_percent: Some(50),
            whole_devices: true,
            gpushare_unit_bytes: 1 << 20,
            qgpu_policy: QgpuPolicy::BurstShare,
            slots_per_device: 7,
            nvidia_replicas: 3,
            aws_vgpus: 5,
        };
        let device = InventoryDevice { uuid: "GPU-1".into(), model: "H100".into(), ..InventoryDevice::default() };
        let written = serde_json::to_string(&Inventory::new(vec![device.clone()], &spoken, &facts)).unwrap();
        let read: Inventory = serde_json::from_str(&written).unwrap();
        assert_eq!(read.devices, [device]);
        assert_eq!(read.reading(), Ok((spoken, facts)));
    }

    #[test]
    fn what_is_not_known_here_is_named() {
        let inventory = Inventory::new(Vec::new(), &Spoken::new([]).unwrap(), &NodeFacts::default());
        let newer = Inventory { dialects: BTreeSet::from(["klingon".to_owned()]), ..inventory.clone() };
        assert!(newer.reading().unwrap_err().contains("klingon"));
        let newer = Inventory { qgpu_policy: "random".into(), ..inventory };
        assert!(newer.reading().unwrap_err().contains("random"));
    }
}

//! The node's devices, as the adapters see them.

use std::fs;
use std::path::Path;

use aliquot_node::{Device, Devices, Enforcement, MigInstance};

use crate::devices::Known;
use crate::inventory::{self, Health, SharingMode};
use crate::pci::kernel_bus_id;

/// Where the kernel lists the devices of the PCI buses.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Converts the known devices to the adapters' types. How GPUs in MIG mode can be partitioned is included only if the
/// adapters may do so.
#[must_use]
pub(super) fn told(known: &Known, may_partition: bool) -> Devices {
    let inventory = &known.inventory;
    Devices {
        driver_version: inventory.driver_version.clone(),
        cuda_version: inventory.cuda_version.clone(),
        devices: inventory.devices.iter().map(|found| device(found, may_partition)).collect(),
        problem: known.problem.clone(),
    }
}

/// A device as the adapters' type.
pub(super) fn device(device: &inventory::Device, may_partition: bool) -> Device {
    let pci_bus_id = kernel_bus_id(&device.pci_bus_id);
    Device {
        uuid: device.uuid.to_string(),
        index: device.index,
        model: device.model.clone(),
        memory_bytes: device.memory_bytes,
        compute_capability: device.compute_capability,
        pcie_root: pci_bus_id.as_deref().and_then(|bus_id| pcie_root(Path::new(PCI_DEVICES), bus_id)),
        pci_bus_id,
        numa_node: device.numa_node.and_then(|node| u32::try_from(node).ok()),
        nvlink_peers: device.nvlink_peers.iter().map(ToString::to_string).collect(),
        is_partitioned: device.mig_enabled,
        partitioning: device.partitioning.clone().filter(|_| may_partition),
        mig_instance: device.mig_instance.as_ref().map(|instance| MigInstance {
            gpu_uuid: instance.gpu.to_string(),
            profile: instance.profile.clone(),
            placement: instance.placement,
        }),
        enforcement: match (device.sharing, &device.mig_instance) {
            (SharingMode::Mps, _) => Enforcement::Limits,
            (SharingMode::Time, None) => Enforcement::Shares,
            (SharingMode::Time, Some(_)) => Enforcement::Hardware,
        },
        problem: match &device.health {
            Health::Healthy => None,
            Health::Unhealthy { reason } => Some(reason.clone()),
        },
    }
}

/// The root complex of a device: the first part of its path among the kernel's devices, for example `pci0000:3a`.
fn pcie_root(pci_devices: &Path, bus_id: &str) -> Option<String> {
    let place = fs::read_link(pci_devices.join(bus_id)).ok()?;
    let mut parts = place.iter().filter_map(|part| part.to_str());
    parts.find(|part| part.starts_with("pci") && part.contains(':')).map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_root_complex_is_where_the_kernel_says() {
        let dir = tempfile::tempdir().unwrap();
        let place = "../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        symlink(place, dir.path().join("0000:3b:00.0")).unwrap();
        assert_eq!(pcie_root(dir.path(), "0000:3b:00.0").as_deref(), Some("pci0000:3a"));
        assert_eq!(pcie_root(dir.path(), "0000:ff:00.0"), None);
    }
}

//! The description of the node's devices for a scheduler.

use aliquot_api_server::{Inventory, InventoryDevice};
use aliquot_dialects::{NodeFacts, Spoken};
use aliquot_node::{Device, Devices};

/// The devices that slices can be made of, for a node that reads requests with these settings.
#[must_use]
pub(super) fn inventory(spoken: &Spoken, facts: &NodeFacts, devices: &Devices) -> Inventory {
    Inventory::new(devices.usable().map(entry).collect(), spoken, facts)
}

fn entry(device: &Device) -> InventoryDevice {
    InventoryDevice {
        uuid: device.uuid.clone(),
        index: device.index,
        model: device.model.clone(),
        memory_bytes: device.memory_bytes,
        numa_node: device.numa_node,
        pcie_root: device.pcie_root.clone(),
        nvlink_peers: device.nvlink_peers.clone(),
        mig_profile: device.mig_instance.as_ref().map(|instance| instance.profile.clone()),
        problem: device.problem.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_plugin::test_node::{GIB, device, mig_instance};

    fn of(devices: Vec<Device>) -> Inventory {
        let devices = Devices { devices, ..Devices::default() };
        inventory(&Spoken::new([]).unwrap(), &NodeFacts::default(), &devices)
    }

    #[test]
    fn a_device_is_told_with_all_that_placement_depends_on() {
        let mut told = device(1, 16);
        told.numa_node = Some(1);
        told.pcie_root = Some("pci0000:3a".into());
        told.nvlink_peers = vec![device(0, 16).uuid];
        told.problem = Some("Xid 79".into());
        let expected = InventoryDevice {
            uuid: told.uuid.clone(),
            index: 1,
            model: "NVIDIA A100-SXM4-80GB".into(),
            memory_bytes: 16 * GIB,
            numa_node: Some(1),
            pcie_root: Some("pci0000:3a".into()),
            nvlink_peers: vec![device(0, 16).uuid],
            mig_profile: None,
            problem: Some("Xid 79".into()),
        };
        assert_eq!(of(vec![told]).devices, [expected]);
    }

    #[test]
    fn in_place_of_a_partitioned_gpu_its_instances_are_told() {
        let mut gpu = device(0, 80);
        gpu.is_partitioned = true;
        let found = of(vec![gpu, mig_instance(1, "1g.10gb"), mig_instance(2, "")]).devices;
        let profiles: Vec<Option<&str>> = found.iter().map(|device| device.mig_profile.as_deref()).collect();
        // A MIG instance without a known profile is still not given out as a whole GPU.
        assert_eq!(profiles, [Some("1g.10gb"), Some("")]);
    }
}

//! The devices that a container's programs see.
//!
//! CUDA finds the devices whose nodes a container has. So no variable is needed, and programs that take
//! `CUDA_VISIBLE_DEVICES` for a list of numbers (vLLM does) start. It is set only where nodes do not decide: of several
//! MIG instances CUDA takes only one, the first unless one is named; a client of MPS sees the server's devices; and a
//! container without nodes (WSL) sees all devices.

use std::path::Path;

use super::device_nodes::DeviceNode;
use crate::inventory::{Device, DeviceUuid, Inventory, SharingMode};
use crate::slices::Part;

/// The variables for a container that gets `nodes`, for a slice with `parts`.
pub(super) fn variables(parts: &[Part], inventory: &Inventory, nodes: &[DeviceNode]) -> Vec<String> {
    let uuids: Vec<&str> = parts.iter().map(|part| part.device.as_str()).collect();
    let uuids = uuids.join(",");
    // `void` keeps NVIDIA's runtime from adding devices, even if the image asks for all of them. NVIDIA's own
    // specifications set it too.
    let mut variables = vec![format!("ALIQUOT_DEVICES={uuids}"), "NVIDIA_VISIBLE_DEVICES=void".to_owned()];
    let devices: Option<Vec<&Device>> = parts
        .iter()
        .map(|part| inventory.device(&part.device).filter(|device| is_told_by_node(device, nodes)))
        .collect();
    match devices.as_deref() {
        None => variables.push(format!("CUDA_VISIBLE_DEVICES={uuids}")),
        Some([_]) => {}
        Some(devices) => {
            // CUDA's default order puts the fastest device first.
            variables.push("CUDA_DEVICE_ORDER=PCI_BUS_ID".to_owned());
            variables.extend(reordered(devices).map(|ordinals| format!("CUDA_VISIBLE_DEVICES={ordinals}")));
        }
    }
    variables
}

fn is_told_by_node(device: &Device, nodes: &[DeviceNode]) -> bool {
    let path = device.minor.map(|minor| format!("/dev/nvidia{minor}"));
    device.mig_instance.is_none()
        && device.sharing == SharingMode::Time
        && path.is_some_and(|path| nodes.iter().any(|node| node.path == Path::new(&path)))
}

/// The devices' positions among themselves in bus order; `None` if they stand in that order already.
fn reordered(devices: &[&Device]) -> Option<String> {
    let mut on_bus: Vec<(u32, &DeviceUuid)> = devices.iter().map(|device| (device.index, &device.uuid)).collect();
    // NVML numbers devices by their place on the bus.
    on_bus.sort_unstable();
    let ordinal = |device: &&Device| on_bus.iter().position(|(_, uuid)| *uuid == &device.uuid);
    let ordinals: Vec<usize> = devices.iter().filter_map(ordinal).collect();
    let texts: Vec<String> = ordinals.iter().map(usize::to_string).collect();
    (!ordinals.is_sorted()).then(|| texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Health, MigInstance};

    fn device(index: u32) -> Device {
        Device {
            uuid: DeviceUuid::new(format!("GPU-{index}")),
            index,
            model: String::new(),
            memory_bytes: 1,
            pci_bus_id: String::new(),
            minor: Some(index),
            numa_node: None,
            nvlink_peers: Vec::new(),
            compute_capability: None,
            mig_enabled: false,
            partitioning: None,
            mig_instance: None,
            tells_utilisation: true,
            sharing: SharingMode::Time,
            health: Health::Healthy,
        }
    }

    /// The variables for `devices` in a container with the nodes of all GPUs, without the two that are always set.
    fn told(devices: &[Device]) -> Vec<String> {
        let part = |device: &Device| Part {
            device: device.uuid.clone(),
            core_request_percent: 1,
            core_limit_percent: 1,
            memory_limit_bytes: 1,
        };
        let parts: Vec<Part> = devices.iter().map(part).collect();
        let inventory = Inventory { devices: devices.to_vec(), ..Inventory::default() };
        let node = |minor| DeviceNode { path: format!("/dev/nvidia{minor}").into(), host_path: None };
        let nodes: Vec<DeviceNode> = (0..8).map(node).collect();
        let mut told = variables(&parts, &inventory, &nodes);
        let uuids: Vec<&str> = parts.iter().map(|part| part.device.as_str()).collect();
        assert_eq!(told.remove(0), format!("ALIQUOT_DEVICES={}", uuids.join(",")));
        assert_eq!(told.remove(0), "NVIDIA_VISIBLE_DEVICES=void");
        told
    }

    #[test]
    fn a_gpu_with_its_own_device_node_needs_no_uuid() {
        assert_eq!(told(&[device(3)]), Vec::<String>::new());
        assert_eq!(told(&[device(3), device(5)]), ["CUDA_DEVICE_ORDER=PCI_BUS_ID"]);
    }

    #[test]
    fn gpus_in_another_order_than_that_of_the_bus_are_numbered_among_themselves() {
        let told = told(&[device(5), device(3), device(4)]);
        assert_eq!(told, ["CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=2,0,1"]);
    }

    #[test]
    fn devices_that_no_device_node_identifies_are_named() {
        let gpu = DeviceUuid::new("GPU-1");
        let instance = MigInstance {
            gpu,
            profile: String::new(),
            gpu_instance: Some(1),
            compute_instance: Some(0),
            placement: None,
        };
        for unnamed in [
            Device { mig_instance: Some(instance), ..device(1) },
            Device { sharing: SharingMode::Mps, ..device(1) },
            Device { minor: None, ..device(1) },
            Device { minor: Some(9), ..device(1) },
        ] {
            assert_eq!(told(&[unnamed]), ["CUDA_VISIBLE_DEVICES=GPU-1"]);
        }
    }
}

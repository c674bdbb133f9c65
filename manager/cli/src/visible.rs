//! `CUDA_VISIBLE_DEVICES`: its value for a command in a slice, and its meaning for this program.

use std::ffi::OsStr;
use std::fs;

use aliquot_proto::node::v1::{Device, Node, SharingMode, Slice};

use crate::error::{Failure, Result};

/// The variable that limits which devices CUDA sees.
pub(crate) const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The variables by which a command sees the devices of `slice`, in the slice's order.
///
/// The devices are named by numbers where these are certain, because some programs understand only numbers (vLLM, for
/// example). The numbers are those of the bus, which are NVML's too. UUIDs are used where CUDA numbers devices
/// differently: beside MIG instances, under MPS, and for a command that has nodes of other devices than the manager.
pub(crate) fn variables(slice: &Slice, node: &Node) -> Vec<(&'static str, String)> {
    named(slice, node, &device_nodes())
}

fn named(slice: &Slice, node: &Node, device_nodes: &[String]) -> Vec<(&'static str, String)> {
    let uuids: Vec<&str> = slice.parts.iter().map(|part| part.device_uuid.as_str()).collect();
    let gpus = node.devices.iter().filter(|device| device.mig_gpu_uuid.is_empty()).count();
    let has_mig = gpus < node.devices.len() || node.devices.iter().any(|device| device.mig_enabled);
    // A machine without nodes has another way to its devices.
    let sees_all = device_nodes.is_empty() || device_nodes.len() == gpus;
    let index = |uuid: &&str| {
        let device = node.devices.iter().find(|device| device.uuid == *uuid)?;
        (device.sharing() != SharingMode::Mps).then(|| device.index.to_string())
    };
    let indices: Option<Vec<String>> = uuids.iter().map(index).collect();
    let mut variables = vec![("NVIDIA_VISIBLE_DEVICES", uuids.join(","))];
    match indices {
        Some(indices) if sees_all && !has_mig => {
            variables.push((VARIABLE, indices.join(",")));
            variables.push(("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()));
        }
        _ => variables.push((VARIABLE, uuids.join(","))),
    }
    variables
}

/// The GPU device nodes that this process has.
fn device_nodes() -> Vec<String> {
    let is_gpu = |name: &String| {
        let number = name.strip_prefix("nvidia");
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = fs::read_dir("/dev").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(is_gpu).collect()
}

/// Chooses `count` devices of `node`, among those that `variable`, from this program's environment, shows: those of
/// which the least is given to slices. A user to whom a job scheduler such as Slurm has assigned devices means only
/// these.
pub(crate) fn chosen_from<'node>(variable: &OsStr, count: usize, node: &'node Node) -> Result<Vec<&'node Device>> {
    let variable = variable.to_string_lossy();
    let mut shown: Vec<&Device> = Vec::new();
    for entry in variable.split(',').map(str::trim) {
        let is_named = |device: &&Device| match entry.parse::<u32>() {
            Ok(index) => device.index == index && device.mig_gpu_uuid.is_empty(),
            Err(_) => !entry.is_empty() && device.uuid.to_lowercase().starts_with(&entry.to_lowercase()),
        };
        // As in CUDA, an entry that names no device ends the list.
        let Some(device) = node.devices.iter().find(is_named) else { break };
        if !shown.iter().any(|other| other.uuid == device.uuid) {
            shown.push(device);
        }
    }
    if shown.len() < count {
        return Err(Failure::new(format!(
            "{VARIABLE}={variable} shows {} devices of this node, and the slice is to have {count}",
            shown.len()
        ))
        .hint("name the devices with --device, or unset the variable"));
    }
    // A stable sort, so that equal devices stay in the variable's order.
    shown.sort_by_key(|device| (device.core_requested_percent, device.memory_given_bytes));
    shown.truncate(count);
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::Part;

    use super::*;

    fn device(index: u32, core_requested_percent: u32) -> Device {
        Device { uuid: format!("GPU-{index}x"), index, core_requested_percent, ..Device::default() }
    }

    fn node(devices: Vec<Device>) -> Node {
        Node { devices, ..Node::default() }
    }

    fn slice(uuids: &[&str]) -> Slice {
        let part = |uuid: &&str| Part { device_uuid: (*uuid).to_owned(), ..Part::default() };
        Slice { parts: uuids.iter().map(part).collect(), ..Slice::default() }
    }

    fn cuda(slice: &Slice, node: &Node, nodes: usize) -> String {
        let nodes: Vec<String> = (0..nodes).map(|minor| format!("nvidia{minor}")).collect();
        let variables = named(slice, node, &nodes);
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        let cuda = value(VARIABLE).unwrap();
        assert_eq!(value("CUDA_DEVICE_ORDER").is_some(), !cuda.starts_with("GPU-"), "{variables:?}");
        assert!(value("NVIDIA_VISIBLE_DEVICES").unwrap().starts_with("GPU-"));
        cuda
    }

    #[test]
    fn a_command_is_told_numbers_in_the_slices_order() {
        let node = node(vec![device(0, 0), device(1, 0), device(2, 0)]);
        assert_eq!(cuda(&slice(&["GPU-2x", "GPU-0x"]), &node, 3), "2,0");
        assert_eq!(cuda(&slice(&["GPU-1x"]), &node, 0), "1");
    }

    #[test]
    fn where_a_number_may_mean_another_device_the_uuid_is_told() {
        let gpus = vec![device(0, 0), device(1, 0)];
        // The manager's container has more devices than this one.
        assert_eq!(cuda(&slice(&["GPU-1x"]), &node(gpus.clone()), 1), "GPU-1x");
        assert_eq!(cuda(&slice(&["GPU-7x"]), &node(gpus.clone()), 2), "GPU-7x");
        let instance = Device { mig_gpu_uuid: "GPU-0x".to_owned(), uuid: "MIG-a".to_owned(), ..device(2, 0) };
        let beside_mig = node(vec![gpus[0].clone(), gpus[1].clone(), instance]);
        assert_eq!(cuda(&slice(&["GPU-1x"]), &beside_mig, 2), "GPU-1x");
        let partitioned = node(vec![Device { mig_enabled: true, ..device(0, 0) }, device(1, 0)]);
        assert_eq!(cuda(&slice(&["GPU-1x"]), &partitioned, 2), "GPU-1x");
        let mps = node(vec![Device { sharing: SharingMode::Mps.into(), ..device(0, 0) }]);
        assert_eq!(cuda(&slice(&["GPU-0x"]), &mps, 1), "GPU-0x");
    }

    #[test]
    fn devices_are_chosen_from_the_visible_ones() {
        let node = node(vec![device(0, 90), device(1, 50), device(2, 10), device(3, 0)]);
        let chosen = |variable: &str, count| {
            let chosen = chosen_from(OsStr::new(variable), count, &node)?;
            Ok::<_, Failure>(chosen.iter().map(|device| device.index).collect::<Vec<_>>())
        };
        assert_eq!(chosen("2", 1).unwrap(), [2]);
        assert_eq!(chosen("0,1,2", 1).unwrap(), [2]);
        assert_eq!(chosen(" gpu-1 ,GPU-0x", 2).unwrap(), [1, 0]);
        for (variable, count) in [("", 1), ("-1", 1), ("NoDevFiles", 1), ("1,1", 2), ("1,9,2", 2)] {
            assert!(chosen(variable, count).unwrap_err().to_string().contains("unset"), "{variable}");
        }
    }
}

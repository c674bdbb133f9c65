//! `CUDA_VISIBLE_DEVICES`: its meaning for this program.

use std::ffi::OsStr;

pub(crate) use aliquot_agent::slice_environment::VISIBLE_DEVICES as VARIABLE;
use aliquot_proto::node::v1::{Device, Node};

use crate::error::{Failure, Result};

/// Chooses `count` devices of `node`, among those that `variable`, from this program's environment, shows. It takes the
/// devices with the smallest parts given to slices. A user to whom a job scheduler such as Slurm has assigned devices
/// means only these.
pub(crate) fn chosen_from<'node>(variable: &OsStr, count: usize, node: &'node Node) -> Result<Vec<&'node Device>> {
    let variable = variable.to_string_lossy();
    let mut shown: Vec<&Device> = Vec::new();
    for entry in variable.split(',').map(str::trim) {
        let is_named = |device: &&Device| match entry.parse::<u32>() {
            Ok(index) => device.index == index && device.mig_gpu_uuid.is_empty(),
            Err(_) => !entry.is_empty() && device.uuid.to_lowercase().starts_with(&entry.to_lowercase()),
        };
        // As in CUDA, an entry that names no device ends the list.
        let named = node.devices.iter().find(is_named);
        let Some(device) = named.and_then(|device| with_slices(device, node)) else { break };
        if !shown.iter().any(|other| other.uuid == device.uuid) {
            shown.push(device);
        }
    }
    if shown.len() < count {
        return Err(Failure::new(format!(
            "{VARIABLE}={variable} shows {} devices of this node, but the slice needs {count}",
            shown.len()
        ))
        .hint("name the devices with --device, or unset the variable"));
    }
    // A stable sort, so that equal devices stay in the variable's order.
    shown.sort_by_key(|device| (device.core_requested_percent, device.memory_given_bytes));
    shown.truncate(count);
    Ok(shown)
}

/// The device that CUDA takes where `device` is named, and on which slices are made: the first instance of a GPU that MIG
/// divides.
fn with_slices<'node>(device: &'node Device, node: &'node Node) -> Option<&'node Device> {
    match device.mig_enabled {
        false => Some(device),
        true => node.devices.iter().find(|instance| instance.mig_gpu_uuid == device.uuid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, core_requested_percent: u32) -> Device {
        Device { uuid: format!("GPU-{index}x"), index, core_requested_percent, ..Device::default() }
    }

    fn node(devices: Vec<Device>) -> Node {
        Node { devices, ..Node::default() }
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

    #[test]
    fn a_gpu_that_mig_divides_means_its_first_instance() {
        let instance = |name: &str, index| Device {
            uuid: format!("MIG-{name}"),
            mig_gpu_uuid: format!("GPU-{index}x"),
            ..device(index, 0)
        };
        let divided = |index| Device { mig_enabled: true, ..device(index, 0) };
        let node = node(vec![divided(0), instance("a", 0), instance("b", 0), device(1, 0), divided(2)]);
        let chosen = |variable: &str, count| {
            let chosen = chosen_from(OsStr::new(variable), count, &node)?;
            Ok::<_, Failure>(chosen.iter().map(|device| device.uuid.clone()).collect::<Vec<_>>())
        };
        assert_eq!(chosen("0", 1).unwrap(), ["MIG-a"]);
        assert_eq!(chosen("GPU-0x", 1).unwrap(), ["MIG-a"]);
        assert_eq!(chosen("MIG-b,1", 2).unwrap(), ["MIG-b", "GPU-1x"]);
        // It has no instance.
        assert!(chosen("2", 1).is_err());
    }
}

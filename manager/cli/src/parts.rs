//! Turns the request on the command line into the parts of a slice.

use std::ffi::OsStr;

use aliquot_proto::node::v1::{Device, Node, Part};

use crate::args::ShareArgs;
use crate::error::{Failure, Result, exit};
use crate::quantity::{CorePercent, Memory};
use crate::{simulated, visible};

/// The parts of the slice that `share` requests on `node`. If it names no devices, they are chosen from those that
/// `shown`, a value of `CUDA_VISIBLE_DEVICES`, shows.
pub(crate) fn of_share(share: &ShareArgs, shown: Option<&OsStr>, node: &Node) -> Result<Vec<Part>> {
    check_limit(Some(share.gpu_core), share.gpu_core_limit)?;
    let part = |device: Option<&Device>| {
        Ok(Part {
            device_uuid: device.map(|device| device.uuid.clone()).unwrap_or_default(),
            core_request_percent: share.gpu_core.percent(),
            core_limit_percent: share.gpu_core_limit.map_or(0, CorePercent::percent),
            memory_limit_bytes: memory_bytes(share.gpu_memory, device, node)?,
        })
    };
    if share.device.is_empty() {
        if with_slices(node).next().is_none() {
            return Err(no_devices(node));
        }
        let count = usize::from(share.devices);
        let Some(shown) = shown else { return Ok(vec![part(None)?; count]) };
        let chosen = visible::chosen_from(shown, count, node)?;
        return chosen.into_iter().map(|device| part(Some(device))).collect();
    }
    devices(&share.device, node)?.into_iter().map(|device| part(Some(device))).collect()
}

/// The changes that `slice resize` requests; everything else stays.
pub(crate) fn of_change(
    core: Option<CorePercent>,
    core_limit: Option<CorePercent>,
    memory: Option<Memory>,
    only: &[String],
    parts: &[Part],
    node: &Node,
) -> Result<Vec<Part>> {
    check_limit(core, core_limit)?;
    let changed: Vec<&Device> = match only {
        [] => node.devices.iter().filter(|device| parts.iter().any(|part| part.device_uuid == device.uuid)).collect(),
        uuids => devices(uuids, node)?,
    };
    let change = |device: &Device| {
        Ok(Part {
            device_uuid: device.uuid.clone(),
            core_request_percent: core.map_or(0, CorePercent::percent),
            core_limit_percent: core_limit.map_or(0, CorePercent::percent),
            memory_limit_bytes: memory_bytes(memory, Some(device), node)?,
        })
    };
    changed.into_iter().map(change).collect()
}

fn check_limit(core: Option<CorePercent>, limit: Option<CorePercent>) -> Result<()> {
    match (core.map(CorePercent::percent), limit.map(CorePercent::percent)) {
        (Some(core), Some(limit)) if limit < core => {
            Err(Failure::new(format!("--gpu-core-limit {limit} is less than --gpu-core {core}"))
                .hint("the limit must be at least the guaranteed share; leave it out to make them equal")
                .exit(exit::USAGE))
        }
        _ => Ok(()),
    }
}

/// The devices of `node` on which slices are made. A GPU that MIG divides is listed before its instances, and has none.
pub(crate) fn with_slices(node: &Node) -> impl Iterator<Item = &Device> {
    node.devices.iter().filter(|device| !device.mig_enabled)
}

/// The failure for a node without devices on which slices are made.
pub(crate) fn no_devices(node: &Node) -> Failure {
    if !node.devices.is_empty() {
        return Failure::new("MIG divides the GPUs of this node, but there is no instance")
            .hint("make instances with nvidia-smi mig, or turn MIG off; see: aliquot nodes");
    }
    Failure::new("this node has no GPU that the manager can see").hint(match simulated::is_to_be_had() {
        true => "see: aliquot doctor; to try it without a GPU: aliquot demo, or aliquot run --simulated …",
        false => "see: aliquot doctor",
    })
}

/// `memory` in bytes on `device`, or on any device of `node`; 0 if nothing is requested.
fn memory_bytes(memory: Option<Memory>, device: Option<&Device>, node: &Node) -> Result<u64> {
    let Some(memory) = memory else { return Ok(0) };
    if let Some(device) = device {
        return Ok(memory.of_device(device.memory_bytes)?);
    }
    let sizes = || with_slices(node).map(|device| device.memory_bytes);
    let (Some(least), Some(greatest)) = (sizes().min(), sizes().max()) else { return Err(no_devices(node)) };
    if matches!(memory, Memory::Part { .. }) && least != greatest {
        return Err(Failure::new(
            "a percentage of memory is ambiguous here: the devices have memories of different sizes",
        )
        .hint("name the devices with --device, or give the memory in bytes, such as 4GiB")
        .exit(exit::USAGE));
    }
    Ok(memory.of_device(greatest)?)
}

/// The devices of `node` whose UUIDs begin with `prefixes`, one for each prefix.
fn devices<'node>(prefixes: &[String], node: &'node Node) -> Result<Vec<&'node Device>> {
    let mut found: Vec<&Device> = Vec::with_capacity(prefixes.len());
    for prefix in prefixes {
        let device = device(prefix, node)?;
        if found.iter().any(|other| other.uuid == device.uuid) {
            return Err(Failure::new(format!("the device {} is named twice", device.uuid))
                .hint("a slice has at most one part of a device")
                .exit(exit::USAGE));
        }
        found.push(device);
    }
    Ok(found)
}

fn device<'node>(prefix: &str, node: &'node Node) -> Result<&'node Device> {
    let known = || {
        let uuids: Vec<_> = node.devices.iter().map(|device| format!("{} ({})", device.uuid, device.model)).collect();
        format!("this node has {}", uuids.join(", "))
    };
    if node.devices.is_empty() {
        return Err(no_devices(node));
    }
    let matches: Vec<&Device> = node.devices.iter().filter(|device| device.uuid.starts_with(prefix)).collect();
    match matches[..] {
        [device] => Ok(device),
        _ if !prefix.is_empty() && prefix.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(Failure::new(format!("--device {prefix} is an index, and the index of a device can change"))
                .hint(format!("give the UUID of the device; {}", known()))
                .exit(exit::USAGE))
        }
        [] => Err(Failure::new(format!("no device has the UUID {prefix:?}")).hint(known())),
        _ => {
            Err(Failure::new(format!("{} devices have a UUID that begins with {prefix:?}", matches.len()))
                .hint(known()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(devices: &[(&str, u64)]) -> Node {
        let devices = devices.iter().map(|&(uuid, memory_bytes)| Device {
            uuid: uuid.to_owned(),
            memory_bytes,
            ..Device::default()
        });
        Node { devices: devices.collect(), ..Node::default() }
    }

    fn share(core: &str, memory: Option<&str>, device: &[&str]) -> ShareArgs {
        ShareArgs {
            gpu_core: core.parse().unwrap(),
            gpu_core_limit: None,
            gpu_memory: memory.map(|memory| memory.parse().unwrap()),
            host_memory: None,
            priority: None,
            devices: 2,
            device: device.iter().map(|&uuid| uuid.to_owned()).collect(),
        }
    }

    fn refused(share: &ShareArgs, node: &Node) -> String {
        of_share(share, None, node).unwrap_err().to_string()
    }

    #[test]
    fn the_manager_chooses_devices_that_are_not_named() {
        let parts =
            of_share(&share("30", Some("4GiB"), &[]), None, &node(&[("GPU-a", 8 << 30), ("GPU-b", 8 << 30)])).unwrap();
        let part = Part { core_request_percent: 30, memory_limit_bytes: 4 << 30, ..Part::default() };
        assert_eq!(parts, [part.clone(), part]);
    }

    #[test]
    fn unnamed_devices_are_among_the_visible_ones() {
        let node = node(&[("GPU-a", 8 << 30), ("GPU-b", 16 << 30), ("GPU-c", 16 << 30)]);
        let shown = Some(OsStr::new("GPU-c,GPU-b"));
        let parts = of_share(&share("10", Some("50%"), &[]), shown, &node).unwrap();
        let got: Vec<_> = parts.iter().map(|part| (part.device_uuid.as_str(), part.memory_limit_bytes)).collect();
        assert_eq!(got, [("GPU-c", 8 << 30), ("GPU-b", 8 << 30)]);
        let named = of_share(&share("10", None, &["GPU-a"]), shown, &node).unwrap();
        assert_eq!(named[0].device_uuid, "GPU-a");
    }

    #[test]
    fn a_device_is_named_by_the_beginning_of_its_uuid() {
        let node = node(&[("GPU-a1", 8 << 30), ("GPU-a2", 16 << 30), ("GPU-b", 8 << 30)]);
        let parts = of_share(&share("10%", Some("25%"), &["GPU-a2", "GPU-b"]), None, &node).unwrap();
        let got: Vec<_> = parts.iter().map(|part| (part.device_uuid.as_str(), part.memory_limit_bytes)).collect();
        assert_eq!(got, [("GPU-a2", 4 << 30), ("GPU-b", 2 << 30)]);
        assert!(refused(&share("10", None, &["GPU-a"]), &node).contains("2 devices"));
        assert!(refused(&share("10", None, &["GPU-c"]), &node).contains("no device"));
        assert!(refused(&share("10", None, &["0"]), &node).contains("is an index"));
        assert!(refused(&share("10", None, &["GPU-b", "GPU-b"]), &node).contains("named twice"));
    }

    #[test]
    fn memory_must_mean_something_and_fit() {
        let two = node(&[("GPU-a", 8 << 30), ("GPU-b", 16 << 30)]);
        assert!(refused(&share("10", Some("25%"), &[]), &two).contains("different sizes"));
        assert!(refused(&share("10", Some("17GiB"), &[]), &two).contains("more than the device has"));
        assert!(
            refused(&share("10", Some("9GiB"), &["GPU-a"]), &two).contains("more than the device has, which is 8 GiB")
        );
        assert!(refused(&share("10", None, &[]), &node(&[])).contains("aliquot doctor"));
    }

    #[test]
    fn a_gpu_that_mig_divides_is_none_of_the_devices() {
        let mut node = node(&[("GPU-a", 80 << 30), ("MIG-1", 10 << 30), ("MIG-2", 10 << 30)]);
        node.devices[0].mig_enabled = true;
        let parts = of_share(&share("50", Some("50%"), &[]), None, &node).unwrap();
        assert_eq!(parts[0].memory_limit_bytes, 5 << 30);
        node.devices.truncate(1);
        for memory in [None, Some("50%")] {
            assert!(refused(&share("50", memory, &[]), &node).contains("there is no instance"), "{memory:?}");
        }
    }

    #[test]
    fn the_limit_is_at_least_the_request() {
        let node = node(&[("GPU-a", 8 << 30)]);
        let mut share = share("60", None, &[]);
        share.gpu_core_limit = Some("30".parse().unwrap());
        assert!(refused(&share, &node).contains("--gpu-core-limit 30 is less"));
    }

    #[test]
    fn a_change_leaves_the_rest_alone() {
        let node = node(&[("GPU-a", 8 << 30), ("GPU-b", 16 << 30), ("GPU-c", 8 << 30)]);
        let parts = ["GPU-a", "GPU-b"].map(|uuid| Part {
            device_uuid: uuid.to_owned(),
            core_request_percent: 10,
            ..Part::default()
        });
        let changes = of_change(None, None, Some("50%".parse().unwrap()), &[], &parts, &node).unwrap();
        let got: Vec<_> = changes
            .iter()
            .map(|part| (part.device_uuid.as_str(), part.core_request_percent, part.memory_limit_bytes))
            .collect();
        assert_eq!(got, [("GPU-a", 0, 4 << 30), ("GPU-b", 0, 8 << 30)]);
        let one = of_change(Some("5".parse().unwrap()), None, None, &["GPU-b".to_owned()], &parts, &node).unwrap();
        assert_eq!(one.len(), 1);
        assert_eq!((one[0].device_uuid.as_str(), one[0].core_request_percent), ("GPU-b", 5));
    }
}

//! The variables that put a command into a slice, for each program that starts commands.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aliquot_proto::node::v1::{Node, SharingMode, Slice};

/// The variable that limits which devices CUDA sees.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The variable by which images ask NVIDIA's own runtime for devices.
pub(crate) const NVIDIA_VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// The reason why no command can be put into a slice.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotPreloadable {
    /// The manager is of a version that names no shim.
    #[error("the node manager names no library to preload for the slice")]
    NoShim,
    /// The loader would not find the shim at this path.
    #[error("the loader cannot preload {0:?}: it splits the path at a colon or space")]
    Path(String),
}

/// The variables for a command in `slice` on `node`. `preloaded` is the `LD_PRELOAD` that the command's user has set.
///
/// # Errors
/// The shim cannot be preloaded.
pub fn variables(
    slice: &Slice,
    node: &Node,
    preloaded: Option<&OsStr>,
) -> Result<Vec<(String, OsString)>, NotPreloadable> {
    let own = slice.environment.iter().filter_map(|entry| entry.split_once('='));
    let mut variables: Vec<_> = own.map(|(name, value)| (name.to_owned(), value.into())).collect();
    variables.push(("LD_PRELOAD".to_owned(), preload(&slice.shim_path, &slice.stand_in_path, preloaded)?));
    let visible = visible_devices(slice, node, &device_nodes());
    variables.extend(visible.into_iter().map(|(name, value)| (name.to_owned(), value.into())));
    Ok(variables)
}

/// `LD_PRELOAD` with the shim and its stand-in, followed by the user's own libraries.
fn preload(shim_path: &str, stand_in_path: &str, users: Option<&OsStr>) -> Result<OsString, NotPreloadable> {
    if shim_path.is_empty() {
        return Err(NotPreloadable::NoShim);
    }
    if shim_path.contains([':', ' ', '\t', '\n']) {
        return Err(NotPreloadable::Path(shim_path.to_owned()));
    }
    let mut list = OsString::from(shim_path);
    // Older managers name no stand-in. The path is safe for the loader because it begins with the same directory.
    if !stand_in_path.is_empty() {
        list.push(":");
        list.push(stand_in_path);
    }
    // The loader splits the list at colons and spaces.
    let entries = users.map_or(&[][..], OsStrExt::as_bytes).split(|byte| matches!(byte, b':' | b' '));
    for entry in entries.filter(|entry| !entry.is_empty()).map(OsStr::from_bytes) {
        if entry != stand_in_path && !is_shim_of_a_slice(Path::new(entry), shim_path) {
            list.push(":");
            list.push(entry);
        }
    }
    Ok(list)
}

/// Whether `library` is the shim of another slice of the same manager, in which this program itself runs. Such a shim
/// is left out, because a command is in one slice only.
fn is_shim_of_a_slice(library: &Path, shim_path: &str) -> bool {
    // <runtime>/slices/<id>/region/<library>
    let slices = |shim: &Path| Some((shim.ancestors().nth(3)?.to_owned(), shim.file_name()?.to_owned()));
    let own = slices(Path::new(shim_path));
    own.is_some() && slices(library) == own
}

/// The variables by which a command sees the devices of `slice`, in the slice's order.
///
/// The devices are named by numbers where these are certain, because some programs understand only numbers (vLLM, for
/// example). The numbers follow the bus, as NVML's do. UUIDs are used where CUDA numbers devices differently: beside
/// MIG instances, under MPS, and for a command that has nodes of other devices than the manager.
fn visible_devices(slice: &Slice, node: &Node, device_nodes: &[String]) -> Vec<(&'static str, String)> {
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
            variables.push((VISIBLE_DEVICES, indices.join(",")));
            variables.push(("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()));
        }
        _ => variables.push((VISIBLE_DEVICES, uuids.join(","))),
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

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::{Device, Part};

    use super::*;

    #[test]
    fn the_shim_comes_first() {
        assert_eq!(preload("/r/a.so", "", None).unwrap(), "/r/a.so");
        assert_eq!(preload("/r/a.so", "", Some(OsStr::new(""))).unwrap(), "/r/a.so");
        assert_eq!(preload("/r/a.so", "/l/a.so", None).unwrap(), "/r/a.so:/l/a.so");
        assert_eq!(preload("/r/a.so", "/l/a.so", Some(OsStr::new("x.so:y.so"))).unwrap(), "/r/a.so:/l/a.so:x.so:y.so");
        assert_eq!(preload("/r/a.so", "", Some(OsStr::new("x.so  /lib/y.so:"))).unwrap(), "/r/a.so:x.so:/lib/y.so");
    }

    #[test]
    fn the_shim_of_the_slice_around_is_left_out() {
        let users = Some(OsStr::new("/r/slices/1/region/a.so:/r/lib/a.so:x.so"));
        let inner = preload("/r/slices/2/region/a.so", "/r/lib/a.so", users).unwrap();
        assert_eq!(inner, "/r/slices/2/region/a.so:/r/lib/a.so:x.so");
        let elsewhere =
            preload("/q/slices/2/region/a.so", "", Some(OsStr::new("/r/slices/1/region/a.so:x.so"))).unwrap();
        assert_eq!(elsewhere, "/q/slices/2/region/a.so:/r/slices/1/region/a.so:x.so");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        assert_eq!(preload("/r r/a.so", "", None), Err(NotPreloadable::Path("/r r/a.so".into())));
        assert_eq!(preload("", "", None), Err(NotPreloadable::NoShim));
    }

    fn device(index: u32) -> Device {
        Device { uuid: format!("GPU-{index}x"), index, ..Device::default() }
    }

    fn node(devices: Vec<Device>) -> Node {
        Node { devices, ..Node::default() }
    }

    fn slice(uuids: &[&str]) -> Slice {
        let part = |uuid: &&str| Part { device_uuid: (*uuid).to_owned(), ..Part::default() };
        Slice { parts: uuids.iter().map(part).collect(), shim_path: "/r/a.so".to_owned(), ..Slice::default() }
    }

    fn cuda(slice: &Slice, node: &Node, nodes: usize) -> String {
        let nodes: Vec<String> = (0..nodes).map(|minor| format!("nvidia{minor}")).collect();
        let variables = visible_devices(slice, node, &nodes);
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
        let cuda = value(VISIBLE_DEVICES).unwrap();
        assert_eq!(value("CUDA_DEVICE_ORDER").is_some(), !cuda.starts_with("GPU-"), "{variables:?}");
        assert!(value("NVIDIA_VISIBLE_DEVICES").unwrap().starts_with("GPU-"));
        cuda
    }

    #[test]
    fn a_command_is_told_numbers_in_the_slices_order() {
        let node = node(vec![device(0), device(1), device(2)]);
        assert_eq!(cuda(&slice(&["GPU-2x", "GPU-0x"]), &node, 3), "2,0");
        assert_eq!(cuda(&slice(&["GPU-1x"]), &node, 0), "1");
    }

    #[test]
    fn where_a_number_may_mean_another_device_the_uuid_is_told() {
        let gpus = vec![device(0), device(1)];
        // The manager's container has more devices than this one.
        assert_eq!(cuda(&slice(&["GPU-1x"]), &node(gpus.clone()), 1), "GPU-1x");
        assert_eq!(cuda(&slice(&["GPU-7x"]), &node(gpus.clone()), 2), "GPU-7x");
        let instance = Device { mig_gpu_uuid: "GPU-0x".to_owned(), uuid: "MIG-a".to_owned(), ..device(2) };
        let beside_mig = node(vec![gpus[0].clone(), gpus[1].clone(), instance]);
        assert_eq!(cuda(&slice(&["GPU-1x"]), &beside_mig, 2), "GPU-1x");
        let partitioned = node(vec![Device { mig_enabled: true, ..device(0) }, device(1)]);
        assert_eq!(cuda(&slice(&["GPU-1x"]), &partitioned, 2), "GPU-1x");
        let mps = node(vec![Device { sharing: SharingMode::Mps.into(), ..device(0) }]);
        assert_eq!(cuda(&slice(&["GPU-0x"]), &mps, 1), "GPU-0x");
    }

    #[test]
    fn the_environment_names_the_devices_in_order() {
        let slice = Slice {
            environment: vec!["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30".to_owned()],
            ..slice(&["GPU-b", "GPU-a"])
        };
        let variables = variables(&slice, &Node::default(), Some(OsStr::new("x.so"))).unwrap();
        let value = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_os_str());
        assert_eq!(value(VISIBLE_DEVICES), Some(OsStr::new("GPU-b,GPU-a")));
        assert_eq!(value("NVIDIA_VISIBLE_DEVICES"), Some(OsStr::new("GPU-b,GPU-a")));
        assert_eq!(value("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), Some(OsStr::new("30")));
        assert_eq!(value("LD_PRELOAD"), Some(OsStr::new("/r/a.so:x.so")));
    }
}

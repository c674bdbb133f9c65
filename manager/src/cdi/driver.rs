//! What of the host's driver a container needs: device nodes and libraries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::driver_root::DriverRoot;
use crate::inventory::{Device, Inventory};
use crate::slices::Slice;

/// The driver's libraries that a CUDA program loads.
const LIBRARIES: [&str; 4] =
    ["libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"];
/// Where the loaders of Debian's and Red Hat's families look without being told. A container's own loader cache does
/// not know what is mounted.
const CONTAINER_DIRS: [&str; 2] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"];

/// Where the driver says which minor number of `/dev/nvidia-caps` gives the right to which MIG instance.
const MIG_MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";

/// The parts of the driver that are there.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HostDriver {
    /// Device nodes.
    pub(super) device_nodes: Vec<PathBuf>,
    /// Libraries: the file on the node, and its place in the container.
    pub(super) libraries: Vec<(PathBuf, PathBuf)>,
}

impl HostDriver {
    /// What the devices of `slice` need of the driver at `root`.
    pub(super) fn find(slice: &Slice, inventory: &Inventory, root: &DriverRoot) -> HostDriver {
        let devices: Vec<&Device> = slice.parts.iter().filter_map(|part| inventory.device(&part.device)).collect();
        let minors = fs::read_to_string(MIG_MINORS).unwrap_or_default();
        let nodes = device_nodes(&devices, &mig_minors(&minors));
        let device_nodes = nodes.into_iter().filter(|node| root.seen_on_node(node).exists()).collect();
        HostDriver { device_nodes, libraries: libraries(root, &root.loader_cache()) }
    }
}

/// The device nodes that `devices` need, where `mig_minors` says which capability has which minor number.
fn device_nodes(devices: &[&Device], mig_minors: &BTreeMap<String, u32>) -> Vec<PathBuf> {
    let mut nodes: Vec<String> = Vec::new();
    for device in devices {
        let Some(minor) = device.minor else { continue };
        nodes.push(format!("/dev/nvidia{minor}"));
        let Some(instance) = &device.mig_instance else { continue };
        // Both are needed: the right to the GPU instance, and to the compute instance in it.
        let gpu = instance.gpu_instance.map(|gpu| format!("gpu{minor}/gi{gpu}"));
        let compute = gpu.as_ref().zip(instance.compute_instance).map(|(gpu, compute)| format!("{gpu}/ci{compute}"));
        let capabilities = [gpu, compute].into_iter().flatten();
        let capabilities = capabilities.filter_map(|capability| mig_minors.get(&format!("{capability}/access")));
        nodes.extend(capabilities.map(|minor| format!("/dev/nvidia-caps/nvidia-cap{minor}")));
    }
    nodes.extend(["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"].map(String::from));
    // Two instances of one GPU have its node in common.
    let mut seen = BTreeSet::new();
    nodes.into_iter().filter(|node| seen.insert(node.clone())).map(PathBuf::from).collect()
}

/// Lines such as `gpu0/gi1/ci0/access 13`.
fn mig_minors(text: &str) -> BTreeMap<String, u32> {
    let entry = |line: &str| {
        let (capability, minor) = line.split_once(' ')?;
        Some((capability.to_owned(), minor.trim().parse().ok()?))
    };
    text.lines().filter_map(entry).collect()
}

fn libraries(root: &DriverRoot, cache: &BTreeMap<String, PathBuf>) -> Vec<(PathBuf, PathBuf)> {
    let found = LIBRARIES.into_iter().filter_map(|name| Some((name, root.resolve(cache.get(name)?).ok()?)));
    found.flat_map(|(name, file)| CONTAINER_DIRS.map(|dir| (file.clone(), Path::new(dir).join(name)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{DeviceUuid, Health, MigInstance, SharingMode};

    fn instance(minor: u32, gpu_instance: u32) -> Device {
        Device {
            uuid: DeviceUuid::new("MIG-1"),
            index: 0,
            model: String::new(),
            memory_bytes: 1,
            pci_bus_id: String::new(),
            minor: Some(minor),
            numa_node: None,
            nvlink_peers: Vec::new(),
            compute_capability: None,
            mig_enabled: false,
            partitioning: None,
            mig_instance: Some(MigInstance {
                gpu: DeviceUuid::new("GPU-1"),
                profile: String::new(),
                gpu_instance: Some(gpu_instance),
                compute_instance: Some(0),
                placement: None,
            }),
            tells_utilisation: false,
            sharing: SharingMode::Time,
            health: Health::Healthy,
        }
    }

    #[test]
    fn an_instance_needs_the_rights_to_itself_and_to_no_other() {
        let minors = mig_minors(
            "config 1\nmonitor 2\ngpu1/gi1/access 12\ngpu1/gi1/ci0/access 13\ngpu1/gi2/access 21\n\
             gpu1/gi2/ci0/access 22\ngpu2/gi1/access 147\ngpu2/gi1/ci0/access 148\n",
        );
        let (one, other) = (instance(1, 1), instance(1, 2));
        let shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];
        let with_shared = |nodes: &[&str]| nodes.iter().chain(&shared).map(PathBuf::from).collect::<Vec<_>>();
        let of_one = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"];
        assert_eq!(device_nodes(&[&one], &minors), with_shared(&of_one));
        let of_both = [&of_one[..], &["/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]].concat();
        assert_eq!(device_nodes(&[&one, &other], &minors), with_shared(&of_both));
        let whole = Device { mig_instance: None, ..one };
        assert_eq!(device_nodes(&[&whole], &minors), with_shared(&["/dev/nvidia1"]));
    }

    #[test]
    fn a_library_goes_where_both_families_look_and_one_that_is_missing_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("libcuda.so.570.1"), dir.path().join("libcuda.so.1"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let cache = BTreeMap::from([("libcuda.so.1".into(), link), ("libnvidia-ml.so.1".into(), "/missing".into())]);
        let file = fs::canonicalize(file).unwrap();
        assert_eq!(
            libraries(&DriverRoot::default(), &cache),
            [(file.clone(), "/usr/lib/x86_64-linux-gnu/libcuda.so.1".into()), (file, "/usr/lib64/libcuda.so.1".into())]
        );
    }
}

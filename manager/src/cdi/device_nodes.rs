//! The device nodes that a container with a slice gets.
//!
//! The driver makes no nodes. NVIDIA's programs make them, in the `/dev` that they see: the node's, or that of the
//! container in which the driver is installed. `/dev/nvidia-uvm` is missing until a first program has used CUDA there,
//! and the nodes of a MIG instance that was made from within a container are missing for ever. So those are made here, as
//! `nvidia-modprobe` makes them, if this process may.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

use crate::driver_root::DriverRoot;
use crate::inventory::Device;

/// The driver's table of minor numbers in `/dev/nvidia-caps`. Each of these nodes gives access to one MIG instance.
const MIG_MINORS: &str = "/proc/driver/nvidia-caps/mig-minors";
/// The kernel's table of major numbers.
const MAJORS: &str = "/proc/devices";
/// Exists if the driver's kernel module is loaded. The simulated GPU and WSL, which have no nodes, lack it.
const DRIVER_VERSION: &str = "/proc/driver/nvidia/version";

/// A device node of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceNode {
    pub(super) path: PathBuf,
    /// Its path on the node, if that is another one.
    pub(super) host_path: Option<PathBuf>,
}

/// A node that a container needs and does not get.
#[derive(Debug, thiserror::Error)]
#[error("the device node {} is missing on the node{}; {}", path.display(), why(source.as_ref()), remedy(*is_of_device, source.as_ref()))]
pub struct Missing {
    pub(crate) path: PathBuf,
    /// Without it the container can do nothing with one of its devices.
    pub(crate) is_of_device: bool,
    /// Why it could not be made; `None`: not tried, because the driver's own programs make it.
    source: Option<io::Error>,
}

fn why(source: Option<&io::Error>) -> String {
    source.map(|source| format!(" and cannot be made: {source}")).unwrap_or_default()
}

/// What to do about a missing node.
fn remedy(is_of_device: bool, source: Option<&io::Error>) -> &'static str {
    match (is_of_device, source) {
        (true, Some(_)) => {
            "on Kubernetes the component mig lets the manager make it; elsewhere: nvidia-modprobe -f with the instance's \
             file in /proc/driver/nvidia/capabilities, as root"
        }
        (true, None) => {
            "make it: nvidia-modprobe -c NUMBER, as root; if the driver is installed in a container, set driver_root"
        }
        (false, _) => "without it programs in containers cannot use CUDA; make it: nvidia-modprobe -u -c 0, as root",
    }
}

/// The nodes of a container.
#[derive(Debug, Default)]
pub(super) struct DeviceNodes {
    pub(super) found: Vec<DeviceNode>,
    pub(super) missing: Vec<Missing>,
}

/// A node that a container needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Needed {
    path: PathBuf,
    is_of_device: bool,
    made_as: Option<Made>,
}

/// What `nvidia-modprobe` makes a node as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    /// The name of its driver in the kernel's table of major numbers.
    driver: &'static str,
    minor: u32,
    mode: u32,
}

impl Made {
    fn uvm(minor: u32) -> Made {
        Made { driver: "nvidia-uvm", minor, mode: 0o666 }
    }

    /// The node of a MIG capability, which programs only open to show that they may use the instance.
    fn capability(minor: u32) -> Made {
        Made { driver: "nvidia-caps", minor, mode: 0o444 }
    }
}

impl DeviceNodes {
    /// Finds the nodes that `devices` need, with the driver at `root`. Makes those that are missing where that is
    /// possible.
    pub(super) fn find(devices: &[&Device], root: &DriverRoot) -> DeviceNodes {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let needed = needed(devices, &read(MIG_MINORS));
        let has_driver = Path::new(DRIVER_VERSION).exists();
        locate(needed, root, has_driver, |path, made| make(path, made, &read(MAJORS)))
    }
}

/// Finds nodes in the `/dev` of the driver's root, else in the node's. `has_driver`: nodes can be expected although none
/// is found. `make` makes a node at a path that this process sees.
fn locate(
    needed: Vec<Needed>,
    root: &DriverRoot,
    has_driver: bool,
    make: impl Fn(&Path, Made) -> io::Result<()>,
) -> DeviceNodes {
    let dirs = root.device_dirs();
    let exists = |path: &Path| root.seen_on_node(path).exists();
    let places = |node: &Needed| -> Vec<PathBuf> {
        let below = node.path.strip_prefix("/dev").unwrap_or(&node.path);
        dirs.iter().map(|dir| dir.join(below)).collect()
    };
    let has_nodes = has_driver || needed.iter().flat_map(places).any(|place| exists(&place));
    if !has_nodes {
        return DeviceNodes::default();
    }
    let mut nodes = DeviceNodes::default();
    for node in needed {
        let places = places(&node);
        let made = || -> Result<PathBuf, Option<io::Error>> {
            let (place, made) = places.first().zip(node.made_as).ok_or(None)?;
            make(&root.seen_on_node(place), made).map_err(Some)?;
            Ok(place.clone())
        };
        match places.iter().find(|place| exists(place)).cloned().map_or_else(made, Ok) {
            Ok(place) => {
                let host_path = Some(place).filter(|place| *place != node.path);
                nodes.found.push(DeviceNode { path: node.path, host_path });
            }
            Err(source) => nodes.missing.push(Missing { path: node.path, is_of_device: node.is_of_device, source }),
        }
    }
    nodes
}

/// The nodes that `devices` need. `mig_minors` is the driver's table of capabilities.
fn needed(devices: &[&Device], mig_minors: &str) -> Vec<Needed> {
    let of_device = |path: String, made_as| Needed { path: path.into(), is_of_device: true, made_as };
    let of_all = |path: &str, made_as| Needed { path: path.into(), is_of_device: false, made_as };
    let mut nodes: Vec<Needed> = Vec::new();
    for device in devices {
        let Some(minor) = device.minor else { continue };
        nodes.push(of_device(format!("/dev/nvidia{minor}"), None));
        let Some(instance) = &device.mig_instance else { continue };
        // Access to two things is needed: to the GPU instance, and to the compute instance in it.
        let gpu = instance.gpu_instance.map(|gpu| format!("gpu{minor}/gi{gpu}"));
        let compute = gpu.as_ref().zip(instance.compute_instance).map(|(gpu, compute)| format!("{gpu}/ci{compute}"));
        let minors = [gpu, compute].into_iter().flatten();
        let minors = minors.filter_map(|capability| minor_of(mig_minors, &format!("{capability}/access")));
        let node = |minor| of_device(format!("/dev/nvidia-caps/nvidia-cap{minor}"), Some(Made::capability(minor)));
        nodes.extend(minors.map(node));
    }
    nodes.push(of_all("/dev/nvidiactl", None));
    nodes.push(of_all("/dev/nvidia-uvm", Some(Made::uvm(0))));
    nodes.push(of_all("/dev/nvidia-uvm-tools", Some(Made::uvm(1))));
    // Two instances of one GPU share its node.
    let mut seen = BTreeSet::new();
    nodes.retain(|node| seen.insert(node.path.clone()));
    nodes
}

/// The minor number of a capability in a table of lines such as `gpu0/gi1/ci0/access 13`.
fn minor_of(table: &str, capability: &str) -> Option<u32> {
    let entries = table.lines().filter_map(|line| line.split_once(' '));
    entries.filter(|(name, _)| *name == capability).find_map(|(_, minor)| minor.trim().parse().ok())
}

/// The major number of a driver in a table of lines such as `510 nvidia-uvm`.
fn major_of(table: &str, driver: &str) -> Option<u32> {
    let entries = table.lines().filter_map(|line| line.trim().split_once(' '));
    entries.filter(|(_, name)| *name == driver).find_map(|(major, _)| major.parse().ok())
}

/// Makes a node at `path`, with the major number from the kernel's table.
fn make(path: &Path, made: Made, majors: &str) -> io::Result<()> {
    let Made { driver, minor, mode } = made;
    let not_loaded = || io::Error::other(format!("the kernel module of {driver} is not loaded"));
    let major = major_of(majors, driver).ok_or_else(not_loaded)?;
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    }
    mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(mode), makedev(major, minor))?;
    // Whatever this process's umask is.
    fs::set_permissions(path, Permissions::from_mode(mode))
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

    const MINORS: &str = "config 1\nmonitor 2\ngpu1/gi1/access 12\ngpu1/gi1/ci0/access 13\ngpu1/gi2/access 21\n\
                          gpu1/gi2/ci0/access 22\ngpu2/gi1/access 147\ngpu2/gi1/ci0/access 148\n";

    /// A node's root directory with these files in it.
    fn root_with(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    fn refuse(_: &Path, _: Made) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn missing(nodes: &DeviceNodes) -> Vec<(&str, bool)> {
        nodes.missing.iter().map(|missing| (missing.path.to_str().unwrap(), missing.is_of_device)).collect()
    }

    #[test]
    fn an_instance_gets_only_its_own_capabilities() {
        let (one, other) = (instance(1, 1), instance(1, 2));
        let shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"];
        let with_shared = |nodes: &[&str]| nodes.iter().chain(&shared).map(PathBuf::from).collect::<Vec<_>>();
        let paths = |devices: &[&Device]| -> Vec<PathBuf> {
            needed(devices, MINORS).into_iter().map(|node| node.path).collect()
        };
        let of_one = ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"];
        assert_eq!(paths(&[&one]), with_shared(&of_one));
        let of_both = [&of_one[..], &["/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]].concat();
        assert_eq!(paths(&[&one, &other]), with_shared(&of_both));
        let whole = Device { mig_instance: None, ..one };
        assert_eq!(paths(&[&whole]), with_shared(&["/dev/nvidia1"]));
    }

    /// The GPU operator installs the driver in a container, and the nodes are made in that container's `/dev`.
    #[test]
    fn the_nodes_of_a_driver_in_a_container_are_below_its_root() {
        let of_driver = ["nvidia1", "nvidiactl", "nvidia-uvm"].map(|node| format!("run/driver/dev/{node}"));
        let files = of_driver.iter().map(String::as_str).chain(["dev/nvidia-uvm-tools"]);
        let node = root_with(&files.collect::<Vec<_>>());
        let root = DriverRoot::new(node.path().into(), "/run/driver".into());
        let gpu = Device { mig_instance: None, ..instance(1, 1) };
        let found = locate(needed(&[&gpu], ""), &root, false, refuse);
        let at = |path: &str, host_path: Option<&str>| DeviceNode {
            path: path.into(),
            host_path: host_path.map(Into::into),
        };
        let expected = [
            at("/dev/nvidia1", Some("/run/driver/dev/nvidia1")),
            at("/dev/nvidiactl", Some("/run/driver/dev/nvidiactl")),
            at("/dev/nvidia-uvm", Some("/run/driver/dev/nvidia-uvm")),
            at("/dev/nvidia-uvm-tools", None),
        ];
        assert_eq!(found.found, expected);
        assert!(found.missing.is_empty(), "{found:?}");
    }

    #[test]
    fn nodes_that_are_missing_are_made_or_named() {
        let node = root_with(&["dev/nvidia1", "dev/nvidiactl", "dev/nvidia-caps/nvidia-cap12"]);
        let root = DriverRoot::new(node.path().into(), "/".into());
        let needed = || needed(&[&instance(1, 1)], MINORS);
        let refused = locate(needed(), &root, false, refuse);
        let expected =
            [("/dev/nvidia-caps/nvidia-cap13", true), ("/dev/nvidia-uvm", false), ("/dev/nvidia-uvm-tools", false)];
        assert_eq!(missing(&refused), expected);
        let made = locate(needed(), &root, false, |path, made| fs::write(path, format!("{made:?}")));
        assert!(made.missing.is_empty() && made.found.len() == 6, "{made:?}");
        let capability = fs::read_to_string(node.path().join("dev/nvidia-caps/nvidia-cap13")).unwrap();
        assert_eq!(capability, format!("{:?}", Made { driver: "nvidia-caps", minor: 13, mode: 0o444 }));
    }

    #[test]
    fn nodes_are_expected_where_there_are_some_or_the_driver_is_loaded() {
        let node = root_with(&[]);
        let root = DriverRoot::new(node.path().into(), "/".into());
        let gpu = Device { mig_instance: None, ..instance(1, 1) };
        let find = |has_driver| locate(needed(&[&gpu], ""), &root, has_driver, refuse);
        assert!(find(false).missing.is_empty());
        assert_eq!(missing(&find(true))[..2], [("/dev/nvidia1", true), ("/dev/nvidiactl", false)]);
    }

    #[test]
    fn major_numbers_are_read_from_the_kernel_s_table() {
        let table =
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n\nBlock devices:\n  7 loop\n";
        assert_eq!(major_of(table, "nvidia-uvm"), Some(510));
        assert_eq!(major_of(table, "nvidia-caps"), None);
        let dir = tempfile::tempdir().unwrap();
        let error = make(&dir.path().join("a/b"), Made::capability(1), table).unwrap_err();
        assert!(error.to_string().contains("nvidia-caps is not loaded"), "{error}");
    }
}

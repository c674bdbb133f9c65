//! Slices as CDI devices: one specification file for each slice. podman, docker, containerd and others read it when
//! they make a container with `aliquot.dev/slice=NAME`.
//!
//! The format is version 0.5.0, the newest that all of them understand. Each slice has a file of its own, because a
//! name that stands in two files of one directory cannot be resolved at all.
//!
//! The container's processes load the shim because `/etc/ld.so.preload` names it: a file in the slice's region is
//! mounted there read-only, so a process cannot avoid the shim by clearing its environment. It also works for a
//! container that was made before a reboot and an upgrade: the file names the new shim, where a variable would name a
//! file that is gone. The configuration can choose `LD_PRELOAD` instead, or both ([`Preload`](crate::config::Preload));
//! a library that is named twice is loaded once.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aliquot_abi::region::LEDGER_FILE;
use serde::Serialize;

use crate::config::{CdiConfig, CdiSettings, PRELOAD_FILE};
use crate::driver_root::DriverRoot;
use crate::inventory::Inventory;
use crate::mps::{Client, Mps};
use crate::region::Region;
use crate::slices::Slice;

mod device_nodes;
mod driver;
mod loader_cache;
mod stale;
mod visible;

pub(crate) use device_nodes::Missing;
use driver::{Finder, HostDriver};
use loader_cache::LoaderCache;

/// The CDI kind of slices.
const KIND: &str = "aliquot.dev/slice";

/// The file in a slice's region that is the container's `/etc/ld.so.preload`.
const REGION_PRELOAD_FILE: &str = "ld.so.preload";

/// Why publishing or withdrawing a slice failed.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// The file cannot be written or removed.
    #[error("cannot change the CDI specification {}: {source}", path.display())]
    Io {
        /// The path of that file.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// A device node of the slice is missing on the node.
    #[error(transparent)]
    NoDeviceNode(#[from] Missing),
    /// The file that containers get as `/etc/ld.so.preload` cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Preload {
        /// The path of that file.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
}

/// Publishes slices as CDI devices, if that is configured.
#[derive(Debug)]
pub(crate) struct Cdi {
    config: Option<CdiConfig>,
    driver: DriverRoot,
    loader_cache: LoaderCache,
    mps: Arc<Mps>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Edits {
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<DeviceNode>,
    mounts: Vec<Mount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hooks: Vec<Hook>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Hook {
    hook_name: &'static str,
    path: PathBuf,
    args: Vec<String>,
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceNode {
    path: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_path: Option<PathBuf>,
}

impl From<device_nodes::DeviceNode> for DeviceNode {
    fn from(node: device_nodes::DeviceNode) -> DeviceNode {
        DeviceNode { path: node.path, host_path: node.host_path }
    }
}

#[derive(Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: PathBuf,
    container_path: PathBuf,
    options: Vec<&'static str>,
}

impl Mount {
    fn new(host_path: &Path, container_path: &Path, writable: bool) -> Mount {
        let options = vec![if writable { "rw" } else { "ro" }, "nosuid", "nodev", "bind"];
        Mount { host_path: host_path.into(), container_path: container_path.into(), options }
    }
}

impl Cdi {
    /// The directory in which slices are published; `None` if they are not published.
    #[must_use]
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.config.as_ref().map(|config| config.dir.as_path())
    }

    /// Publishes as `config` says, with the files of `driver` and the settings that clients of `mps` need.
    #[must_use]
    pub(crate) fn new(config: Option<CdiConfig>, driver: DriverRoot, mps: Arc<Mps>) -> Cdi {
        Cdi { config, driver, loader_cache: LoaderCache::default(), mps }
    }

    /// The fully qualified name of a slice's device; `None` if slices are not published.
    #[must_use]
    pub(crate) fn device(&self, slice: &str) -> Option<String> {
        self.config.as_ref().map(|_| format!("{KIND}={slice}"))
    }

    /// Publishes a slice, replacing the specification of its name. Returns the device nodes that the container would
    /// need and does not get.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn publish(
        &self,
        slice: &Slice,
        region: &Region,
        inventory: &Inventory,
    ) -> Result<Vec<Missing>, CdiError> {
        let Some(config) = &self.config else { return Ok(Vec::new()) };
        // Independent of the current configuration: a container that was made under another one has the file mounted,
        // and could not start without it.
        let path = region.dir().join(REGION_PRELOAD_FILE);
        write_preload_file(&path, region.preload()).map_err(|source| CdiError::Preload { path, source })?;
        let mut driver = HostDriver::find(slice, inventory, &self.driver, &self.loader_cache.read(&self.driver));
        let missing = std::mem::take(&mut driver.nodes.missing);
        let mps = self.mps.client(&slice.parts);
        let visible = visible::variables(&slice.parts, inventory, &driver.nodes.found);
        let container = Container { visible, driver, mps };
        let preload: Vec<&Path> = region.preload().collect();
        let spec = spec(slice, region.dir(), &preload, container, &config.settings);
        let path = file(config, &slice.name);
        let new = new_file(config, &slice.name);
        let write = || {
            DirBuilder::new().recursive(true).mode(0o755).create(&config.dir)?;
            let text = serde_json::to_vec_pretty(&spec)?;
            // A file that has the right content already is not written again, so a full disk does no harm.
            if fs::read(&path).is_ok_and(|found| found == text) {
                // A manager that was killed may have left this file. On a file system that cannot be written to, it
                // stays.
                let _ = fs::remove_file(&new);
                return Ok(());
            }
            fs::write(&new, text)?;
            fs::rename(&new, &path)
        };
        write().map_err(|source| {
            let _ = fs::remove_file(&new);
            CdiError::Io { path: path.clone(), source }
        })?;
        Ok(missing)
    }

    /// Removes a slice's specification, if there is one, and the unfinished file of a manager that was killed.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(crate) fn withdraw(&self, slice: &str) -> Result<(), CdiError> {
        let Some(config) = &self.config else { return Ok(()) };
        for path in [file(config, slice), new_file(config, slice)] {
            remove_if_there(&path).map_err(|source| CdiError::Io { path, source })?;
        }
        Ok(())
    }
}

/// Writes the file unless its content is right: running containers have it mounted, and would keep the old file after a
/// replacement.
fn write_preload_file<'a>(path: &Path, libraries: impl Iterator<Item = &'a Path>) -> io::Result<()> {
    let text: Vec<u8> = libraries.flat_map(|library| [library.as_os_str().as_bytes(), b"\n"].concat()).collect();
    if fs::read(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let new = path.with_extension("new");
    // A file that a killed manager left cannot be opened for writing, except by root.
    remove_if_there(&new)?;
    fs::write(&new, text)?;
    // Every user of the container must read it, whatever this process's umask is.
    fs::set_permissions(&new, Permissions::from_mode(0o444))?;
    fs::rename(&new, path)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    fs::remove_file(path).or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// The specification while it is written. Its name does not end in .json or .yaml, because readers take up every file
/// whose name does.
fn new_file(config: &CdiConfig, slice: &str) -> PathBuf {
    config.dir.join(format!(".aliquot.dev-slice-{slice}.new"))
}

fn file(config: &CdiConfig, slice: &str) -> PathBuf {
    config.dir.join(format!("aliquot.dev-slice-{slice}.json"))
}

/// Everything that a container gets besides the region.
struct Container {
    /// Variables that say which devices it sees.
    visible: Vec<String>,
    driver: HostDriver,
    mps: Option<Client>,
}

fn spec(slice: &Slice, region_dir: &Path, preload: &[&Path], container: Container, settings: &CdiSettings) -> Spec {
    let Container { visible: mut env, driver, mps } = container;
    let ledger = region_dir.join(LEDGER_FILE);
    // The container cannot write to the directory, and so not to the limits; the ledger in it is writable.
    let mut mounts = vec![Mount::new(region_dir, region_dir, false), Mount::new(&ledger, &ledger, true)];
    // The stand-in needs the files beside it, as the shim does.
    let beside = preload.iter().skip(1).filter_map(|library| library.parent());
    mounts.extend(beside.map(|dir| Mount::new(dir, dir, false)));
    if settings.preload.by_environment() {
        let libraries: Vec<String> = preload.iter().map(|library| library.display().to_string()).collect();
        env.push(format!("LD_PRELOAD={}", libraries.join(":")));
    }
    if settings.preload.by_file() {
        mounts.push(Mount::new(&region_dir.join(REGION_PRELOAD_FILE), Path::new(PRELOAD_FILE), false));
    }
    if let Some(Client { environment, mounts: directories }) = mps {
        env.extend(environment);
        mounts.extend(directories.iter().map(|(host, container)| Mount::new(host, container, true)));
    }
    let mut hooks = Vec::new();
    match driver.finder {
        Some(Finder::Hook { path, arguments }) => {
            hooks.push(Hook { hook_name: "createContainer", path, args: arguments });
        }
        Some(Finder::Variable(variable)) => env.push(variable),
        None => {}
    }
    env.extend(slice.published.environment.iter().map(|(name, value)| format!("{name}={value}")));
    env.extend(settings.extra_env.iter().cloned());
    mounts.extend(driver.files.iter().map(|(host, container)| Mount::new(host, container, false)));
    let extra = settings.extra_mounts.iter();
    mounts.extend(extra.map(|mount| Mount::new(&mount.host_path, mount.container_path(), mount.writable)));
    let device_nodes = driver.nodes.found.into_iter().map(DeviceNode::from).collect();
    let edits = Edits { env, device_nodes, mounts, hooks };
    // A container that requests the slice under several of its names gets the same edits several times.
    let device = |name: &str| Device { name: name.into(), container_edits: edits.clone() };
    Spec { cdi_version: "0.5.0", kind: KIND, devices: slice.cdi_names().map(device).collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::os::unix::fs::MetadataExt;
    use std::time::SystemTime;

    use aliquot_node::QosClass;

    use super::device_nodes::DeviceNodes;
    use super::*;
    use crate::config::{ExtraMount, Preload};
    use crate::inventory::DeviceUuid;
    use crate::slices::{Part, Published, SliceId};

    /// The edits in the specification of a slice with two devices.
    fn edits(preload: Preload) -> serde_json::Value {
        let part = |uuid| Part {
            device: DeviceUuid::new(uuid),
            core_request_percent: 1,
            core_limit_percent: 1,
            memory_limit_bytes: 1,
        };
        let slice = Slice {
            name: "a.b".into(),
            id: SliceId::from_random(1),
            parts: vec![part("GPU-1"), part("GPU-2")],
            host_memory_limit_bytes: 0,
            qos_class: QosClass::default(),
            audit_policy: None,
            published: Published {
                aliases: BTreeSet::from(["ids-1".into(), "ids-2".into()]),
                environment: BTreeMap::from([("GPU_MEM".into(), "8".into())]),
            },
            created: SystemTime::UNIX_EPOCH,
            description: String::new(),
            pod_uid: None,
            owner: None,
            users: BTreeSet::new(),
        };
        let driver = HostDriver {
            nodes: DeviceNodes {
                found: vec![
                    device_nodes::DeviceNode { path: "/dev/nvidia0".into(), host_path: None },
                    device_nodes::DeviceNode {
                        path: "/dev/nvidiactl".into(),
                        host_path: Some("/driver/dev/nvidiactl".into()),
                    },
                ],
                missing: Vec::new(),
            },
            files: vec![("/lib/libcuda.so.570".into(), "/usr/lib64/libcuda.so.1".into())],
            finder: Some(Finder::Hook { path: "/usr/bin/hook".into(), arguments: vec!["hook".into(), "x".into()] }),
        };
        let settings = CdiSettings {
            preload,
            extra_mounts: vec![ExtraMount { host_path: "/x".into(), container_path: None, writable: false }],
            extra_env: vec!["A=b".into()],
        };
        let mps = Client {
            environment: vec!["CUDA_MPS_X=y".into()],
            mounts: vec![("/run/pipes".into(), "/run/pipes".into()), ("/shm".into(), "/dev/shm".into())],
        };
        let container = Container { visible: vec!["NVIDIA_VISIBLE_DEVICES=void".into()], driver, mps: Some(mps) };
        let spec =
            spec(&slice, Path::new("/run/r"), &["/run/r/s.so", "/run/l/s.so"].map(Path::new), container, &settings);
        let found: serde_json::Value = serde_json::to_value(&spec).unwrap();
        assert_eq!((&found["cdiVersion"], &found["kind"]), (&"0.5.0".into(), &"aliquot.dev/slice".into()));
        let names: Vec<&serde_json::Value> =
            found["devices"].as_array().unwrap().iter().map(|device| &device["name"]).collect();
        assert_eq!(names, ["a.b", "ids-1", "ids-2"]);
        let edits = |at: usize| found["devices"][at]["containerEdits"].clone();
        assert!(edits(0) == edits(1) && edits(1) == edits(2));
        edits(0)
    }

    fn mounts(edits: &serde_json::Value) -> Vec<(&str, &str, &str)> {
        edits["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| {
                let path = |key: &str| mount[key].as_str().unwrap();
                (path("hostPath"), path("containerPath"), mount["options"][0].as_str().unwrap())
            })
            .collect()
    }

    #[test]
    fn a_specification_lists_devices_mounts_and_variables() {
        let edits = edits(Preload::File);
        assert_eq!(
            edits["env"],
            serde_json::json!(["NVIDIA_VISIBLE_DEVICES=void", "CUDA_MPS_X=y", "GPU_MEM=8", "A=b"])
        );
        let nodes = serde_json::json!([
            {"path": "/dev/nvidia0"},
            {"path": "/dev/nvidiactl", "hostPath": "/driver/dev/nvidiactl"},
        ]);
        assert_eq!(edits["deviceNodes"], nodes);
        let hook = serde_json::json!({"hookName": "createContainer", "path": "/usr/bin/hook", "args": ["hook", "x"]});
        assert_eq!(edits["hooks"], serde_json::json!([hook]));
        assert_eq!(
            mounts(&edits),
            [
                ("/run/r", "/run/r", "ro"),
                ("/run/r/ledger", "/run/r/ledger", "rw"),
                ("/run/l", "/run/l", "ro"),
                ("/run/r/ld.so.preload", "/etc/ld.so.preload", "ro"),
                ("/run/pipes", "/run/pipes", "rw"),
                ("/shm", "/dev/shm", "rw"),
                ("/lib/libcuda.so.570", "/usr/lib64/libcuda.so.1", "ro"),
                ("/x", "/x", "ro")
            ]
        );
    }

    #[test]
    fn the_shim_is_preloaded_in_the_ways_that_are_configured() {
        for preload in [Preload::File, Preload::Environment, Preload::Both] {
            let edits = edits(preload);
            let variable =
                edits["env"].as_array().unwrap().iter().any(|entry| entry == "LD_PRELOAD=/run/r/s.so:/run/l/s.so");
            let file = mounts(&edits).iter().any(|(_, container, _)| *container == PRELOAD_FILE);
            assert_eq!((variable, file), (preload.by_environment(), preload.by_file()), "{preload:?}");
        }
    }

    #[test]
    fn a_preload_file_that_is_right_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REGION_PRELOAD_FILE);
        let write = || write_preload_file(&path, ["/r/a.so", "/l/a.so"].into_iter().map(Path::new)).unwrap();
        write();
        assert_eq!(fs::read_to_string(&path).unwrap(), "/r/a.so\n/l/a.so\n");
        let made = fs::metadata(&path).unwrap();
        assert_eq!(made.mode() & 0o777, 0o444);
        write();
        assert_eq!(fs::metadata(&path).unwrap().ino(), made.ino());
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        fs::write(&path, "/r/a").unwrap();
        // A file that a killed manager left is replaced and not written to. The link shows this: root could write to
        // any file.
        let other = dir.path().join("other");
        fs::write(&other, "of somebody else").unwrap();
        std::os::unix::fs::symlink(&other, path.with_extension("new")).unwrap();
        write();
        assert_eq!(fs::read_to_string(&other).unwrap(), "of somebody else");
        assert_eq!(fs::read_to_string(&path).unwrap(), "/r/a.so\n/l/a.so\n");
    }
}

//! Slices as CDI devices: one specification file for each, which podman, docker, containerd and others read when they make a
//! container with `aliquot.dev/slice=NAME`.
//!
//! Version 0.5.0 of the format, the newest that all of them understand; one file for each slice, because a name that
//! stands in two files of one directory cannot be resolved at all.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use aliquot_abi::region::LEDGER_FILE;
use serde::Serialize;

use crate::config::{CdiConfig, CdiExtras};
use crate::inventory::Inventory;
use crate::region::Region;
use crate::slices::Slice;

mod driver;

use driver::HostDriver;

/// What slices are called in CDI.
const KIND: &str = "aliquot.dev/slice";

/// Why a slice is not published.
#[derive(Debug, thiserror::Error)]
pub enum CdiError {
    /// The file cannot be written or removed.
    #[error("cannot change the CDI specification {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Publishes slices, if that is wanted.
#[derive(Debug)]
pub(crate) struct Cdi {
    config: Option<CdiConfig>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    cdi_version: &'static str,
    kind: &'static str,
    devices: [Device; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: Edits,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Edits {
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<DeviceNode>,
    mounts: Vec<Mount>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceNode {
    path: PathBuf,
}

#[derive(Serialize)]
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
    /// Publishes as `config` says.
    #[must_use]
    pub(crate) fn new(config: Option<CdiConfig>) -> Cdi {
        Cdi { config }
    }

    /// The fully qualified name of a slice's device; `None` if slices are not published.
    #[must_use]
    pub(crate) fn device(&self, slice: &str) -> Option<String> {
        self.config.as_ref().map(|_| format!("{KIND}={slice}"))
    }

    /// Publishes a slice, in place of what was published under its name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn publish(&self, slice: &Slice, region: &Region, inventory: &Inventory) -> Result<(), CdiError> {
        let Some(config) = &self.config else { return Ok(()) };
        let driver = HostDriver::find(slice, inventory);
        let spec = spec(slice, region.dir(), region.shim_path(), driver, &config.extras);
        let path = file(config, &slice.name);
        // Readers take up every file whose name ends in .json or .yaml.
        let new = config.dir.join(format!(".aliquot.dev-slice-{}.new", slice.name));
        let write = || {
            DirBuilder::new().recursive(true).mode(0o755).create(&config.dir)?;
            fs::write(&new, serde_json::to_vec_pretty(&spec)?)?;
            fs::rename(&new, &path)
        };
        write().map_err(|source| {
            let _ = fs::remove_file(&new);
            CdiError::Io { path: path.clone(), source }
        })
    }

    /// Ends the publishing of a slice, if it is published.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(crate) fn withdraw(&self, slice: &str) -> Result<(), CdiError> {
        let Some(config) = &self.config else { return Ok(()) };
        let path = file(config, slice);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(CdiError::Io { path, source }),
            _ => Ok(()),
        }
    }
}

fn file(config: &CdiConfig, slice: &str) -> PathBuf {
    config.dir.join(format!("aliquot.dev-slice-{slice}.json"))
}

fn spec(slice: &Slice, region_dir: &Path, shim_path: &Path, driver: HostDriver, extras: &CdiExtras) -> Spec {
    let uuids: Vec<&str> = slice.parts.iter().map(|part| part.device.as_str()).collect();
    let uuids = uuids.join(",");
    let mut env = vec![
        format!("LD_PRELOAD={}", shim_path.display()),
        format!("CUDA_VISIBLE_DEVICES={uuids}"),
        format!("NVIDIA_VISIBLE_DEVICES={uuids}"),
    ];
    env.extend(extras.extra_env.iter().cloned());
    let ledger = region_dir.join(LEDGER_FILE);
    // The directory is not writable for the container, so the limits are not; the ledger in it is.
    let mut mounts = vec![Mount::new(region_dir, region_dir, false), Mount::new(&ledger, &ledger, true)];
    mounts.extend(driver.libraries.iter().map(|(host, container)| Mount::new(host, container, false)));
    mounts.extend(extras.extra_mounts.iter().map(|mount| {
        Mount::new(&mount.host_path, mount.container_path.as_ref().unwrap_or(&mount.host_path), mount.writable)
    }));
    let device_nodes = driver.device_nodes.into_iter().map(|path| DeviceNode { path }).collect();
    let device = Device { name: slice.name.clone(), container_edits: Edits { env, device_nodes, mounts } };
    Spec { cdi_version: "0.5.0", kind: KIND, devices: [device] }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::config::ExtraMount;
    use crate::inventory::DeviceUuid;
    use crate::slices::{Part, SliceId};

    #[test]
    fn a_specification_says_what_the_container_gets() {
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
            created: SystemTime::UNIX_EPOCH,
            description: String::new(),
            owner: None,
        };
        let driver = HostDriver {
            device_nodes: vec!["/dev/nvidia0".into()],
            libraries: vec![("/lib/libcuda.so.570".into(), "/usr/lib64/libcuda.so.1".into())],
        };
        let extras = CdiExtras {
            extra_mounts: vec![ExtraMount { host_path: "/x".into(), container_path: None, writable: false }],
            extra_env: vec!["A=b".into()],
        };
        let spec = spec(&slice, Path::new("/run/r"), Path::new("/run/r/s.so"), driver, &extras);
        let found: serde_json::Value = serde_json::to_value(&spec).unwrap();
        let edits = &found["devices"][0]["containerEdits"];
        assert_eq!((&found["cdiVersion"], &found["kind"]), (&"0.5.0".into(), &"aliquot.dev/slice".into()));
        assert_eq!(found["devices"][0]["name"], "a.b");
        assert_eq!(edits["env"][0], "LD_PRELOAD=/run/r/s.so");
        assert_eq!(edits["env"][1], "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2");
        assert_eq!(edits["env"][3], "A=b");
        assert_eq!(edits["deviceNodes"][0]["path"], "/dev/nvidia0");
        let mounts: Vec<_> = edits["mounts"]
            .as_array()
            .unwrap()
            .iter()
            .map(|mount| (mount["containerPath"].as_str().unwrap(), mount["options"][0].as_str().unwrap()))
            .collect();
        assert_eq!(
            mounts,
            [("/run/r", "ro"), ("/run/r/ledger", "rw"), ("/usr/lib64/libcuda.so.1", "ro"), ("/x", "ro")]
        );
    }
}

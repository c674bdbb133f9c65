//! Removes specifications of slices that no longer exist, which an earlier manager left behind. A container that asked
//! for such a device would be given paths that do not exist.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Cdi;

#[derive(Deserialize)]
struct Spec {
    devices: Vec<Device>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    container_edits: Edits,
}

#[derive(Deserialize)]
struct Edits {
    #[serde(default)]
    mounts: Vec<Mount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: PathBuf,
}

impl Cdi {
    /// Removes the specifications that name regions in `regions` and whose slice is not `is_known`. Specifications of
    /// other managers, which have their own directories, stay. Returns the names of the removed slices.
    pub(crate) fn remove_stale(&self, regions: &Path, is_known: impl Fn(&str) -> bool) -> Vec<String> {
        let Some(config) = &self.config else { return Vec::new() };
        let is_stale = |name: &str, path: &Path| !is_known(name) && is_of(path, regions);
        let entries = fs::read_dir(&config.dir).into_iter().flatten().flatten();
        let found = entries.filter_map(|entry| {
            let file = entry.file_name();
            let name = file.to_str()?.strip_prefix("aliquot.dev-slice-")?.strip_suffix(".json")?;
            (is_stale(name, &entry.path()) && fs::remove_file(entry.path()).is_ok()).then(|| name.to_owned())
        });
        found.collect()
    }
}

/// Whether the specification at `path` mounts anything below `regions`.
fn is_of(path: &Path, regions: &Path) -> bool {
    let spec = fs::read(path).ok().and_then(|text| serde_json::from_slice::<Spec>(&text).ok());
    let devices = spec.into_iter().flat_map(|spec| spec.devices);
    devices.flat_map(|device| device.container_edits.mounts).any(|mount| mount.host_path.starts_with(regions))
}

//! The units of device plugins that kubelet has given to each container, as recorded in its own checkpoint.
//!
//! `PodResources` leaves out init containers that end before the others start, and the UIDs of pods. The file contains
//! both, in a format that has been the same since Kubernetes 1.20, and it is written before a container with units
//! starts. Ended pods stay in it until kubelet gives out units again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::Deserialize;

/// The checkpoint's name below kubelet's directory.
pub(super) const FILE: &str = "device-plugins/kubelet_internal_checkpoint";

/// The checkpoint's entry for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The UID of the pod.
    pub pod_uid: String,
    /// The container's name in the pod.
    pub container: String,
    /// Ids of units, by resource.
    pub devices: BTreeMap<String, BTreeSet<String>>,
}

impl Recorded {
    /// Whether the container was given all of these units of a resource.
    pub(super) fn has(&self, resource: &str, ids: &BTreeSet<String>) -> bool {
        self.devices.get(resource).is_some_and(|given| given.is_superset(ids))
    }

    /// The UID of the pod, and the container's name.
    pub(super) fn key(&self) -> (String, String) {
        (self.pod_uid.clone(), self.container.clone())
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "Data")]
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(rename = "PodDeviceEntries")]
    entries: Option<Vec<Entry>>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// The ids, by NUMA node.
    #[serde(rename = "DeviceIDs")]
    ids: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// Reads the checkpoint. Without a file the result is empty, because kubelet has not given out units yet.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(path: &Path) -> io::Result<Vec<Recorded>> {
    match std::fs::read(path) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn parse(text: &[u8]) -> io::Result<Vec<Recorded>> {
    let file: File = serde_json::from_slice(text)?;
    let mut found: BTreeMap<(String, String), BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for entry in file.data.entries.into_iter().flatten() {
        let devices = found.entry((entry.pod_uid, entry.container)).or_default();
        let ids = entry.ids.into_iter().flat_map(BTreeMap::into_values).flatten().flatten();
        devices.entry(entry.resource).or_default().extend(ids);
    }
    let recorded = |((pod_uid, container), devices)| Recorded { pod_uid, container, devices };
    Ok(found.into_iter().map(recorded).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_told_by_container_whatever_numa_node_they_are_at() {
        let text = br#"{"Data":{"PodDeviceEntries":[
            {"PodUID":"u1","ContainerName":"init","ResourceName":"a.b/c","DeviceIDs":{"-1":["x"],"1":["y"]},
             "AllocResp":"Cg=="},
            {"PodUID":"u1","ContainerName":"init","ResourceName":"a.b/d","DeviceIDs":{"0":null},"AllocResp":""},
            {"PodUID":"u1","ContainerName":"main","ResourceName":"a.b/c","DeviceIDs":{"0":["y"]},"AllocResp":null}
        ],"RegisteredDevices":{"a.b/c":["x","y","z"]}},"Checksum":1234567890}"#;
        let found = parse(text).unwrap();
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].pod_uid.as_str(), found[0].container.as_str()), ("u1", "init"));
        assert_eq!(found[0].devices["a.b/c"], ids(&["x", "y"]));
        assert_eq!(found[0].devices["a.b/d"], ids(&[]));
        assert_eq!(found[1].devices["a.b/c"], ids(&["y"]));
    }

    #[test]
    fn what_says_nothing_and_what_cannot_be_read_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("none")).unwrap(), []);
        assert_eq!(parse(br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":0}"#).unwrap(), []);
        assert!(parse(br#"{"Data":"#).is_err());
        assert!(read(dir.path()).is_err());
    }
}

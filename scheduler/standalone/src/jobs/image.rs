//! The container image of a job, and the parts of the node that its containers see.

use std::collections::BTreeMap;

use aliquot_proto::agent::v1::is_image_reference;
use aliquot_proto::scheduler::v1 as wire;
use serde::{Deserialize, Serialize};

/// The greatest size of /dev/shm: a tebibyte for each of a thousand processes.
const SHM_BYTES_MAX: u64 = 1 << 50;
/// The most mounts of one job.
const MOUNTS_MAX: usize = 64;

/// The image of a job's containers, with their mounts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Image {
    pub(crate) reference: String,
    pub(crate) mounts: Vec<Mount>,
    pub(crate) shm_bytes: u64,
}

/// A directory of the node that is mounted into a container.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Mount {
    pub(crate) source: String,
    pub(crate) target: String,
    pub(crate) read_only: bool,
}

impl Image {
    /// Reads the image of a job, if it has one.
    ///
    /// # Errors
    /// If there is no image, but an option that needs one.
    pub(super) fn read(reference: String, mounts: Vec<wire::Mount>, shm_bytes: u64) -> Result<Option<Self>, String> {
        if reference.is_empty() {
            return match mounts.first() {
                Some(mount) => Err(format!(
                    "{:?} is to be mounted, but no image is named: a command without an image sees all directories of its node",
                    mount.source
                )),
                None if shm_bytes > 0 => Err(format!(
                    "/dev/shm is to have {shm_bytes} bytes, but no image is named: a command without an image has that of its node"
                )),
                None => Ok(None),
            };
        }
        let mount = |mount: wire::Mount| Mount {
            target: if mount.target.is_empty() && mount.source != "~" { mount.source.clone() } else { mount.target },
            source: mount.source,
            read_only: mount.read_only,
        };
        Ok(Some(Self { reference, mounts: mounts.into_iter().map(mount).collect(), shm_bytes }))
    }

    /// Checks the image and its mounts for a job with these variables.
    ///
    /// # Errors
    /// A sentence with the wrong value.
    pub(super) fn check(&self, environment: &BTreeMap<String, String>) -> Result<(), String> {
        let reference = &self.reference;
        if !is_image_reference(reference) {
            return Err(format!(
                "{reference:?} is no image of a registry or of the node; write for example docker.io/library/debian:12"
            ));
        }
        if self.shm_bytes > SHM_BYTES_MAX {
            return Err(format!("/dev/shm of {} bytes is more than any node has", self.shm_bytes));
        }
        if self.mounts.len() > MOUNTS_MAX {
            return Err(format!("{} mounts are more than {MOUNTS_MAX}", self.mounts.len()));
        }
        for Mount { source, target, .. } in &self.mounts {
            // Podman separates the parts of a mount with colons and commas.
            let is_path = |path: &str| path.starts_with('/') && !path.contains([':', ',', '\0', '\n']);
            if !is_path(source) && source != "~" {
                return Err(format!(
                    "the mount {source:?} is not an absolute path without colons and commas; write for example /data, or ~"
                ));
            }
            let is_home = source == "~" && target.is_empty();
            if !is_home && !is_path(target) {
                return Err(format!(
                    "{target:?}, where {source:?} is to be mounted, is not an absolute path without colons and commas"
                ));
            }
        }
        // The variables reach the container in a file with one line for each.
        let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if let Some(name) = environment.keys().find(|name| !is_plain(name)) {
            return Err(format!("{name:?} cannot be a variable in a container: use letters, digits and '_' only"));
        }
        if let Some((name, _)) = environment.iter().find(|(_, value)| value.contains(['\n', '\r'])) {
            return Err(format!("the value of variable {name:?} has a line break, which no container can be given"));
        }
        Ok(())
    }

    /// The last part of the reference, without its tag or digest.
    pub(super) fn name(&self) -> &str {
        let name = self.reference.rsplit('/').next().unwrap_or(&self.reference);
        name.split([':', '@']).next().unwrap_or(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::spec::tests::asks;

    #[test]
    fn a_mount_is_seen_under_its_own_path_unless_another_is_named() {
        let mount =
            |source: &str, target: &str| wire::Mount { source: source.into(), target: target.into(), read_only: true };
        let mounts = vec![mount("/data", ""), mount("/scratch", "/tmp"), mount("~", "")];
        let spec = asks(wire::JobSpec { image: "a".into(), mounts, ..Default::default() }).unwrap();
        let targets: Vec<String> = spec.image.unwrap().mounts.into_iter().map(|mount| mount.target).collect();
        assert_eq!(targets, ["/data", "/tmp", ""]);
    }

    #[test]
    fn what_is_wrong_with_an_image_is_named() {
        let mount =
            |source: &str, target: &str| wire::Mount { source: source.into(), target: target.into(), read_only: false };
        let wrong = |spec: wire::JobSpec, word: &str| {
            let error = asks(spec).unwrap_err();
            assert!(error.contains(word), "{error:?} does not name {word:?}");
        };
        let with = |spec: wire::JobSpec| wire::JobSpec { image: "a".into(), ..spec };
        wrong(wire::JobSpec { mounts: vec![mount("/data", "")], ..Default::default() }, "no image");
        wrong(wire::JobSpec { shm_bytes: 5, ..Default::default() }, "5 bytes");
        wrong(wire::JobSpec { image: "--privileged".into(), ..Default::default() }, "--privileged");
        wrong(wire::JobSpec { image: "oci:/home/b".into(), ..Default::default() }, "oci:/home/b");
        wrong(with(wire::JobSpec { shm_bytes: u64::MAX, ..Default::default() }), "18446744073709551615 bytes");
        wrong(with(wire::JobSpec { mounts: vec![mount("data", "")], ..Default::default() }), "\"data\"");
        wrong(with(wire::JobSpec { mounts: vec![mount("/a:/b", "/c")], ..Default::default() }), "/a:/b");
        wrong(with(wire::JobSpec { mounts: vec![mount("/a", "c")], ..Default::default() }), "\"c\"");
        wrong(with(wire::JobSpec { environment: [("A B".into(), String::new())].into(), ..Default::default() }), "A B");
        wrong(
            with(wire::JobSpec { environment: [("A".into(), "1\n2".into())].into(), ..Default::default() }),
            "line break",
        );
    }
}

//! Whether SELinux lets containers read the shim.

use std::fs;
use std::path::Path;

use super::finding::Finding;

/// The type of files that containers may read, write and execute.
const TYPE: &str = "container_file_t";

/// The finding about regions in `runtime_dir`, on the machine whose root directory is `root`; `None` where SELinux
/// forbids nothing. On a mount that sets no type, the type of files depends on who makes them: a manager in a pod makes
/// files of the right type there, and a service does not.
pub(super) fn finding(root: &Path, runtime_dir: &Path) -> Option<Finding> {
    const WHAT: &str = "SELinux";
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    if read("sys/fs/selinux/enforce").trim() != "1" {
        return None;
    }
    let mounts = read("proc/mounts");
    let mut options = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (Path::new(fields.next()?) == runtime_dir).then(|| fields.nth(1).unwrap_or_default())
    });
    let dir = runtime_dir.display();
    Some(match options.any(|options| options.contains(TYPE)) {
        true => Finding::ok(WHAT, format!("files in {dir} are of the type {TYPE}, which containers may read")),
        false => Finding::warn(
            WHAT,
            format!("files in {dir} may be of a type that containers may not read; then nothing in them is limited"),
            "copy deploy/systemd/run-aliquot.mount.d to /etc/systemd/system/ and mount the directory anew, without slices",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Status;

    /// What is found on a machine with these files.
    fn found(enforce: &str, mounts: &str) -> Option<Status> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("sys/fs/selinux/enforce", enforce), ("proc/mounts", mounts)] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        finding(root.path(), Path::new("/run/aliquot")).map(|finding| finding.status)
    }

    #[test]
    fn the_mount_must_have_the_type_that_containers_may_read() {
        let labelled = "aliquot /run/aliquot tmpfs rw,context=system_u:object_r:container_file_t:s0,nosuid 0 0\n";
        assert!(found("1", labelled) == Some(Status::Ok));
        assert!(
            found("1", "tmpfs /run tmpfs rw,seclabel 0 0\ntmpfs /run/aliquot tmpfs rw,seclabel 0 0\n")
                == Some(Status::Warn)
        );
        assert!(found("1", &labelled.replace("/run/aliquot", "/other")) == Some(Status::Warn));
        assert!(found("0", "").is_none());
    }
}

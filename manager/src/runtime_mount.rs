//! Mounts the memory file system on the runtime directory, where no service manager does it.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;

/// The same flags as in the unit `run-aliquot.mount`. Not noexec, because programs load the shim from it.
const FLAGS: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);
const OPTIONS: &CStr = c"mode=0755,size=4G";
/// The same for systems with SELinux, where containers may read, write and execute files of this type only. Otherwise
/// the loader in a container could not read the shim, and would leave it out.
const LABELLED_OPTIONS: &CStr = c"mode=0755,size=4G,context=\"system_u:object_r:container_file_t:s0\"";
/// Exists where the kernel enforces SELinux's rules or only reports what they forbid.
const SELINUX: &str = "/sys/fs/selinux/enforce";

/// Why the file system cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory cannot be made or looked at.
    #[error("cannot use the runtime directory {}: {source}", path.display())]
    Directory {
        /// The path of the runtime directory.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// The kernel refuses the mount.
    #[error("cannot mount a memory file system on {}: {source}; it takes CAP_SYS_ADMIN", path.display())]
    Refused {
        /// The path of the runtime directory.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
}

/// Mounts a memory file system on `runtime_dir`, which is made if it is missing. An existing mount stays, of whatever
/// kind it is, because containers use it.
///
/// # Errors
/// See [`MountError`].
pub fn mount(runtime_dir: &Path) -> Result<(), MountError> {
    let directory = |source| MountError::Directory { path: runtime_dir.into(), source };
    fs::create_dir_all(runtime_dir).map_err(directory)?;
    if is_mount_point(runtime_dir).map_err(directory)? {
        return Ok(());
    }
    let options = if Path::new(SELINUX).exists() { LABELLED_OPTIONS } else { OPTIONS };
    rustix::mount::mount("aliquot", runtime_dir, "tmpfs", FLAGS, Some(options))
        .map_err(|error| MountError::Refused { path: runtime_dir.into(), source: error.into() })
}

/// Whether `dir` is on another file system than its parent directory.
fn is_mount_point(dir: &Path) -> io::Result<bool> {
    let above = dir.parent().map(fs::metadata).transpose()?;
    let own = fs::metadata(dir)?;
    Ok(above.is_none_or(|above| above.dev() != own.dev()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_a_mount_point_and_a_plain_directory_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("run");
        fs::create_dir(&below).unwrap();
        assert!(!is_mount_point(&below).unwrap());
        assert!(is_mount_point(Path::new("/proc")).unwrap());
    }

    #[test]
    fn an_existing_mount_is_left_alone() {
        let before = fs::metadata("/proc").unwrap().dev();
        mount(Path::new("/proc")).unwrap();
        assert_eq!(fs::metadata("/proc").unwrap().dev(), before);
    }
}

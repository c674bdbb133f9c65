//! A node manager inside this process, for a machine without a running one.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use aliquot_manager::config::Config;
use aliquot_manager::daemon::Daemon;
use aliquot_manager::file_system::{is_in_memory, is_noexec};
use aliquot_manager::paths::Paths;
use nix::unistd::{AccessFlags, access};
use tempfile::TempDir;

use crate::error::{Failure, Result};

/// A node manager that ends when this is dropped, and leaves nothing behind. It publishes nothing and saves nothing.
pub(crate) struct Embedded {
    /// `None` only while it is dropped.
    daemon: Option<Daemon>,
    /// Dropped after the daemon, because it holds the regions.
    _dir: TempDir,
}

impl Embedded {
    /// Starts a manager that finds its devices through `nvml_library`, or through the system's NVML.
    pub(crate) fn start(nvml_library: Option<PathBuf>) -> Result<Embedded> {
        let dir = runtime_dir("aliquot-")?;
        let config = Config { nvml_library, ..Config::embedded(dir.path().to_owned()) };
        let daemon = Daemon::start(config).map_err(|error| {
            Failure::new(format!("cannot start a node manager for this run: {error}")).hint("see: aliquot doctor")
        })?;
        Ok(Embedded { daemon: Some(daemon), _dir: dir })
    }

    /// The socket that it serves.
    pub(crate) fn socket(&self) -> PathBuf {
        self.daemon.as_ref().map(|daemon| daemon.socket().to_owned()).unwrap_or_default()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop();
        }
    }
}

/// A new directory for the regions of one run. Its name begins with `prefix`.
pub(crate) fn runtime_dir(prefix: &str) -> Result<TempDir> {
    let base = runtime_base()?;
    tempfile::Builder::new()
        .prefix(prefix)
        // A program in a slice may have dropped its privileges, and must still reach its region.
        .permissions(Permissions::from_mode(0o755))
        .tempdir_in(&base)
        .map_err(|error| Failure::new(format!("cannot make a directory in {}: {error}", base.display())))
}

/// A directory for the regions: this user can write to it, and libraries can be loaded from it. A directory in memory
/// is preferred, wherever it is among the candidates, because the driver can register pages of memory file systems
/// only.
pub(crate) fn runtime_base() -> Result<PathBuf> {
    let candidates = [
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from),
        Some("/run".into()),
        Some(env::temp_dir()),
        Some("/dev/shm".into()),
        Some("/var/tmp".into()),
        // In the container image, whose root file system is read-only, there is no other one.
        Some(Paths::of_this_user().runtime_dir),
    ];
    let candidates: Vec<PathBuf> = candidates.into_iter().flatten().filter(|dir| dir.is_absolute()).collect();
    best(&candidates, usable, is_in_memory).cloned().ok_or_else(|| {
        let tried: Vec<_> = candidates.iter().map(|dir| dir.display().to_string()).collect();
        Failure::new(format!(
            "none of these directories is both writable and mounted without noexec: {}",
            tried.join(", ")
        ))
        .hint("set TMPDIR to a directory from which libraries can be loaded")
    })
}

/// The first of `candidates` that is usable and in memory, or else the first that is usable.
fn best(candidates: &[PathBuf], usable: impl Fn(&Path) -> bool, in_memory: impl Fn(&Path) -> bool) -> Option<&PathBuf> {
    let usable: Vec<&PathBuf> = candidates.iter().filter(|dir| usable(dir)).collect();
    usable.iter().find(|dir| in_memory(dir)).or(usable.first()).copied()
}

fn usable(dir: &Path) -> bool {
    fs::metadata(dir).is_ok_and(|metadata| metadata.is_dir())
        && access(dir, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
        && !is_noexec(dir)
        // The loader splits LD_PRELOAD at these characters.
        && !dir.to_string_lossy().contains([':', ' ', '\t', '\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_before_a_disk_that_is_named_first() {
        let candidates = ["/disk", "/closed-memory", "/memory", "/more-memory"].map(PathBuf::from);
        let usable = |dir: &Path| !dir.starts_with("/closed-memory");
        let in_memory = |dir: &Path| dir.to_string_lossy().contains("memory");
        assert_eq!(best(&candidates, usable, in_memory), Some(&candidates[2]));
        assert_eq!(best(&candidates[..2], usable, in_memory), Some(&candidates[0]));
        assert_eq!(best(&candidates, |_| false, in_memory), None);
    }

    #[test]
    fn regions_of_this_machine_lie_in_memory() {
        assert!(is_in_memory(&runtime_base().unwrap()));
    }
}

//! Default paths, for the system's manager and for an ordinary user's.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, geteuid};

use crate::file_system;

/// File name of the gRPC socket in the runtime directory.
pub const SOCKET_FILE: &str = "manager.sock";

/// A memory file system in which every user can make directories.
const SHARED_MEMORY: &str = "/dev/shm";

/// The default directories and files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The configuration file, which need not exist.
    pub config_file: PathBuf,
    /// Directory for sockets and regions; should be on a tmpfs.
    pub runtime_dir: PathBuf,
    /// State that outlives a reboot: the checkpoint.
    pub state_dir: PathBuf,
    /// The directory for CDI specifications; `None` for an ordinary user, whose container runtime looks elsewhere.
    pub cdi_dir: Option<PathBuf>,
}

impl Paths {
    /// The paths of the user that runs this process.
    #[must_use]
    pub fn of_this_user() -> Paths {
        Paths::of(geteuid().as_raw(), |name| env::var_os(name), holds_regions(Path::new(SHARED_MEMORY)))
    }

    /// The paths of user `uid` with the environment `var`. `has_shared_memory`: regions can lie in [`SHARED_MEMORY`].
    fn of(uid: u32, var: impl Fn(&str) -> Option<OsString>, has_shared_memory: bool) -> Paths {
        if uid == 0 {
            return Paths {
                config_file: "/etc/aliquot/manager.toml".into(),
                runtime_dir: "/run/aliquot".into(),
                state_dir: "/var/lib/aliquot".into(),
                cdi_dir: Some("/var/run/cdi".into()),
            };
        }
        // The XDG specification requires that relative paths are ignored.
        let dir = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = dir("HOME").unwrap_or_else(|| "/".into());
        // Every user can make directories there; see `is_of_this_user`.
        let shared = if has_shared_memory { SHARED_MEMORY } else { "/tmp" };
        let runtime = dir("XDG_RUNTIME_DIR").map(|dir| dir.join("aliquot"));
        Paths {
            config_file: dir("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")).join("aliquot/manager.toml"),
            runtime_dir: runtime.unwrap_or_else(|| format!("{shared}/aliquot-{uid}").into()),
            state_dir: dir("XDG_STATE_HOME").unwrap_or_else(|| home.join(".local/state")).join("aliquot"),
            cdi_dir: None,
        }
    }

    /// The default path of the gRPC socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.runtime_dir.join(SOCKET_FILE)
    }
}

/// Whether regions that this user makes in `dir` work fully: libraries can be loaded from them, and the driver can
/// register their pages.
fn holds_regions(dir: &Path) -> bool {
    access(dir, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
        && file_system::is_in_memory(dir)
        && !file_system::is_noexec(dir)
}

/// Whether only this user and root can change the content of `dir`: it belongs to this user and others cannot write to
/// it. If it is a link, the link must belong to this user or root. This check is needed where every user can write to
/// the parent directory, because another user can have made `dir`.
///
/// # Errors
/// `dir` does not exist or cannot be examined.
pub fn is_of_this_user(dir: &Path) -> io::Result<bool> {
    let (me, link, metadata) = (geteuid().as_raw(), fs::symlink_metadata(dir)?, fs::metadata(dir)?);
    Ok([0, me].contains(&link.uid()) && metadata.uid() == me && metadata.mode() & 0o022 == 0)
}

/// The mode of the runtime directory. Root's directory must be open: users of a slice must reach its region, and all
/// users must reach the stand-in library. An ordinary user's directory is closed where its parent is writable for
/// everybody.
pub(crate) fn runtime_dir_mode(runtime_dir: &Path) -> u32 {
    let is_shared =
        runtime_dir.parent().and_then(|dir| fs::metadata(dir).ok()).is_some_and(|dir| dir.mode() & 0o002 != 0);
    if is_shared && !geteuid().is_root() { 0o700 } else { 0o755 }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;

    #[test]
    fn root_has_the_system_s_directories() {
        let paths = Paths::of(0, |_| Some("/ignored".into()), true);
        assert_eq!(paths.socket(), PathBuf::from("/run/aliquot/manager.sock"));
        assert_eq!(paths.cdi_dir, Some(PathBuf::from("/var/run/cdi")));
    }

    #[test]
    fn an_ordinary_user_has_the_directories_of_the_environment() {
        let environment = |name: &str| match name {
            "XDG_RUNTIME_DIR" => Some("/run/user/1000".into()),
            "HOME" => Some("/home/ada".into()),
            "XDG_STATE_HOME" => Some("relative".into()),
            _ => None,
        };
        let paths = Paths::of(1000, environment, true);
        assert_eq!(paths.socket(), PathBuf::from("/run/user/1000/aliquot/manager.sock"));
        assert_eq!(paths.state_dir, PathBuf::from("/home/ada/.local/state/aliquot"));
        assert_eq!(paths.config_file, PathBuf::from("/home/ada/.config/aliquot/manager.toml"));
        assert_eq!(paths.cdi_dir, None);
    }

    #[test]
    fn without_an_environment_two_users_do_not_meet() {
        let dirs = [1000, 1001].map(|uid| Paths::of(uid, |_| None, true).runtime_dir);
        assert_ne!(dirs[0], dirs[1]);
    }

    #[test]
    fn without_an_environment_regions_lie_in_memory_where_that_works() {
        let runtime_dir = |has_shared_memory| Paths::of(1000, |_| None, has_shared_memory).runtime_dir;
        assert_eq!(runtime_dir(true), PathBuf::from("/dev/shm/aliquot-1000"));
        assert_eq!(runtime_dir(false), PathBuf::from("/tmp/aliquot-1000"));
        assert!(!holds_regions(Path::new("/proc")));
    }

    #[test]
    fn a_directory_that_another_user_can_change_is_not_this_users() {
        let dir = tempfile::tempdir().unwrap();
        let own = dir.path().join("own");
        fs::create_dir(&own).unwrap();
        assert!(is_of_this_user(&own).unwrap());
        assert!(is_of_this_user(&dir.path().join("missing")).is_err());
        let link = dir.path().join("link");
        symlink(&own, &link).unwrap();
        assert!(is_of_this_user(&link).unwrap());
        // Only root can change a file's owner.
        if geteuid().is_root() {
            lchown(&link, Some(1), None).unwrap();
            assert!(!is_of_this_user(&link).unwrap());
            chown(&own, Some(1), None).unwrap();
            assert!(!is_of_this_user(&own).unwrap());
            chown(&own, Some(0), None).unwrap();
        }
        fs::set_permissions(&own, Permissions::from_mode(0o775)).unwrap();
        assert!(!is_of_this_user(&own).unwrap());
    }
}

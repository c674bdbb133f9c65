//! Where things lie: for the system's manager, and for an ordinary user's.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// File name of the gRPC socket in the runtime directory.
pub const SOCKET_FILE: &str = "manager.sock";

/// The directories and files that are used where nothing else is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The configuration file, which need not exist.
    pub config_file: PathBuf,
    /// Sockets and regions; a tmpfs.
    pub runtime_dir: PathBuf,
    /// What outlives a reboot: the checkpoint.
    pub state_dir: PathBuf,
    /// Where CDI specifications are published; `None` for an ordinary user, whose container runtime looks elsewhere.
    pub cdi_dir: Option<PathBuf>,
}

impl Paths {
    /// The paths of the user that runs this process.
    #[must_use]
    pub fn of_this_user() -> Paths {
        Paths::of(nix::unistd::geteuid().as_raw(), |name| env::var_os(name))
    }

    /// The paths of the user `uid` with the environment `var`.
    fn of(uid: u32, var: impl Fn(&str) -> Option<OsString>) -> Paths {
        if uid == 0 {
            return Paths {
                config_file: "/etc/aliquot/manager.toml".into(),
                runtime_dir: "/run/aliquot".into(),
                state_dir: "/var/lib/aliquot".into(),
                cdi_dir: Some("/var/run/cdi".into()),
            };
        }
        // The XDG specification says that a relative path is to be ignored.
        let dir = |name| var(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = dir("HOME").unwrap_or_else(|| "/".into());
        let runtime = dir("XDG_RUNTIME_DIR").unwrap_or_else(|| format!("/tmp/aliquot-{uid}").into());
        Paths {
            config_file: dir("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")).join("aliquot/manager.toml"),
            runtime_dir: runtime.join("aliquot"),
            state_dir: dir("XDG_STATE_HOME").unwrap_or_else(|| home.join(".local/state")).join("aliquot"),
            cdi_dir: None,
        }
    }

    /// The gRPC socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.runtime_dir.join(SOCKET_FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_has_the_system_s_directories() {
        let paths = Paths::of(0, |_| Some("/ignored".into()));
        assert_eq!(paths.socket(), PathBuf::from("/run/aliquot/manager.sock"));
        assert_eq!(paths.cdi_dir, Some(PathBuf::from("/var/run/cdi")));
    }

    #[test]
    fn an_ordinary_user_has_the_directories_of_the_environment() {
        let paths = Paths::of(1000, |name| match name {
            "XDG_RUNTIME_DIR" => Some("/run/user/1000".into()),
            "HOME" => Some("/home/ada".into()),
            "XDG_STATE_HOME" => Some("relative".into()),
            _ => None,
        });
        assert_eq!(paths.socket(), PathBuf::from("/run/user/1000/aliquot/manager.sock"));
        assert_eq!(paths.state_dir, PathBuf::from("/home/ada/.local/state/aliquot"));
        assert_eq!(paths.config_file, PathBuf::from("/home/ada/.config/aliquot/manager.toml"));
        assert_eq!(paths.cdi_dir, None);
    }

    #[test]
    fn without_an_environment_two_users_do_not_meet() {
        let dirs = [1000, 1001].map(|uid| Paths::of(uid, |_| None).runtime_dir);
        assert_ne!(dirs[0], dirs[1]);
    }
}

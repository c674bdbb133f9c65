//! The daemons that this program calls: the sockets of each, and the words that messages use for it.

use std::path::PathBuf;

use aliquot_manager::paths::Paths;

/// A daemon that serves gRPC on a Unix socket.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Server {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// Its program, which is also the name of its systemd unit.
    pub(crate) program: &'static str,
    /// The options with which a user names its socket.
    pub(crate) options: &'static str,
    /// The advice if none runs.
    pub(crate) start: &'static str,
    /// The advice if its answer makes no sense.
    pub(crate) look: &'static str,
    /// The commands that show whether both have the same version.
    pub(crate) compare: &'static str,
    socket_file: &'static str,
}

/// The daemon that keeps the slices of this machine.
pub(crate) static NODE_MANAGER: Server = Server {
    name: "node manager",
    program: "aliquot-manager",
    options: "--socket or ALIQUOT_SOCKET",
    start: "start one with: systemctl start aliquot-manager (or run aliquot-manager as yourself); \
            `aliquot run` and `aliquot demo` work without one",
    look: "aliquot doctor",
    compare: "aliquot --version and aliquot nodes --local",
    socket_file: "manager.sock",
};

/// The daemon that places the jobs of a cluster.
pub(crate) static SCHEDULER: Server = Server {
    name: "scheduler",
    program: "aliquot-scheduler",
    options: "--scheduler or ALIQUOT_SCHEDULER",
    start: "run this where the scheduler runs, name a file of credentials (`aliquot users add` makes one) with \
            --scheduler, or start a scheduler: systemctl start aliquot-scheduler; `aliquot run` needs none",
    look: "systemctl status aliquot-scheduler",
    compare: "aliquot --version and aliquot-scheduler --version",
    socket_file: "scheduler.sock",
};

/// The directory of the system's daemons' sockets, which ordinary users with access use too.
const SYSTEM_DIR: &str = "/run/aliquot";

impl Server {
    /// The sockets to try, in this order: this user's own, then the system's.
    pub(crate) fn sockets(&self, own: &Paths) -> Vec<PathBuf> {
        let mut sockets =
            vec![own.runtime_dir.join(self.socket_file), PathBuf::from(SYSTEM_DIR).join(self.socket_file)];
        sockets.dedup();
        sockets
    }

    /// The command that shows its log.
    pub(crate) fn log(&self) -> String {
        format!("journalctl -u {}", self.program)
    }

    /// The command that restarts it.
    pub(crate) fn restart(&self) -> String {
        format!("systemctl restart {}", self.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_s_own_daemon_goes_first() {
        let own = Paths { runtime_dir: "/run/user/7/aliquot".into(), ..Paths::of_this_user() };
        let expected = ["/run/user/7/aliquot/scheduler.sock", "/run/aliquot/scheduler.sock"].map(PathBuf::from);
        assert_eq!(SCHEDULER.sockets(&own), expected);
        assert_eq!(NODE_MANAGER.sockets(&own)[1], PathBuf::from("/run/aliquot/manager.sock"));
        let root = Paths { runtime_dir: "/run/aliquot".into(), ..own };
        assert_eq!(SCHEDULER.sockets(&root), [PathBuf::from("/run/aliquot/scheduler.sock")]);
    }

    #[test]
    fn the_manager_s_file_is_the_one_that_it_makes() {
        assert_eq!(NODE_MANAGER.socket_file, aliquot_manager::paths::SOCKET_FILE);
    }
}

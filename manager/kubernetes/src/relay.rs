//! The relay: the process to which kubelet stays connected while managers are replaced.
//!
//! When a plugin ends, kubelet has no units of its resources at once, and a pod that is admitted before the next plugin
//! has registered *fails* for good (`UnexpectedAdmissionError`). Kubelet learns of the loss up to ten seconds before
//! the scheduler does. If a DRA driver ends, its claims wait for kubelet's next look at the pod, up to a minute and a
//! half. So in a cluster kubelet does not speak to the manager but to this process. It has no state, no rights except
//! to two directories, and hardly a reason to end:
//!
//! * **A manager that is killed** leaves its units with kubelet. The relay itself answers the request whose answer
//!   follows from its content (`Allocate`), and all others wait for the next manager.
//! * **A rollout** starts the new pod before the old one ends (`maxSurge: 1`). The new relay registers beside the old
//!   one, under a socket with its own name, and passes requests on to the manager that serves the node at the time. The
//!   new manager stands by until the old one has ended.
//!
//! The manager serves kubelet's own protocols on sockets below its runtime directory, so a relay and a manager of
//! different versions understand each other as kubelet and plugins do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;

use crate::dra;

mod ask;
mod claims;
mod units;

/// The longest absence of a manager that is bridged. Kubernetes restarts a container that crashes again and again at
/// least every five minutes. A manager that is away for longer does not come back by itself: then the node offers
/// nothing more.
const ABSENCE_MAX: Duration = Duration::from_secs(600);

/// Time for requests under way when the relay ends.
const END_GRACE: Duration = Duration::from_secs(2);

/// The directory where a manager and its relays find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    dir: PathBuf,
}

impl Meeting {
    /// The meeting place below the manager's runtime directory.
    #[must_use]
    pub fn below(runtime_dir: &Path) -> Meeting {
        Meeting { dir: runtime_dir.join("kubelet") }
    }

    /// The socket on which the manager serves its DRA driver.
    pub(crate) fn driver(&self) -> PathBuf {
        self.dir.join("dra.sock")
    }

    /// The directory of the sockets on which the manager serves the plugins of its resources.
    fn plugins(&self) -> PathBuf {
        self.dir.join("device-plugins")
    }

    /// The socket on which the manager serves the plugin of a resource.
    pub(crate) fn plugin(&self, resource: &str) -> PathBuf {
        self.plugins().join(format!("{}{SUFFIX}", resource.replace('/', SLASH)))
    }

    /// The resources whose plugins a manager serves or has served.
    fn resources(&self) -> Vec<String> {
        let sockets = crate::unix_socket::sockets_in(&self.plugins(), "");
        let resource = |path: PathBuf| Some(path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.replacen(SLASH, "/", 1));
        sockets.into_iter().filter_map(resource).collect()
    }
}

/// Replaces the slash of a resource's name in file names.
const SLASH: &str = "@";
const SUFFIX: &str = ".sock";

/// The settings of a relay.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether the manager serves a DRA driver, and not a device plugin.
    pub is_dra: bool,
    /// The place where the manager is found.
    pub meeting: Meeting,
    /// The directory of kubelet, `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Distinguishes this relay's sockets from those of others on the node: its pod's UID.
    pub instance: String,
}

/// Relays until `end` is true.
pub async fn run(settings: Settings, mut end: watch::Receiver<bool>) {
    let Settings { is_dra, meeting, kubelet_dir, instance } = settings;
    if is_dra {
        let sockets = dra::Sockets::of_instance(&kubelet_dir, &instance);
        let too_late = async {
            let _ = end.clone().wait_for(|end| *end).await;
            tokio::time::sleep(END_GRACE).await;
        };
        tokio::select! {
            () = claims::relay(meeting.driver(), &sockets, ABSENCE_MAX, end.clone()) => {}
            () = too_late => {}
        }
        return;
    }
    let plugins_dir = kubelet_dir.join("device-plugins");
    tokio::select! {
        () = units::relay(&meeting, &plugins_dir, &instance, ABSENCE_MAX) => {}
        // An error means that the sender is gone, which is the end as well.
        _ = end.wait_for(|end| *end) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix_socket::SocketFile;

    #[tokio::test]
    async fn a_manager_s_resources_are_known_by_its_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let meeting = Meeting::below(dir.path());
        assert!(meeting.resources().is_empty());
        let resources = ["aliquot.dev/gpu-core", "tke.cloud.tencent.com/qgpu-memory"];
        let _made = resources.map(|resource| SocketFile::listen(&meeting.plugin(resource)).unwrap());
        let mut found = meeting.resources();
        found.sort();
        assert_eq!(found, resources);
    }
}

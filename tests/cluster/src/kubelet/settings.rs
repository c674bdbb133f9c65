//! Where a kubelet works, and how long it waits.

use std::path::PathBuf;
use std::time::Duration;

/// Where a kubelet works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its node.
    pub node_name: String,
    /// In place of `/var/lib/kubelet`.
    pub directory: PathBuf,
    /// How long it waits for what.
    pub timing: Timing,
}

/// How long a kubelet waits.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Before what has failed of a pod is tried again. The real one waits 10 s and longer.
    pub retry: Duration,
    /// Before the ResourceSlices of a driver that is gone are deleted.
    pub wipe: Duration,
    /// For `NodePrepareResources` and `NodeUnprepareResources`.
    pub driver_call: Duration,
    /// For `PreStartContainer`.
    pub pre_start: Duration,
    /// For `GetInfo` and `NotifyRegistrationStatus`.
    pub registration: Duration,
}

impl Default for Timing {
    /// As the real kubelet, but for what would only make tests wait.
    fn default() -> Timing {
        Timing {
            retry: Duration::from_millis(100),
            wipe: Duration::from_secs(30),
            driver_call: Duration::from_secs(45),
            pre_start: Duration::from_secs(30),
            registration: Duration::from_secs(1),
        }
    }
}

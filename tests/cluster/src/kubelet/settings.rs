//! The settings of a kubelet: its directory and its waits.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of a kubelet.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of its node.
    pub node_name: String,
    /// Its directory, which replaces `/var/lib/kubelet`.
    pub directory: PathBuf,
    /// The lengths of its waits.
    pub timing: Timing,
}

/// The lengths of a kubelet's waits.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The wait before a failed step of a pod is tried again. The real kubelet waits 10 s or longer.
    pub retry: Duration,
    /// The wait before the ResourceSlices of a missing driver are deleted.
    pub wipe: Duration,
    /// The timeout of `NodePrepareResources` and `NodeUnprepareResources`.
    pub driver_call: Duration,
    /// The timeout of `PreStartContainer`.
    pub pre_start: Duration,
    /// The timeout of `GetInfo` and `NotifyRegistrationStatus`.
    pub registration: Duration,
}

impl Default for Timing {
    /// The values of the real kubelet, with shorter waits where longer ones would only delay tests.
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

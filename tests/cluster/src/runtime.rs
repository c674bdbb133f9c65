//! Container runtimes, as far as a kubelet needs them.

pub(crate) mod cdi;
mod paper;
mod podman;

use std::collections::BTreeMap;
use std::fmt;

pub use paper::Paper;
pub use podman::Podman;

/// The calls of a kubelet to a container runtime.
pub trait ContainerRuntime: Send + Sync + fmt::Debug + 'static {
    /// Starts a container.
    ///
    /// # Errors
    /// If the container cannot be made or started; nothing of it is left then.
    fn start(&self, container: &ContainerSpec) -> Result<(), String>;

    /// The state of a container.
    fn state(&self, id: &str) -> ContainerState;

    /// Ends a container if it runs, and removes it.
    fn remove(&self, id: &str);

    /// The container's standard output so far.
    fn output(&self, id: &str) -> String;
}

/// The specification of a container.
#[derive(Clone, Debug, Default)]
pub struct ContainerSpec {
    /// The container's name in the runtime.
    pub id: String,
    /// The image, in the runtime's own terms.
    pub image: String,
    /// The program of the container, with its arguments.
    pub command: Vec<String>,
    /// Variables in addition to those of the image.
    pub environment: BTreeMap<String, String>,
    /// For each mount the path in the container, the path on the node, and whether it is read-only.
    pub mounts: Vec<(String, String, bool)>,
    /// The fully qualified names of its CDI devices.
    pub cdi_devices: Vec<String>,
}

/// The state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It was never started, or was removed.
    Absent,
    /// It was started and has not ended.
    Running,
    /// It has ended with this status.
    Exited(i64),
}

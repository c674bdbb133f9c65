//! Container runtimes, as far as a kubelet needs them.

pub(crate) mod cdi;
mod paper;
mod podman;

use std::collections::BTreeMap;
use std::fmt;

pub use paper::Paper;
pub use podman::Podman;

/// What starts containers.
pub trait ContainerRuntime: Send + Sync + fmt::Debug + 'static {
    /// Starts a container.
    ///
    /// # Errors
    /// It cannot be made or started; then nothing of it is left.
    fn start(&self, container: &ContainerSpec) -> Result<(), String>;

    /// What has become of a container.
    fn state(&self, id: &str) -> ContainerState;

    /// Ends a container, if it runs, and removes what is left of it.
    fn remove(&self, id: &str);

    /// What it has written to its standard output until now.
    fn output(&self, id: &str) -> String;
}

/// A container to be started.
#[derive(Clone, Debug, Default)]
pub struct ContainerSpec {
    /// Its name with the runtime.
    pub id: String,
    /// Its image.
    pub image: String,
    /// What runs in it.
    pub command: Vec<String>,
    /// Variables besides the image's.
    pub environment: BTreeMap<String, String>,
    /// Path in the container, path on the node, whether read only.
    pub mounts: Vec<(String, String, bool)>,
    /// Fully qualified names.
    pub cdi_devices: Vec<String>,
}

/// What has become of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// It was never started, or was removed.
    Absent,
    /// It runs.
    Running,
    /// It has ended with this status.
    Exited(i64),
}

//! Containers that are only recorded. Their devices are read from the CDI files, as a runtime does when it creates a
//! container, but nothing runs. A container with the command `true` has ended at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{ContainerRuntime, ContainerSpec, ContainerState, cdi};

/// A runtime that records containers. They count as running until they are removed.
#[derive(Debug)]
pub struct Paper {
    cdi: cdi::Registry,
    containers: Mutex<BTreeMap<String, Written>>,
}

/// A container that was started.
#[derive(Debug)]
struct Written {
    edits: cdi::Edits,
    has_ended: bool,
}

impl Paper {
    /// A runtime that looks for CDI devices in this directory.
    #[must_use]
    pub fn new(cdi_directory: PathBuf) -> Paper {
        Paper { cdi: cdi::Registry::of(cdi_directory), containers: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Written>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ContainerRuntime for Paper {
    fn start(&self, container: &ContainerSpec) -> Result<(), String> {
        let edits = self.cdi.resolve(&container.cdi_devices)?;
        let has_ended = container.command == ["true"];
        self.lock().insert(container.id.clone(), Written { edits, has_ended });
        Ok(())
    }

    fn state(&self, id: &str) -> ContainerState {
        match self.lock().get(id) {
            None => ContainerState::Absent,
            Some(Written { has_ended: true, .. }) => ContainerState::Exited(0),
            Some(Written { has_ended: false, .. }) => ContainerState::Running,
        }
    }

    fn remove(&self, id: &str) {
        self.lock().remove(id);
    }

    /// The variables and mounts that the container got, one in each line.
    fn output(&self, id: &str) -> String {
        self.lock().get(id).map(|written| written.edits.to_string()).unwrap_or_default()
    }
}

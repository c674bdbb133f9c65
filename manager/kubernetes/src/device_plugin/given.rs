//! Units that kubelet has given to containers that have not started since.
//!
//! Kubelet is answered at once. If a request for kubelet's `PodResources` reaches it while it waits for an answer to
//! `Allocate`, it may forget that it has given the units away, and give them to the next pod as well (Kubernetes PR
//! 137534). So slow work is done when the container starts: slices of the containers that had these units before are
//! removed first.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// The ids of a container's units of one resource.
pub(crate) type Ids = BTreeSet<String>;

/// The units that were given, until the container starts.
#[derive(Debug, Default)]
pub(crate) struct Given(Mutex<BTreeSet<Ids>>);

impl Given {
    /// Notes that a container was given units. Earlier notes about some of them are dropped.
    pub(crate) fn note(&self, ids: Ids) {
        let mut given = self.0.lock();
        given.retain(|known| known.is_disjoint(&ids));
        given.insert(ids);
    }

    /// The notes that share units with a container that starts.
    pub(crate) fn among(&self, ids: &Ids) -> Vec<Ids> {
        self.0.lock().iter().filter(|known| !known.is_disjoint(ids)).cloned().collect()
    }

    /// Drops the notes that have been handled.
    pub(crate) fn forget(&self, ids: &Ids) {
        self.0.lock().remove(ids);
    }
}

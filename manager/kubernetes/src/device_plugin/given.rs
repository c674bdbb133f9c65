//! Units that kubelet has given to containers that have not started since.
//!
//! Kubelet is answered at once. If a question about who has what reaches it while it waits for an answer to `Allocate`, it
//! may forget that it has given the units away, and gives them to the next pod as well (Kubernetes PR 137534). So whatever
//! takes time is done when the container starts: slices of the containers that had these units before are to go first.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// The ids of a container's units of one resource.
pub(crate) type Ids = BTreeSet<String>;

/// What was given, until the container starts.
#[derive(Debug, Default)]
pub(crate) struct Given(Mutex<BTreeSet<Ids>>);

impl Given {
    /// Notes that a container was given units. Who had some of them before need not be known any more.
    pub(crate) fn note(&self, ids: Ids) {
        let mut given = self.0.lock();
        given.retain(|known| known.is_disjoint(&ids));
        given.insert(ids);
    }

    /// What was given of the units of a container that starts.
    pub(crate) fn among(&self, ids: &Ids) -> Vec<Ids> {
        self.0.lock().iter().filter(|known| !known.is_disjoint(ids)).cloned().collect()
    }

    /// Forgets what has been dealt with.
    pub(crate) fn forget(&self, ids: &Ids) {
        self.0.lock().remove(ids);
    }
}

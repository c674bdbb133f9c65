//! Faults of single requests.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

/// The fault of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// The request is done and answered.
    #[default]
    None,
    /// The request is not done, and fails.
    Refused,
    /// The request is not done: the client has no right to it.
    Forbidden,
    /// The request is not done: there is no such resource.
    NotFound,
    /// The request is done, but the client is told that it failed.
    AnswerLost,
    /// The request is done, and answered when another fault is chosen for it.
    AnswerHeld,
}

type Chooser = dyn Fn(&str, &str) -> Fault + Send + Sync;

/// Chooses a fault for each request.
#[derive(Default)]
pub(super) struct Faults {
    chooser: Mutex<Option<Arc<Chooser>>>,
    /// How often a chooser was set.
    changes: watch::Sender<u64>,
}

impl Faults {
    pub(super) fn set(&self, choose: impl Fn(&str, &str) -> Fault + Send + Sync + 'static) {
        *self.chooser.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(choose));
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn of(&self, method: &str, path: &str) -> Fault {
        let choose = self.chooser.lock().unwrap_or_else(PoisonError::into_inner).clone();
        choose.map(|choose| choose(method, path)).unwrap_or_default()
    }

    /// Waits while the answer to a request is held.
    pub(super) async fn release(&self, method: &str, path: &str) {
        let mut changes = self.changes.subscribe();
        while self.of(method, path) == Fault::AnswerHeld {
            // It cannot fail: the sender is in `self`.
            _ = changes.changed().await;
        }
    }
}

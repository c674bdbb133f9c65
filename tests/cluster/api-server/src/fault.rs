//! Faults of single requests.

use std::sync::{Arc, Mutex, PoisonError};

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
    /// The request is done, but the client is told that it failed.
    AnswerLost,
}

type Chooser = dyn Fn(&str, &str) -> Fault + Send + Sync;

/// Chooses a fault for each request.
#[derive(Default)]
pub(super) struct Faults(Mutex<Option<Arc<Chooser>>>);

impl Faults {
    pub(super) fn set(&self, choose: impl Fn(&str, &str) -> Fault + Send + Sync + 'static) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(choose));
    }

    pub(super) fn of(&self, method: &str, path: &str) -> Fault {
        let choose = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        choose.map(|choose| choose(method, path)).unwrap_or_default()
    }
}

//! Runs an engine with a real clock: one call on a thread of its own.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use aliquot_scheduler_core::EventError;

use crate::command::Backend;
use crate::engine::{Engine, Ready};
use crate::observation::Observation;
use crate::store::{Store, StoreError};
use crate::view::Shown;

/// Called when an observation has been taken in and what follows from it is saved.
pub type Acknowledge = Box<dyn FnOnce(Result<(), EventError>) + Send>;

/// What is sent to the thread that runs an engine.
pub struct Message {
    /// The observation to take in.
    pub observation: Observation,
    /// Called once what follows from the observation is saved; `None`: its sender does not wait for that.
    pub acknowledge: Option<Acknowledge>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("observation", &self.observation).finish_non_exhaustive()
    }
}

/// The most messages that are taken in before what follows from them is saved and sent.
const BATCH: usize = 1024;

/// Runs an engine until no sender is left.
///
/// `clock` tells the time in milliseconds since any fixed moment. It never runs backwards, even across restarts.
///
/// # Errors
/// If what must be saved cannot be saved. Nothing that depends on it was sent then.
pub fn run(
    mut engine: Engine,
    store: &mut dyn Store,
    backend: &mut dyn Backend,
    shown: &Shown,
    inbox: &Receiver<Message>,
    mut clock: impl FnMut() -> u64,
) -> Result<(), StoreError> {
    loop {
        let wait_ms = engine.next_ms().map(|at_ms| at_ms.saturating_sub(clock()));
        let first = match wait_ms {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait_ms) => inbox.recv_timeout(Duration::from_millis(wait_ms)),
        };
        let first = match first {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        let mut acknowledged = Vec::new();
        for Message { observation, acknowledge } in first.into_iter().chain(inbox.try_iter()).take(BATCH) {
            let done = engine.handle(clock(), observation);
            acknowledged.extend(acknowledge.map(|acknowledge| (acknowledge, done)));
        }
        let Ready { save, commands, view } = engine.poll(clock());
        if let Some(batch) = save {
            store.save(&batch)?;
        }
        backend.carry_out_all(commands);
        if let Some(view) = view {
            shown.set(view);
        }
        for (acknowledge, done) in acknowledged {
            acknowledge(done);
        }
    }
}

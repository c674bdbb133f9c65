//! A slice's state on each of its devices: written by that device's thread, read by the other devices' threads.

use std::thread::Thread;

use aliquot_arbiter::{GangState, Siblings};
use parking_lot::Mutex;

/// A slice's states, one for each part.
pub(crate) struct GangStates {
    parts: Vec<Mutex<PartState>>,
}

#[derive(Default)]
struct PartState {
    state: GangState,
    /// The thread that shares the part's device; `None`: no thread does.
    thread: Option<Thread>,
}

impl GangStates {
    /// The states of a slice with `parts` parts, which no thread shares yet.
    pub(crate) fn new(parts: usize) -> GangStates {
        GangStates { parts: (0..parts).map(|_| Mutex::default()).collect() }
    }

    /// From now on `thread` publishes the state of part `part`, and is woken by news of the other parts.
    pub(super) fn join(&self, part: usize, thread: Thread) {
        self.set(part, PartState { state: GangState::Absent, thread: Some(thread) });
    }

    /// Nothing is published for part `part` any more.
    pub(super) fn leave(&self, part: usize) {
        self.set(part, PartState::default());
    }

    /// The slice's states on its devices other than that of part `part`; `None` if it has only one device.
    pub(super) fn siblings(&self, part: usize) -> Option<Siblings> {
        (self.parts.len() > 1).then(|| Siblings::of(self.others(part).map(|other| other.lock().state)))
    }

    /// Publishes the state of part `part`, and wakes the other devices' threads if they should look at once.
    pub(super) fn publish(&self, part: usize, state: GangState) {
        let Some(own) = self.parts.get(part).filter(|_| self.parts.len() > 1) else { return };
        let before = std::mem::replace(&mut own.lock().state, state);
        if state.is_news_after(before) {
            for other in self.others(part) {
                if let Some(thread) = &other.lock().thread {
                    thread.unpark();
                }
            }
        }
    }

    fn others(&self, part: usize) -> impl Iterator<Item = &Mutex<PartState>> {
        self.parts.iter().enumerate().filter(move |(number, _)| *number != part).map(|(_, other)| other)
    }

    fn set(&self, part: usize, state: PartState) {
        if let Some(own) = self.parts.get(part) {
            *own.lock() = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slice_with_one_device_has_no_siblings() {
        let states = GangStates::new(1);
        states.publish(0, GangState::Open { session_ns: None });
        assert_eq!(states.siblings(0), None);
    }

    #[test]
    fn news_of_one_device_reaches_the_thread_of_another() {
        let states = GangStates::new(2);
        states.join(0, thread::current());
        let open = GangState::Open { session_ns: Some(7) };
        thread::scope(|scope| {
            scope.spawn(|| states.publish(1, open));
            while states.siblings(0) != Some(Siblings::of([open])) {
                thread::park_timeout(Duration::from_secs(60));
            }
        });
        states.leave(1);
        assert_eq!(states.siblings(0), Some(Siblings::default()));
    }
}

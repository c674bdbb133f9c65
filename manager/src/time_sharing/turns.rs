//! A slice's state on each of its devices: written by that device's thread, read by the other devices' threads.

use std::thread::Thread;

use aliquot_arbiter::{Siblings, Turn};
use parking_lot::Mutex;

/// A slice's turns, one for each part.
pub(crate) struct Turns {
    parts: Vec<Mutex<PartTurn>>,
}

#[derive(Default)]
struct PartTurn {
    turn: Turn,
    /// The thread that shares the part's device; `None`: no thread does.
    thread: Option<Thread>,
}

impl Turns {
    /// The turns of a slice with `parts` parts, which no thread shares yet.
    pub(crate) fn new(parts: usize) -> Turns {
        Turns { parts: (0..parts).map(|_| Mutex::default()).collect() }
    }

    /// From now on `thread` publishes the turn of part `part`, and is woken by news of the other parts.
    pub(super) fn join(&self, part: usize, thread: Thread) {
        self.set(part, PartTurn { turn: Turn::Absent, thread: Some(thread) });
    }

    /// Nothing is published for part `part` any more.
    pub(super) fn leave(&self, part: usize) {
        self.set(part, PartTurn::default());
    }

    /// The slice's turns on its devices other than that of part `part`; `None` if it has only one device.
    pub(super) fn siblings(&self, part: usize) -> Option<Siblings> {
        (self.parts.len() > 1).then(|| Siblings::of(self.others(part).map(|other| other.lock().turn)))
    }

    /// Publishes the turn of part `part`, and wakes the other devices' threads if they should look at once.
    pub(super) fn publish(&self, part: usize, turn: Turn) {
        let Some(own) = self.parts.get(part).filter(|_| self.parts.len() > 1) else { return };
        let before = std::mem::replace(&mut own.lock().turn, turn);
        if turn.is_news_after(before) {
            for other in self.others(part) {
                if let Some(thread) = &other.lock().thread {
                    thread.unpark();
                }
            }
        }
    }

    fn others(&self, part: usize) -> impl Iterator<Item = &Mutex<PartTurn>> {
        self.parts.iter().enumerate().filter(move |(number, _)| *number != part).map(|(_, other)| other)
    }

    fn set(&self, part: usize, turn: PartTurn) {
        if let Some(own) = self.parts.get(part) {
            *own.lock() = turn;
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
        let turns = Turns::new(1);
        turns.publish(0, Turn::Open { session_ns: None });
        assert_eq!(turns.siblings(0), None);
    }

    #[test]
    fn news_of_one_device_reaches_the_thread_of_another() {
        let turns = Turns::new(2);
        turns.join(0, thread::current());
        let open = Turn::Open { session_ns: Some(7) };
        thread::scope(|scope| {
            scope.spawn(|| turns.publish(1, open));
            while turns.siblings(0) != Some(Siblings::of([open])) {
                thread::park_timeout(Duration::from_secs(60));
            }
        });
        turns.leave(1);
        assert_eq!(turns.siblings(0), Some(Siblings::default()));
    }
}

//! Changes of the checkpoint from many threads at once. Those that come while it is being written share the next write,
//! so a hundred changes cost hardly more than one. None is answered before it is durable.

use std::collections::BTreeMap;
use std::mem;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{CheckpointError, Entry};
use crate::slices::SliceId;

/// Writes entries durably, in place of those that were written before.
type Save = dyn Fn(Vec<Entry>) -> Result<(), CheckpointError> + Send + Sync;

/// The entries of the checkpoint, and the changes that wait to be written.
pub(crate) struct Journal {
    save: Box<Save>,
    state: Mutex<State>,
    /// A write has ended.
    written: Condvar,
}

type Entries = BTreeMap<SliceId, Entry>;

#[derive(Default)]
struct State {
    /// What is to be in the checkpoint. Empty while a thread writes, which has them then.
    entries: Entries,
    is_writing: bool,
    waiting: Vec<Change>,
    /// Of changes whose threads have not taken them yet, by number.
    outcomes: BTreeMap<u64, Result<(), CheckpointError>>,
    /// The number of the next change.
    next: u64,
}

struct Change {
    number: u64,
    id: SliceId,
    entry: Option<Entry>,
    /// Whether it stays if it cannot be written, so that the next write that succeeds contains it.
    stays: bool,
}

impl Journal {
    /// A journal without entries, which `save` writes. Writes nothing yet.
    #[must_use]
    pub(crate) fn new(save: impl Fn(Vec<Entry>) -> Result<(), CheckpointError> + Send + Sync + 'static) -> Journal {
        Journal { save: Box::new(save), state: Mutex::default(), written: Condvar::new() }
    }

    /// Writes `entries` in place of all others. Must not be called beside changes.
    ///
    /// # Errors
    /// They cannot be written. The next write that succeeds contains them.
    pub(crate) fn begin(&self, entries: impl IntoIterator<Item = Entry>) -> Result<(), CheckpointError> {
        let mut state = self.state.lock();
        state.entries = entries.into_iter().map(|entry| (entry.slice.id, entry)).collect();
        self.save(&state.entries)
    }

    /// Writes the entry of slice `id`; `None`: the slice has none. It is durable when this returns.
    ///
    /// # Errors
    /// It cannot be written, not even by itself. Then the former entry stays.
    pub(crate) fn set(&self, id: SliceId, entry: Option<Entry>) -> Result<(), CheckpointError> {
        self.change(id, entry, false)
    }

    /// Takes a change back. `entry` is what the checkpoint held before it.
    ///
    /// # Errors
    /// It cannot be written now. The next write that succeeds contains it.
    pub(crate) fn restore(&self, id: SliceId, entry: Option<Entry>) -> Result<(), CheckpointError> {
        self.change(id, entry, true)
    }

    fn change(&self, id: SliceId, entry: Option<Entry>, stays: bool) -> Result<(), CheckpointError> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push(Change { number, id, entry, stays });
        loop {
            if let Some(outcome) = state.outcomes.remove(&number) {
                return outcome;
            }
            if state.is_writing {
                self.written.wait(&mut state);
            } else {
                self.write_what_waits(&mut state);
            }
        }
    }

    /// Writes all changes that wait now. Others can join the next write meanwhile.
    fn write_what_waits(&self, state: &mut MutexGuard<'_, State>) {
        state.is_writing = true;
        let (mut entries, changes) = (mem::take(&mut state.entries), mem::take(&mut state.waiting));
        let outcomes = MutexGuard::unlocked(state, || {
            let numbers: Vec<u64> = changes.iter().map(|change| change.number).collect();
            let outcomes = self.write(&mut entries, changes);
            numbers.into_iter().zip(outcomes).collect::<Vec<_>>()
        });
        state.entries = entries;
        state.outcomes.extend(outcomes);
        state.is_writing = false;
        self.written.notify_all();
    }

    /// Writes `changes` together. If that fails, writes them one by one: on a full disk one that needs more room must
    /// not keep back one that needs less. The outcomes are in the order of the changes.
    fn write(&self, entries: &mut Entries, changes: Vec<Change>) -> Vec<Result<(), CheckpointError>> {
        let mut together = entries.clone();
        changes.iter().for_each(|change| apply(&mut together, change));
        match self.save(&together) {
            Ok(()) => {
                *entries = together;
                changes.iter().map(|_| Ok(())).collect()
            }
            Err(error) if changes.len() == 1 => {
                if changes[0].stays {
                    *entries = together;
                }
                vec![Err(error)]
            }
            Err(_) => changes.into_iter().flat_map(|change| self.write(entries, vec![change])).collect(),
        }
    }

    fn save(&self, entries: &Entries) -> Result<(), CheckpointError> {
        (self.save)(entries.values().cloned().collect())
    }
}

fn apply(entries: &mut Entries, change: &Change) {
    match &change.entry {
        Some(entry) => entries.insert(change.id, entry.clone()),
        None => entries.remove(&change.id),
    };
}

#[cfg(test)]
mod tests;

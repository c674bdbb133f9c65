//! Changes of the checkpoint from many threads at once. Changes that come during a write share the next write, so a
//! hundred changes cost hardly more than one. No change is answered before it is durable.

use std::collections::BTreeMap;

use aliquot_durable::GroupCommit;
use parking_lot::Mutex;

use super::{CheckpointError, Entry};
use crate::slices::SliceId;

/// Writes entries durably, in place of those that were written before.
type Save = dyn Fn(&Entries) -> Result<(), CheckpointError> + Send + Sync;

/// The entries of the checkpoint, and the changes that wait to be written.
pub(crate) struct Journal {
    save: Box<Save>,
    /// The entries in the checkpoint. Only the thread that writes locks them.
    entries: Mutex<Entries>,
    changes: GroupCommit<Change, Result<(), CheckpointError>>,
}

/// The entries of the checkpoint, by slice.
pub(crate) type Entries = BTreeMap<SliceId, Entry>;

struct Change {
    id: SliceId,
    entry: Option<Entry>,
    /// Whether the change stays if it cannot be written, so that the next write that succeeds contains it.
    stays: bool,
}

impl Journal {
    /// A journal without entries, which writes by `save`. It writes nothing yet.
    #[must_use]
    pub(crate) fn new(save: impl Fn(&Entries) -> Result<(), CheckpointError> + Send + Sync + 'static) -> Journal {
        Journal { save: Box::new(save), entries: Mutex::default(), changes: GroupCommit::default() }
    }

    /// Writes `entries` in place of all others. Must not be called beside changes.
    ///
    /// # Errors
    /// The entries cannot be written. The next write that succeeds contains them.
    pub(crate) fn begin(&self, entries: impl IntoIterator<Item = Entry>) -> Result<(), CheckpointError> {
        let mut known = self.entries.lock();
        *known = entries.into_iter().map(|entry| (entry.slice.id, entry)).collect();
        (self.save)(&known)
    }

    /// Writes the entry of slice `id`; `None` removes it. The change is durable when this returns.
    ///
    /// # Errors
    /// The change cannot be written, not even by itself. Then the former entry stays.
    pub(crate) fn set(&self, id: SliceId, entry: Option<Entry>) -> Result<(), CheckpointError> {
        self.change(id, entry, false)
    }

    /// Takes a change back. `entry` is the entry that the checkpoint held before it.
    ///
    /// # Errors
    /// The former entry cannot be written now. The next write that succeeds contains it.
    pub(crate) fn restore(&self, id: SliceId, entry: Option<Entry>) -> Result<(), CheckpointError> {
        self.change(id, entry, true)
    }

    fn change(&self, id: SliceId, entry: Option<Entry>, stays: bool) -> Result<(), CheckpointError> {
        let write = |changes| self.write(&mut self.entries.lock(), changes);
        self.changes.commit(Change { id, entry, stays }, write)
    }

    /// Writes `changes` together. If that fails, writes them one by one: on a full disk a change that needs more room
    /// must not hold up one that needs less. The outcomes are in the order of the changes.
    fn write(&self, entries: &mut Entries, changes: Vec<Change>) -> Vec<Result<(), CheckpointError>> {
        let before: Vec<Option<Entry>> =
            changes.iter().map(|change| put(entries, change.id, change.entry.clone())).collect();
        let error = match (self.save)(entries) {
            Ok(()) => return changes.iter().map(|_| Ok(())).collect(),
            Err(error) => error,
        };
        if let [change] = changes.as_slice()
            && change.stays
        {
            return vec![Err(error)];
        }
        // Undone in reverse order, because several changes can be of one slice.
        for (change, before) in changes.iter().zip(before).rev() {
            put(entries, change.id, before);
        }
        match changes.len() {
            1 => vec![Err(error)],
            _ => changes.into_iter().flat_map(|change| self.write(entries, vec![change])).collect(),
        }
    }
}

/// Replaces the entry of slice `id`; `None` removes it. Returns the former entry.
fn put(entries: &mut Entries, id: SliceId, entry: Option<Entry>) -> Option<Entry> {
    match entry {
        Some(entry) => entries.insert(id, entry),
        None => entries.remove(&id),
    }
}

#[cfg(test)]
mod tests;

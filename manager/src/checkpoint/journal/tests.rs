use std::sync::Arc;

use super::*;
use crate::checkpoint::Phase;
use crate::checkpoint::tests::slice;

fn entry(number: u128) -> (SliceId, Entry) {
    let slice = slice(number);
    (slice.id, Entry { phase: Phase::Ready, slice })
}

fn full() -> CheckpointError {
    CheckpointError::Write { path: "file".into(), source: std::io::ErrorKind::StorageFull.into() }
}

/// The slices that were written last, by their ids.
type Written = Arc<Mutex<Vec<SliceId>>>;

/// A journal whose writes `fails` refuses.
fn journal(fails: impl Fn(&Entries) -> bool + Send + Sync + 'static) -> (Journal, Written) {
    let written = Written::default();
    let noted = Arc::clone(&written);
    let journal = Journal::new(move |entries| {
        if fails(entries) {
            return Err(full());
        }
        *noted.lock() = entries.keys().copied().collect();
        Ok(())
    });
    (journal, written)
}

#[test]
fn a_change_that_cannot_be_written_keeps_back_no_other() {
    let [(good, good_entry), (bad, bad_entry), (other, other_entry)] = [1, 2, 3].map(entry);
    let (journal, written) = journal(move |entries| entries.contains_key(&bad));
    let changes = [(good, good_entry), (bad, bad_entry), (other, other_entry)];
    let changes = changes.into_iter().map(|(id, entry)| Change { id, entry: Some(entry), stays: false });
    let mut entries = Entries::new();
    let outcomes = journal.write(&mut entries, changes.collect());
    assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(entries.keys().copied().collect::<Vec<_>>(), [good, other]);
    assert_eq!(*written.lock(), [good, other]);
}

#[test]
fn a_refused_change_is_in_no_later_write_and_one_that_is_taken_back_is() {
    let is_full = Arc::new(Mutex::new(false));
    let asked = Arc::clone(&is_full);
    let (journal, written) = journal(move |_| *asked.lock());
    let [(kept, kept_entry), (refused, refused_entry), (later, later_entry)] = [1, 2, 3].map(entry);
    journal.set(kept, Some(kept_entry)).unwrap();
    *is_full.lock() = true;
    assert!(journal.set(refused, Some(refused_entry)).unwrap_err().is_full_disk());
    journal.restore(kept, None).unwrap_err();
    assert_eq!(*written.lock(), [kept]);
    *is_full.lock() = false;
    journal.set(later, Some(later_entry)).unwrap();
    assert_eq!(*written.lock(), [later]);
}

#[test]
fn changes_of_one_slice_are_undone_in_reverse_order() {
    let (journal, _) = journal(|_| true);
    let (id, before) = entry(1);
    let changed = Entry { phase: Phase::Removing, ..before.clone() };
    let changes = [Some(changed), None].map(|entry| Change { id, entry, stays: false });
    let mut entries = Entries::from([(id, before)]);
    let outcomes = journal.write(&mut entries, changes.into());
    assert!(outcomes.iter().all(Result::is_err));
    assert_eq!(entries[&id].phase, Phase::Ready);
}

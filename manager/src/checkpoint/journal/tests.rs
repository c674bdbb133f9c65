use std::sync::Arc;
use std::thread;

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

/// What was written, each time, as numbers of slices.
#[derive(Default)]
struct Writes {
    all: Mutex<Vec<Vec<SliceId>>>,
    changed: Condvar,
}

impl Writes {
    fn add(&self, entries: &[Entry]) {
        self.all.lock().push(entries.iter().map(|entry| entry.slice.id).collect());
        self.changed.notify_all();
    }

    fn newest(&self) -> Vec<SliceId> {
        self.all.lock().last().cloned().unwrap_or_default()
    }
}

/// A journal whose writes `fails` refuses.
fn journal(fails: impl Fn(&[Entry]) -> bool + Send + Sync + 'static) -> (Arc<Journal>, Arc<Writes>) {
    let writes = Arc::new(Writes::default());
    let noted = Arc::clone(&writes);
    let journal = Journal::new(move |entries| {
        if fails(&entries) {
            return Err(full());
        }
        noted.add(&entries);
        Ok(())
    });
    (Arc::new(journal), writes)
}

#[test]
fn changes_that_come_during_a_write_share_the_next_one() {
    const CHANGES: u128 = 50;
    let journal = Arc::new(Mutex::new(None::<Arc<Journal>>));
    let writes = Arc::new(Writes::default());
    let (noted, known) = (Arc::clone(&writes), Arc::clone(&journal));
    let made = Arc::new(Journal::new(move |entries| {
        // The first write takes until all other changes wait.
        if noted.all.lock().is_empty() {
            let journal = Arc::clone(known.lock().as_ref().unwrap());
            while journal.state.lock().waiting.len() < CHANGES as usize - 1 {
                thread::yield_now();
            }
        }
        noted.add(&entries);
        Ok(())
    }));
    *journal.lock() = Some(Arc::clone(&made));
    thread::scope(|scope| {
        for number in 0..CHANGES {
            let (made, writes) = (&made, &writes);
            scope.spawn(move || {
                let (id, entry) = entry(number);
                made.set(id, Some(entry)).unwrap();
                // Durable before it is answered.
                assert!(writes.all.lock().iter().any(|written| written.contains(&id)));
            });
        }
    });
    let lengths: Vec<usize> = writes.all.lock().iter().map(Vec::len).collect();
    assert_eq!(lengths, [1, CHANGES as usize]);
}

#[test]
fn a_change_that_cannot_be_written_keeps_back_no_other() {
    let [(good, good_entry), (bad, bad_entry), (other, other_entry)] = [1, 2, 3].map(entry);
    let (journal, writes) = journal(move |entries| entries.iter().any(|entry| entry.slice.id == bad));
    let changes = [(good, good_entry), (bad, bad_entry), (other, other_entry)];
    let changes = changes.into_iter().enumerate().map(|(number, (id, entry))| Change {
        number: number as u64,
        id,
        entry: Some(entry),
        stays: false,
    });
    let mut entries = Entries::new();
    let outcomes = journal.write(&mut entries, changes.collect());
    assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(entries.keys().copied().collect::<Vec<_>>(), [good, other]);
    assert_eq!(writes.newest(), [good, other]);
}

#[test]
fn a_refused_change_is_in_no_later_write_and_one_that_is_taken_back_is() {
    let is_full = Arc::new(Mutex::new(false));
    let asked = Arc::clone(&is_full);
    let (journal, writes) = journal(move |_| *asked.lock());
    let [(kept, kept_entry), (refused, refused_entry), (later, later_entry)] = [1, 2, 3].map(entry);
    journal.set(kept, Some(kept_entry)).unwrap();
    *is_full.lock() = true;
    assert!(journal.set(refused, Some(refused_entry)).unwrap_err().is_full_disk());
    journal.restore(kept, None).unwrap_err();
    assert_eq!(writes.newest(), [kept]);
    *is_full.lock() = false;
    journal.set(later, Some(later_entry)).unwrap();
    assert_eq!(writes.newest(), [later]);
}

//! Group commit: changes that come from many threads while one of them writes share the next write.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};

/// Changes `C` that are written in groups; each has an outcome `T`. A hundred changes at once cost hardly more than one,
/// and each of them is written when [`commit`](GroupCommit::commit) returns its outcome.
#[derive(Debug)]
pub struct GroupCommit<C, T> {
    state: Mutex<State<C, T>>,
}

#[derive(Debug)]
struct State<C, T> {
    is_writing: bool,
    /// The changes that wait, in the order in which they came.
    waiting: Vec<Waiting<C>>,
    /// Outcomes that their threads have not taken yet, by the number of the change.
    outcomes: BTreeMap<u64, T>,
    /// The number of the next change.
    next: u64,
}

#[derive(Debug)]
struct Waiting<C> {
    number: u64,
    change: C,
    thread: Thread,
}

impl<C, T> Default for GroupCommit<C, T> {
    fn default() -> Self {
        let state = State { is_writing: false, waiting: Vec::new(), outcomes: BTreeMap::new(), next: 0 };
        GroupCommit { state: Mutex::new(state) }
    }
}

impl<C, T> GroupCommit<C, T> {
    /// Has `change` written, together with the changes that other threads bring meanwhile, and returns its outcome.
    ///
    /// `write` gets the changes of a group in the order in which they came, and returns their outcomes in this order.
    /// One thread of the group calls its `write`, so all threads must bring the same. Two writes are never under way at
    /// once.
    ///
    /// # Panics
    /// If `write` returns fewer outcomes than it got changes. A panic in `write` must end the process, because the other
    /// threads of the group wait for ever.
    pub fn commit(&self, change: C, write: impl FnOnce(Vec<C>) -> Vec<T>) -> T {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push(Waiting { number, change, thread: thread::current() });
        while state.is_writing {
            drop(state);
            // The writing thread wakes this one when the outcome is there, or when this thread must write.
            thread::park();
            state = self.lock();
            if let Some(outcome) = state.outcomes.remove(&number) {
                return outcome;
            }
        }
        // No other thread has taken this change, so it is still among the waiting ones.
        state.is_writing = true;
        let group = mem::take(&mut state.waiting);
        drop(state);
        let (members, changes): (Vec<(u64, Thread)>, Vec<C>) =
            group.into_iter().map(|waiting| ((waiting.number, waiting.thread), waiting.change)).unzip();
        let outcomes = write(changes);
        let mut state = self.lock();
        state.is_writing = false;
        state.outcomes.extend(members.iter().map(|(number, _)| *number).zip(outcomes));
        members.iter().for_each(|(_, thread)| thread.unpark());
        if let Some(next) = state.waiting.first() {
            next.thread.unpark();
        }
        state.outcomes.remove(&number).expect("`write` returns an outcome for each change")
    }

    fn lock(&self) -> MutexGuard<'_, State<C, T>> {
        // No foreign code runs under the lock, so the state is consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_come_during_a_write_share_the_next_one() {
        const CHANGES: u32 = 50;
        let (commits, writes) = (GroupCommit::default(), Mutex::new(Vec::new()));
        let write = |changes: Vec<u32>| {
            // The first write takes until all other changes wait.
            while writes.lock().unwrap().is_empty() && commits.lock().waiting.len() < CHANGES as usize - 1 {
                thread::yield_now();
            }
            writes.lock().unwrap().push(changes.clone());
            changes.into_iter().map(|change| change * 2).collect()
        };
        thread::scope(|scope| {
            for change in 0..CHANGES {
                let (commits, writes) = (&commits, &writes);
                scope.spawn(move || {
                    assert_eq!(commits.commit(change, write), change * 2);
                    assert!(writes.lock().unwrap().iter().flatten().any(|written| *written == change));
                });
            }
        });
        let lengths: Vec<usize> = writes.lock().unwrap().iter().map(Vec::len).collect();
        assert_eq!(lengths, [1, CHANGES as usize - 1]);
        assert!(commits.lock().outcomes.is_empty());
    }

    #[test]
    fn no_thread_waits_for_ever_when_writes_follow_each_other() {
        const ROUNDS: usize = 200;
        let commits = GroupCommit::default();
        let is_writing = Mutex::new(());
        thread::scope(|scope| {
            for change in 0..8 {
                let (commits, is_writing) = (&commits, &is_writing);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let outcome = commits.commit(change, |changes: Vec<usize>| {
                            let _alone = is_writing.try_lock().expect("no other write is under way");
                            thread::yield_now();
                            changes
                        });
                        assert_eq!(outcome, change);
                    }
                });
            }
        });
    }
}

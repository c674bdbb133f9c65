//! The thread that uses the backend.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use crate::error::StoreError;
use crate::tables::{Backend, Tables, Work};

/// The most parts in one transaction, so that no caller waits without end for others.
const GROUP_MAX: usize = 1024;

/// Work for a transaction, which it may share with other work.
pub(crate) trait Part: Send {
    /// Does the work. It may be called again, in another transaction, if this one fails.
    fn apply(&mut self, tables: &mut dyn Tables) -> Result<(), StoreError>;

    /// Answers the caller: the transaction is durable, or nothing was done.
    fn answer(self: Box<Self>, done: Result<(), StoreError>);
}

/// Work with a result for its caller.
pub(crate) struct Asked<F, T> {
    work: F,
    answer: Option<T>,
    reply: SyncSender<Result<T, StoreError>>,
}

impl<F, T> Asked<F, T> {
    pub(crate) fn new(work: F, reply: SyncSender<Result<T, StoreError>>) -> Self {
        Self { work, answer: None, reply }
    }
}

impl<F, T> Part for Asked<F, T>
where
    F: FnMut(&mut dyn Tables) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn apply(&mut self, tables: &mut dyn Tables) -> Result<(), StoreError> {
        self.answer = Some((self.work)(tables)?);
        Ok(())
    }

    fn answer(self: Box<Self>, done: Result<(), StoreError>) {
        let Self { answer, reply, .. } = *self;
        let result = match (done, answer) {
            (Ok(()), Some(answer)) => Ok(answer),
            (Err(error), _) => Err(error),
            (Ok(()), None) => return,
        };
        // The caller may have stopped waiting.
        let _ = reply.send(result);
    }
}

/// A task for the writer.
pub(crate) enum Task {
    Work(Box<dyn Part>),
    BackUp { to: PathBuf, reply: SyncSender<Result<(), StoreError>> },
}

/// The state of the writer.
pub(crate) struct Writer {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) queue: Queue,
}

/// The tasks that wait for the writer.
pub(crate) struct Queue {
    pub(crate) inbox: Receiver<Task>,
    /// Tasks that have arrived and must wait until the present one is done.
    pub(crate) later: VecDeque<Task>,
    /// The number of durable transactions.
    pub(crate) transactions: Arc<AtomicU64>,
}

/// Runs work in a transaction.
pub(crate) type Transact<'a> = dyn FnMut(&mut Work<'_>) -> Result<(), StoreError> + 'a;

impl Writer {
    /// Does tasks until no sender is left.
    pub(crate) fn run(self) {
        let Self { mut backend, mut queue } = self;
        while let Some(task) = queue.next() {
            match task {
                Task::Work(first) => queue.serve(&mut |work| backend.transact(work), Some(first)),
                Task::BackUp { to, reply } => {
                    let done = backend.back_up(&mut queue, &to);
                    let _ = reply.send(done);
                }
            }
        }
    }
}

impl Queue {
    /// The next task; `None`: no sender is left.
    fn next(&mut self) -> Option<Task> {
        self.later.pop_front().or_else(|| self.inbox.recv().ok())
    }

    /// Does all work that waits now.
    pub(crate) fn serve(&mut self, transact: &mut Transact<'_>, first: Option<Box<dyn Part>>) {
        let mut group = Vec::from_iter(first);
        while group.len() < GROUP_MAX {
            match self.inbox.try_recv() {
                Ok(Task::Work(work)) => group.push(work),
                Ok(backup) => self.later.push_back(backup),
                Err(_) => break,
            }
        }
        self.commit(transact, group);
    }

    /// Does all work in one transaction. If that fails, each part is tried alone, so that a faulty part does not affect
    /// the others.
    fn commit(&self, transact: &mut Transact<'_>, mut group: Vec<Box<dyn Part>>) {
        if group.len() > 1 && self.transact(transact, &mut group).is_ok() {
            return group.into_iter().for_each(|work| work.answer(Ok(())));
        }
        for mut work in group {
            let done = self.transact(transact, std::slice::from_mut(&mut work));
            work.answer(done);
        }
    }

    fn transact(&self, transact: &mut Transact<'_>, group: &mut [Box<dyn Part>]) -> Result<(), StoreError> {
        transact(&mut |tables| group.iter_mut().try_for_each(|work| work.apply(tables)))?;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::{Change, Database};

    pub(crate) type Answer = Receiver<Result<(), StoreError>>;

    fn open(folder: &Path) -> Database {
        Database::open(&folder.join("state.db")).expect("it can be opened")
    }

    /// Asks for work without waiting for the result.
    fn ask(
        database: &Database,
        work: impl FnMut(&mut dyn Tables) -> Result<(), StoreError> + Send + 'static,
    ) -> Answer {
        let (reply, answer) = mpsc::sync_channel(1);
        database.send(Task::Work(Box::new(Asked::new(work, reply))));
        answer
    }

    pub(crate) fn set(key: &str, value: &str) -> [Change; 1] {
        [Change { kind: "test", key: key.to_owned(), value: Some(value.to_owned()) }]
    }

    pub(crate) fn ask_to_set(database: &Database, key: &str, value: &str) -> Answer {
        let changes = set(key, value);
        ask(database, move |tables| tables.change(&changes))
    }

    /// Keeps the writer busy until the answer is dropped. Work that is asked for meanwhile is done together.
    pub(crate) fn hold(database: &Database) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        drop(ask(database, move |_| {
            let _ = begin.send(());
            let _ = released.recv();
            Ok(())
        }));
        begun.recv().expect("the writer begins");
        release
    }

    pub(crate) fn is_durable(answer: &Answer) -> bool {
        answer.recv().expect("the writer answers").is_ok()
    }

    fn keys(database: &Database) -> Vec<String> {
        database.records("test").expect("readable").into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn those_who_save_at_once_share_a_transaction() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = open(folder.path());
        let release = hold(&database);
        let before = database.transactions();
        let answers: Vec<_> = (0..100).map(|key| ask_to_set(&database, &key.to_string(), "{}")).collect();
        drop(release);
        assert!(answers.iter().all(is_durable));
        // One of them is the transaction that kept the writer busy.
        assert_eq!(database.transactions() - before, 2);
        assert_eq!(keys(&database).len(), 100);
    }

    #[test]
    fn work_that_fails_harms_nobody_who_shares_its_transaction() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = open(folder.path());
        let release = hold(&database);
        let first = ask_to_set(&database, "first", "{}");
        let bad = ask(&database, |tables| {
            tables.change(&set("bad", "{}"))?;
            Err(StoreError::TermEnded { place: "here".to_owned(), term: 1, current: 2 })
        });
        let last = ask_to_set(&database, "last", "{}");
        drop(release);
        assert!(is_durable(&first) && is_durable(&last));
        let refused = bad.recv().expect("the writer answers").expect_err("it fails by itself").to_string();
        assert!(refused.contains("here: term 1"), "{refused}");
        assert_eq!(keys(&database), ["first", "last"]);
    }

    #[test]
    fn backups_that_are_asked_for_at_once_are_made_one_after_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = open(folder.path());
        let release = hold(&database);
        let back_up = |name: &str| {
            let (reply, answer) = mpsc::sync_channel(1);
            database.send(Task::BackUp { to: folder.path().join(name), reply });
            answer
        };
        let first = back_up("first");
        let saved = ask_to_set(&database, "key", "{}");
        let second = back_up("second");
        drop(release);
        assert!(is_durable(&first) && is_durable(&saved) && is_durable(&second));
        let copy = Database::open(&folder.path().join("second")).expect("a database");
        assert_eq!(keys(&copy), ["key"]);
    }
}

//! The thread that makes all calls of SQLite.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::backup;
use crate::error::StoreError;
use crate::file::Lock;

/// What is done in one transaction at most, so that nobody waits for ever for others.
const GROUP_MAX: usize = 1024;

/// Something to be done in a transaction, which it may share with other work.
pub(crate) trait Work: Send {
    /// Does it. It may be called again, in another transaction, if this one fails.
    fn apply(&mut self, connection: &Connection) -> Result<(), Failure>;

    /// Answers whoever waits: the transaction is durable, or nothing was done.
    fn answer(self: Box<Self>, done: Result<(), StoreError>);
}

/// Why work fails.
#[derive(Debug)]
pub(crate) enum Failure {
    Sqlite(rusqlite::Error),
    Other(StoreError),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Work that answers something.
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

impl<F, T> Work for Asked<F, T>
where
    F: FnMut(&Connection) -> Result<T, Failure> + Send,
    T: Send,
{
    fn apply(&mut self, connection: &Connection) -> Result<(), Failure> {
        self.answer = Some((self.work)(connection)?);
        Ok(())
    }

    fn answer(self: Box<Self>, done: Result<(), StoreError>) {
        let Self { answer, reply, .. } = *self;
        let result = match (done, answer) {
            (Ok(()), Some(answer)) => Ok(answer),
            (Err(error), _) => Err(error),
            (Ok(()), None) => return,
        };
        // Whoever asked may have given up.
        let _ = reply.send(result);
    }
}

/// What the thread is asked.
pub(crate) enum Task {
    Work(Box<dyn Work>),
    BackUp { to: PathBuf, reply: SyncSender<Result<(), StoreError>> },
}

/// The state of the thread.
pub(crate) struct Writer {
    pub(crate) connection: Connection,
    pub(crate) queue: Queue,
    /// Dropped last, when the connection is closed.
    pub(crate) lock: Lock,
}

/// What waits for the thread.
pub(crate) struct Queue {
    /// The database.
    pub(crate) path: PathBuf,
    pub(crate) inbox: Receiver<Task>,
    /// What has come and must wait until the task in hand is done.
    pub(crate) later: VecDeque<Task>,
    /// How many transactions were made durable.
    pub(crate) transactions: Arc<AtomicU64>,
}

impl Writer {
    /// Serves until nobody can ask any more.
    pub(crate) fn run(self) {
        let Self { connection, mut queue, lock } = self;
        while let Some(task) = queue.next() {
            match task {
                Task::Work(first) => queue.serve(&connection, Some(first)),
                Task::BackUp { to, reply } => {
                    let done = backup::back_up(&connection, &mut queue, &to);
                    let _ = reply.send(done);
                }
            }
        }
        drop(connection);
        drop(lock);
    }
}

impl Queue {
    /// The next task; `None`: nobody can ask any more.
    fn next(&mut self) -> Option<Task> {
        self.later.pop_front().or_else(|| self.inbox.recv().ok())
    }

    /// Does all work that waits now.
    pub(crate) fn serve(&mut self, connection: &Connection, first: Option<Box<dyn Work>>) {
        let mut group = Vec::from_iter(first);
        while group.len() < GROUP_MAX {
            match self.inbox.try_recv() {
                Ok(Task::Work(work)) => group.push(work),
                Ok(backup) => self.later.push_back(backup),
                Err(_) => break,
            }
        }
        self.commit(connection, group);
    }

    /// Does all work in one transaction. If that fails, each is tried alone, so that nobody suffers for another's work.
    fn commit(&self, connection: &Connection, mut group: Vec<Box<dyn Work>>) {
        if group.len() > 1 && self.transact(connection, &mut group).is_ok() {
            return group.into_iter().for_each(|work| work.answer(Ok(())));
        }
        for mut work in group {
            let done = self.transact(connection, std::slice::from_mut(&mut work));
            work.answer(done);
        }
    }

    fn transact(&self, connection: &Connection, group: &mut [Box<dyn Work>]) -> Result<(), StoreError> {
        let mut transact = || -> Result<(), Failure> {
            // Dropped without a commit, it is rolled back.
            let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            for work in group.iter_mut() {
                work.apply(&transaction)?;
            }
            Ok(transaction.commit()?)
        };
        transact().map_err(|failure| match failure {
            Failure::Sqlite(error) => StoreError::sqlite(&self.path, error),
            Failure::Other(error) => error,
        })?;
        self.transactions.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::{Change, Database, tables};

    type Answer = Receiver<Result<(), StoreError>>;

    fn open(folder: &Path) -> Database {
        Database::open(&folder.join("state.db")).expect("it can be opened")
    }

    /// Asks for work, and does not wait for it.
    fn ask(
        database: &Database,
        work: impl FnMut(&Connection) -> Result<(), Failure> + Send + 'static,
    ) -> Receiver<Result<(), StoreError>> {
        let (reply, answer) = mpsc::sync_channel(1);
        database.send(Task::Work(Box::new(Asked::new(work, reply))));
        answer
    }

    fn set(key: &str, value: &str) -> [Change; 1] {
        [Change { kind: "test", key: key.to_owned(), value: Some(value.to_owned()) }]
    }

    fn ask_to_set(database: &Database, key: &str, value: &str) -> Answer {
        let changes = set(key, value);
        ask(database, move |connection| Ok(tables::change(connection, &changes)?))
    }

    /// Makes the writer busy until what this answers is dropped. What is asked meanwhile comes together.
    fn hold(database: &Database) -> mpsc::Sender<()> {
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

    fn is_durable(answer: &Answer) -> bool {
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
        // One is the transaction that held the writer.
        assert_eq!(database.transactions() - before, 2);
        assert_eq!(keys(&database).len(), 100);
    }

    #[test]
    fn work_that_fails_harms_nobody_who_shares_its_transaction() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = open(folder.path());
        let release = hold(&database);
        let first = ask_to_set(&database, "first", "{}");
        let bad = ask(&database, |connection| {
            tables::change(connection, &set("bad", "{}"))?;
            Ok(connection.execute_batch("INSERT INTO nowhere VALUES (1)")?)
        });
        let last = ask_to_set(&database, "last", "{}");
        drop(release);
        assert!(is_durable(&first) && is_durable(&last));
        let refused = bad.recv().expect("the writer answers").expect_err("there is no such table").to_string();
        assert!(refused.contains("state.db: no such table: nowhere"), "{refused}");
        assert_eq!(keys(&database), ["first", "last"]);
    }

    #[test]
    fn what_does_not_fit_is_refused_whole_and_fits_when_there_is_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = open(folder.path());
        let limit = |more: i64| {
            let set = ask(&database, move |connection| {
                let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0))?;
                connection.pragma_update(None, "max_page_count", pages + more)?;
                Ok(())
            });
            assert!(is_durable(&set));
        };
        database.save(&set("small", "1")).expect("saved");
        limit(4);
        let release = hold(&database);
        let large = ask_to_set(&database, "large", &"x".repeat(1 << 20));
        let small = ask_to_set(&database, "small", "2");
        drop(release);
        let refused = large.recv().expect("the writer answers").expect_err("there is no room");
        assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
        assert!(is_durable(&small), "what fits is saved");
        assert_eq!(database.records("test").expect("readable"), [("small".to_owned(), "2".to_owned())]);
        limit(1000);
        database.save(&set("large", &"x".repeat(1 << 20))).expect("there is room");
        drop(database);
        assert_eq!(keys(&open(folder.path())), ["large", "small"]);
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

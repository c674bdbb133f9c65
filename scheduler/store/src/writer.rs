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

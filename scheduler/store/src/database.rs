//! The handle of a database.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::{Builder, JoinHandle};

use crate::engine_store::EngineStore;
use crate::error::StoreError;
use crate::leadership::Leadership;
use crate::sqlite::Sqlite;
use crate::tables::{Backend, Change, Tables};
use crate::writer::{Asked, Queue, Task, Writer};

/// A handle of a database. Its copies are handles of the same one, and any thread may use them. When the last of them is
/// dropped, the file is closed, or the lease ends.
#[derive(Clone, Debug)]
pub struct Database {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The database, as messages name it.
    place: String,
    leadership: Leadership,
    transactions: Arc<AtomicU64>,
    /// `None` only while this is dropped.
    sender: Option<Sender<Task>>,
    writer: Option<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The writer ends when nobody can ask it any more. Whoever opens the file next finds it closed.
        drop(self.sender.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Database {
    /// Opens the SQLite file of this path, and makes it if there is none. Only its owner can read the file.
    ///
    /// A database of an older version is brought up to date. In one that is a restored backup, numbers and terms go on
    /// behind a gap, because more of them may have been given after the backup.
    ///
    /// # Errors
    /// If another process has it open, it is damaged, newer than this program or not ours, or its folder is not there.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = Sqlite::open(path)?;
        let place = file.path().display().to_string();
        Self::start(file, place, Leadership::default())
    }

    /// Starts the thread that uses a backend.
    pub(crate) fn start(
        backend: impl Backend + 'static,
        place: String,
        leadership: Leadership,
    ) -> Result<Self, StoreError> {
        let (sender, inbox) = mpsc::channel();
        let transactions = Arc::new(AtomicU64::new(0));
        let queue = Queue { inbox, later: VecDeque::new(), transactions: Arc::clone(&transactions) };
        let writer = Writer { backend: Box::new(backend), queue };
        let thread = Builder::new().name("store".to_owned()).spawn(|| writer.run());
        let thread = thread.map_err(StoreError::file(Path::new(&place), "start a thread for it"))?;
        let inner = Inner { place, leadership, transactions, sender: Some(sender), writer: Some(thread) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Whether this scheduler may go on writing, and who else there is.
    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.inner.leadership
    }

    /// What keeps an engine's state in this database.
    #[must_use]
    pub fn engine_store(&self) -> EngineStore {
        EngineStore::new(self.clone())
    }

    /// All records of a kind, each with its key and its value, by key.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn records(&self, kind: &'static str) -> Result<Vec<(String, String)>, StoreError> {
        self.transact(move |tables| tables.records(kind))
    }

    /// Sets and removes records, in this order. It is durable when this returns, all of it or nothing.
    ///
    /// # Errors
    /// If nothing of it was saved. After an error of the disk it may be there all the same when the file is opened anew.
    pub fn save(&self, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let changes = changes.to_vec();
        self.transact(move |tables| tables.change(&changes))
    }

    /// The next number of this name: 1, 2, 3 and so on. It is durable that it was given; none is given twice.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn next_number(&self, name: &'static str) -> Result<u64, StoreError> {
        self.transact(move |tables| tables.next_number(name))
    }

    /// Copies the whole database, as it is at one moment, into a new file. That is whole or not there. Others can save
    /// meanwhile. To restore it, stop the scheduler and put the file in the database's place. PostgreSQL has tools of its
    /// own for that.
    ///
    /// # Errors
    /// If there is a file already, the copy cannot be written, or the database is in PostgreSQL.
    pub fn back_up(&self, to: &Path) -> Result<(), StoreError> {
        let to = to.to_owned();
        self.ask(|reply| Task::BackUp { to, reply })
    }

    /// How many transactions were made durable since the file was opened. Saves that come together share one.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.inner.transactions.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&self) -> &str {
        &self.inner.place
    }

    /// Does this in a transaction, and waits until it is durable.
    pub(crate) fn transact<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut dyn Tables) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.ask(|reply| Task::Work(Box::new(Asked::new(work, reply))))
    }

    fn ask<T>(&self, task: impl FnOnce(SyncSender<Result<T, StoreError>>) -> Task) -> Result<T, StoreError> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.send(task(reply));
        wait(&answer)
    }

    pub(crate) fn send(&self, task: Task) {
        let sent = self.inner.sender.as_ref().map(|sender| sender.send(task));
        assert!(matches!(sent, Some(Ok(()))), "the writer lives as long as its handles");
    }
}

fn wait<T>(answer: &Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
    answer.recv().expect("the writer answers as long as it lives, and it lives as long as its handles")
}

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

/// A handle of a database. All copies lead to the same database, and any thread may use them. When the last copy is
/// dropped, the file is closed, or the lease ends.
#[derive(Clone, Debug)]
pub struct Database {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The name of the database in messages.
    place: String,
    leadership: Leadership,
    transactions: Arc<AtomicU64>,
    /// `None` only while this is being dropped.
    sender: Option<Sender<Task>>,
    writer: Option<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The writer ends when no sender is left. The next process that opens the file finds it closed.
        drop(self.sender.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Database {
    /// Opens the SQLite file at this path, and makes it if it does not exist. Only its owner can read the file.
    ///
    /// A database of an older version is brought up to date. In a restored backup, numbers and terms continue after a
    /// gap, because more of them may have been given after the backup was made.
    ///
    /// # Errors
    /// If another process has it open; if it is damaged, newer than this program or not a scheduler's; or if its folder
    /// does not exist.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = Sqlite::open(path)?;
        let place = file.path().display().to_string();
        Self::start(file, place, Leadership::default())
    }

    /// Copies the database of a stopped scheduler, as [`Database::back_up`] does. Neither the file nor the copy is brought up
    /// to date, so an older scheduler can still use both.
    ///
    /// # Errors
    /// As for [`Database::open`] and [`Database::back_up`].
    pub fn back_up_stopped(path: &Path, to: &Path) -> Result<(), StoreError> {
        let file = Sqlite::open_as_it_is(path)?;
        let place = file.path().display().to_string();
        Self::start(file, place, Leadership::default())?.back_up(to)
    }

    /// Starts the writer, the thread that uses a backend.
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

    /// Whether this scheduler leads and may write, and which schedulers share the database.
    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        &self.inner.leadership
    }

    /// The store for an engine's state in this database.
    #[must_use]
    pub fn engine_store(&self) -> EngineStore {
        EngineStore::new(self.clone())
    }

    /// All records of a kind, each with its key and its value, in the order of the keys.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn records(&self, kind: &'static str) -> Result<Vec<(String, String)>, StoreError> {
        self.transact(move |tables| tables.records(kind))
    }

    /// Sets and removes records, in this order. When this returns, either all changes are durable or none is made.
    ///
    /// # Errors
    /// If no change was saved. After an error of the disk, the changes may be found all the same when the file is
    /// opened again.
    pub fn save(&self, changes: &[Change]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        let changes = changes.to_vec();
        self.transact(move |tables| tables.change(&changes))
    }

    /// The next number of this counter: 1, 2, 3 and so on. It is durable that the number was given, so none is given
    /// twice.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn next_number(&self, name: &'static str) -> Result<u64, StoreError> {
        self.transact(move |tables| tables.next_number(name))
    }

    /// Copies the whole database, as it is at one moment, into a new file. The file is complete or does not exist.
    /// Other callers can save meanwhile. To restore the copy, stop the scheduler and put the file in the database's
    /// place. PostgreSQL has its own tools for that.
    ///
    /// # Errors
    /// If the file exists already, the copy cannot be written, or the database is in PostgreSQL.
    pub fn back_up(&self, to: &Path) -> Result<(), StoreError> {
        let to = to.to_owned();
        self.ask(|reply| Task::BackUp { to, reply })
    }

    /// The number of transactions since the file was opened. Saves that come at the same time share one.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.inner.transactions.load(Ordering::Relaxed)
    }

    pub(crate) fn place(&self) -> &str {
        &self.inner.place
    }

    /// Runs this work in a transaction, and waits until it is durable.
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

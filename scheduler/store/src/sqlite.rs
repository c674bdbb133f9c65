//! The tables in an SQLite file.

mod backup;
mod file;
mod schema;
mod tables;

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::error::StoreError;
use crate::tables::{Backend, Work};
use crate::writer::Queue;
use file::Lock;
use tables::Rows;

/// An open SQLite file.
pub(crate) struct Sqlite {
    connection: Connection,
    path: PathBuf,
    /// Dropped last, after the connection is closed.
    _lock: Lock,
}

impl Sqlite {
    /// Opens the file at this path, and makes it if it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let path = file::resolve(path)?;
        let lock = Lock::take(&path)?;
        let connection = schema::open(&path)?;
        Ok(Self { connection, path, _lock: lock })
    }

    /// Opens the existing file at this path for a copy of it. Its tables stay in the version in which they are.
    pub(crate) fn open_as_it_is(path: &Path) -> Result<Self, StoreError> {
        let path = file::resolve(path)?;
        let lock = Lock::take(&path)?;
        let connection = schema::open_as_it_is(&path)?;
        Ok(Self { connection, path, _lock: lock })
    }

    /// The path of the file, without links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Backend for Sqlite {
    fn transact(&mut self, work: &mut Work<'_>) -> Result<(), StoreError> {
        transact(&self.connection, &self.path, work)
    }

    fn back_up(&mut self, queue: &mut Queue, to: &Path) -> Result<(), StoreError> {
        backup::back_up(&self.connection, &self.path, queue, to)
    }
}

fn transact(connection: &Connection, path: &Path, work: &mut Work<'_>) -> Result<(), StoreError> {
    let error = |error| StoreError::sqlite(path, error);
    // If it is dropped without a commit, it is rolled back.
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate).map_err(error)?;
    work(&mut Rows { connection: &transaction, path })?;
    transaction.commit().map_err(error)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;
    use crate::writer::tests::{ask_to_set, hold, is_durable, set};
    use crate::{Database, Leadership};

    /// A file that cannot grow beyond this number of pages.
    struct Limited {
        sqlite: Sqlite,
        pages_max: Arc<AtomicI64>,
    }

    impl Backend for Limited {
        fn transact(&mut self, work: &mut Work<'_>) -> Result<(), StoreError> {
            let pages = self.pages_max.load(Ordering::SeqCst);
            self.sqlite.connection.pragma_update(None, "max_page_count", pages).expect("it can be limited");
            self.sqlite.transact(work)
        }

        fn back_up(&mut self, queue: &mut Queue, to: &Path) -> Result<(), StoreError> {
            self.sqlite.back_up(queue, to)
        }
    }

    #[test]
    fn a_backup_of_a_stopped_scheduler_keeps_the_older_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let [path, backup] = ["state.db", "backup.db"].map(|name| folder.path().join(name));
        let sqlite = Sqlite::open(&path).expect("it can be opened");
        sqlite.connection.pragma_update(None, "user_version", 1).expect("as an older scheduler left it");
        drop(sqlite);
        Database::back_up_stopped(&path, &backup).expect("a backup");
        for file in [path, backup] {
            let connection = schema::connect(&file).expect("a database");
            let version = connection.pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0));
            assert_eq!(version, Ok(1), "{}", file.display());
        }
        let missing = Database::back_up_stopped(&folder.path().join("none.db"), &folder.path().join("other.db"));
        missing.expect_err("there is no such file");
    }

    #[test]
    fn what_does_not_fit_is_refused_whole_until_there_is_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state.db");
        let sqlite = Sqlite::open(&path).expect("it can be opened");
        let pages: i64 =
            sqlite.connection.pragma_query_value(None, "page_count", |row| row.get(0)).expect("it has pages");
        let pages_max = Arc::new(AtomicI64::new(pages + 4));
        let limited = Limited { sqlite, pages_max: Arc::clone(&pages_max) };
        let database = Database::start(limited, path.display().to_string(), Leadership::default()).expect("a thread");
        database.save(&set("small", "1")).expect("saved");
        let release = hold(&database);
        let large = ask_to_set(&database, "large", &"x".repeat(1 << 20));
        let small = ask_to_set(&database, "small", "2");
        drop(release);
        let refused = large.recv().expect("the writer answers").expect_err("there is no room");
        assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
        assert!(is_durable(&small), "what fits is saved");
        assert_eq!(database.records("test").expect("readable"), [("small".to_owned(), "2".to_owned())]);
        pages_max.store(pages + 1000, Ordering::SeqCst);
        database.save(&set("large", &"x".repeat(1 << 20))).expect("there is room");
        drop(database);
        let keys: Vec<String> = Database::open(&path)
            .and_then(|database| database.records("test"))
            .expect("readable")
            .into_iter()
            .map(|(key, _)| key)
            .collect();
        assert_eq!(keys, ["large", "small"]);
    }
}

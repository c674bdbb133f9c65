//! What every database must do, and what is special about files.

mod backups;
mod engine;
mod files;
mod full_disk;
mod kills;
mod records;

use std::path::PathBuf;

use aliquot_scheduler_store::{Change, Database, StoreError};

/// A database that a test closes and opens again. Another backend has a kit of its own, and runs the same checks.
struct Kit {
    folder: tempfile::TempDir,
    database: Option<Database>,
}

impl Kit {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let mut kit = Self { folder, database: None };
        kit.open().expect("a new database can be made");
        kit
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("state.db")
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("it is open")
    }

    fn close(&mut self) {
        self.database = None;
    }

    fn open(&mut self) -> Result<(), StoreError> {
        self.close();
        self.database = Some(Database::open(&self.path())?);
        Ok(())
    }

    fn reopen(&mut self) {
        self.open().expect("what was closed can be opened");
    }

    fn records(&self, kind: &'static str) -> Vec<(String, String)> {
        self.database().records(kind).expect("records can be read")
    }
}

fn set(kind: &'static str, key: &str, value: &str) -> Change {
    Change { kind, key: key.to_owned(), value: Some(value.to_owned()) }
}

fn removed(kind: &'static str, key: &str) -> Change {
    Change { kind, key: key.to_owned(), value: None }
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

//! What every database must do, and what only files do.

mod backups;
mod engine;
mod files;
mod full_disk;
mod kills;
mod postgresql;
mod recorded;
mod records;

use std::path::PathBuf;
use std::time::Duration;

use aliquot_harness::{PostgreSql, wait};
use aliquot_scheduler_store::{Candidate, Change, Database, PostgresqlConfig, Standing, StoreError};

/// A database that a test closes and opens again.
struct Kit {
    place: Place,
    database: Option<Database>,
}

/// Where a database is.
enum Place {
    File(tempfile::TempDir),
    /// The URL of a database.
    Server(String),
}

/// Turns each test into one test for every backend.
macro_rules! on_each_backend {
    ($(fn $name:ident($kit:ident) $body:block)*) => {
        $(
            #[allow(unused_mut, reason = "some only read")]
            fn $name(mut $kit: $crate::Kit) $body
        )*

        mod sqlite {
            $(#[test] fn $name() { super::$name($crate::Kit::new()); })*
        }

        mod postgresql {
            $(#[test] fn $name() { super::$name($crate::Kit::of_server()); })*
        }
    };
}
use on_each_backend;

/// The configuration for a database on a server. The lease is longer than any pause of a busy machine.
fn config(url: &str) -> PostgresqlConfig {
    PostgresqlConfig { url: url.to_owned(), lease: Duration::from_secs(120), ..PostgresqlConfig::default() }
}

/// A scheduler that shares a database on a server.
fn candidate(url: &str, own: &str) -> Candidate {
    Candidate::new(&config(url), own.to_owned()).expect("the URL can be used")
}

/// Ends the lease as if its time were over.
fn let_lease_end(url: &str) {
    PostgreSql::shared().sql(url, "UPDATE aliquot.lease SET until = 'epoch'");
}

impl Kit {
    /// A kit with a new file.
    fn new() -> Self {
        Self::at(Place::File(tempfile::tempdir().expect("there is room for a folder")))
    }

    /// A new database of a server.
    fn of_server() -> Self {
        Self::at(Place::Server(PostgreSql::shared().database()))
    }

    fn at(place: Place) -> Self {
        let mut kit = Self { place, database: None };
        kit.open().expect("a new database can be made");
        kit
    }

    /// The folder of a file.
    fn folder(&self) -> &std::path::Path {
        match &self.place {
            Place::File(folder) => folder.path(),
            Place::Server(url) => panic!("{url} is no file"),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder().join("state.db")
    }

    /// The name by which another process opens the database: see [`open_named`].
    fn name(&self) -> String {
        match &self.place {
            Place::File(_) => self.path().to_str().expect("a text").to_owned(),
            Place::Server(url) => url.clone(),
        }
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("it is open")
    }

    fn close(&mut self) {
        self.database = None;
    }

    fn open(&mut self) -> Result<(), StoreError> {
        self.close();
        let database = match &self.place {
            Place::File(_) => Database::open(&self.path())?,
            // The previous leader has ended. If it was killed, its lease goes on.
            Place::Server(url) => lead(&mut candidate(url, "test:1"), || let_lease_end(url))?,
        };
        self.database = Some(database);
        Ok(())
    }

    fn reopen(&mut self) {
        self.open().expect("what was closed can be opened");
    }

    fn records(&self, kind: &'static str) -> Vec<(String, String)> {
        self.database().records(kind).expect("records can be read")
    }
}

/// Opens the database with this path or URL.
fn open_named(name: &str) -> Result<Database, StoreError> {
    match name.starts_with("postgresql:") {
        true => lead(&mut candidate(name, "test:1"), || {}),
        false => Database::open(name.as_ref()),
    }
}

/// Waits until a scheduler leads, and calls `meanwhile` each time that it does not lead yet.
fn lead(candidate: &mut Candidate, meanwhile: impl Fn()) -> Result<Database, StoreError> {
    wait::until("the scheduler leads", || match candidate.stand() {
        Ok(Standing::Leads(database)) => Some(Ok(database)),
        Ok(Standing::Follows { .. }) => {
            meanwhile();
            None
        }
        Err(error) => Some(Err(error)),
    })
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

//! The tables, their versions, and how a connection is set up.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::StoreError;
use crate::{file, tables};

/// Marks a file as ours: `alqs`.
const APPLICATION_ID: i32 = 0x616c_7173;
/// How long to wait for a program that reads the file past our lock, such as an administrator's `sqlite3`.
const BUSY: Duration = Duration::from_secs(10);
/// The write-ahead log is cut to this size when it starts anew.
const LOG_MAX_BYTES: i64 = 64 << 20;

/// What makes each version of the tables of the one before, the first one of an empty file. A version that was shipped
/// is never changed.
///
/// A `format` is that of the record's value (`format.rs`).
const VERSIONS: &[&str] = &["
    CREATE TABLE records (
        kind TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, key)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE engine_records (
        kind TEXT NOT NULL, key TEXT NOT NULL, format INTEGER NOT NULL, value TEXT NOT NULL, PRIMARY KEY (kind, key)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE numbers (name TEXT NOT NULL PRIMARY KEY, last INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE term (last INTEGER NOT NULL) STRICT;
    CREATE TABLE restored (is_copy INTEGER NOT NULL) STRICT;
    INSERT INTO term VALUES (0);
    INSERT INTO restored VALUES (0);
"];

/// Opens the database at this path, and makes it if there is none. The lock must be held.
pub(crate) fn open(path: &Path) -> Result<Connection, StoreError> {
    if !file::examine(path)? {
        create(path)?;
    }
    file::make_private(path)?;
    let mut connection = connect(path)?;
    check(&connection, path, VERSIONS)?;
    let mut set_up = || -> Result<(), rusqlite::Error> {
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "journal_size_limit", LOG_MAX_BYTES)?;
        migrate(&mut connection, VERSIONS)?;
        tables::go_on_after_restore(&mut connection)
    };
    set_up().map_err(|error| StoreError::sqlite(path, error))?;
    Ok(connection)
}

/// Connects to a file that is there, and writes nothing yet.
pub(crate) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let connect = || -> Result<Connection, rusqlite::Error> {
        // The connection is used by one thread at a time.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY)?;
        // A commit is durable when it returns.
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "trusted_schema", false)?;
        connection.pragma_update(None, "cell_size_check", true)?;
        Ok(connection)
    };
    connect().map_err(|error| StoreError::sqlite(path, error))
}

/// Makes the file under another name first, so that it is whole or not there.
fn create(path: &Path) -> Result<(), StoreError> {
    let new = file::beside(path, ".new");
    for suffix in ["", "-journal", "-wal", "-shm"] {
        file::remove(&file::beside(&new, suffix))?;
    }
    file::create_private(&new)?;
    let mut connection = connect(&new)?;
    let mut fill = || -> Result<(), rusqlite::Error> {
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
        migrate(&mut connection, VERSIONS)?;
        connection.pragma_update(None, "journal_mode", "wal")
    };
    fill().map_err(|error| StoreError::sqlite(path, error))?;
    connection.close().map_err(|(_, error)| StoreError::sqlite(path, error))?;
    file::sync(&new)?;
    std::fs::rename(&new, path).map_err(StoreError::file(path, "create it"))?;
    file::sync_folder_of(path)
}

/// Whether the file is ours, not newer than this program, and whole.
fn check(connection: &Connection, path: &Path, versions: &[&str]) -> Result<(), StoreError> {
    let error = |error| StoreError::sqlite(path, error);
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0)).map_err(error);
    if number("application_id")? != APPLICATION_ID {
        return Err(StoreError::NotOurs { path: path.to_owned(), what: "the SQLite file of another program" });
    }
    let found = u32::try_from(number("user_version")?).unwrap_or(0);
    let known = u32::try_from(versions.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    let found: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0)).map_err(error)?;
    if found == "ok" { Ok(()) } else { Err(StoreError::Damaged { path: path.to_owned(), what: found }) }
}

/// Brings the tables to the last version, all at once or not at all.
fn migrate(connection: &mut Connection, versions: &[&str]) -> Result<(), rusqlite::Error> {
    let transaction = connection.transaction()?;
    let version: usize = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
    for step in versions.iter().skip(version) {
        transaction.execute_batch(step)?;
    }
    if version < versions.len() {
        transaction.pragma_update(None, "user_version", versions.len())?;
    }
    transaction.commit()
}

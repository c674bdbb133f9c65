//! The tables, their versions, and how a connection is set up.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::{file, tables};
use crate::error::StoreError;
use crate::tables::JOBS_WITH_SECRETS;

/// Marks a file as a scheduler's database: `alqs`.
const APPLICATION_ID: i32 = 0x616c_7173;
/// How long to wait for a program that reads the file without our lock, such as an administrator's `sqlite3`.
const BUSY: Duration = Duration::from_secs(10);
/// The greatest size of the write-ahead log after it was started anew.
const LOG_MAX_BYTES: i64 = 64 << 20;

/// The statements that make each version of the tables out of the version before; the first starts from an empty file.
/// A shipped version is never changed.
///
/// The column `format` contains the format of the record's value (`format.rs`).
const VERSIONS: &[&str] = &[
    "
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
",
    JOBS_WITH_SECRETS,
];

/// Opens the database at this path, and makes it if it does not exist. The caller must hold the lock.
pub(super) fn open(path: &Path) -> Result<Connection, StoreError> {
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

/// Opens an existing database and changes nothing in it. The caller must hold the lock.
pub(super) fn open_as_it_is(path: &Path) -> Result<Connection, StoreError> {
    file::examine(path)?;
    let connection = connect(path)?;
    check(&connection, path, VERSIONS)?;
    Ok(connection)
}

/// Connects to an existing file, and writes nothing yet.
pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let connect = || -> Result<Connection, rusqlite::Error> {
        // Only one thread at a time uses the connection.
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

/// Makes the file under another name first, so that the database is complete or does not exist.
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

/// Checks that the file is a scheduler's, not newer than this program, and undamaged.
fn check(connection: &Connection, path: &Path, versions: &[&str]) -> Result<(), StoreError> {
    let error = |error| StoreError::sqlite(path, error);
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0)).map_err(error);
    if number("application_id")? != APPLICATION_ID {
        return Err(StoreError::NotOurs { path: path.to_owned(), what: "the SQLite file of another program" });
    }
    let found = u32::try_from(number("user_version")?).unwrap_or(0);
    let known = u32::try_from(versions.len()).unwrap_or(u32::MAX);
    if found > known {
        return Err(StoreError::Newer { place: path.display().to_string(), found, known });
    }
    let found: String = connection.pragma_query_value(None, "quick_check", |row| row.get(0)).map_err(error)?;
    if found == "ok" { Ok(()) } else { Err(StoreError::Damaged { path: path.to_owned(), what: found }) }
}

/// Brings the tables to the newest version, completely or not at all.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &Path) -> Connection {
        super::open(&folder.join("state.db")).expect("it can be opened")
    }

    #[test]
    fn each_commit_is_synced() {
        let folder = tempfile::tempdir().expect("a folder");
        // The first round makes it, the second opens it again.
        for _ in 0..2 {
            let connection = open(folder.path());
            let text = |name| connection.pragma_query_value(None, name, |row| row.get::<_, String>(0));
            let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
            assert_eq!(text("journal_mode"), Ok("wal".to_owned()));
            assert_eq!(number("synchronous"), Ok(2), "full");
            assert_eq!(number("foreign_keys"), Ok(1));
            assert_eq!(number("user_version"), Ok(i64::try_from(VERSIONS.len()).expect("a few")));
        }
    }

    #[test]
    fn an_older_database_is_brought_up_to_date_and_keeps_its_records() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut connection = open(folder.path());
        connection.execute("INSERT INTO records VALUES ('job', '1', 'x')", []).expect("it can be written");
        let newer: Vec<&str> = [
            VERSIONS,
            &[
                "ALTER TABLE records ADD COLUMN owner TEXT NOT NULL DEFAULT 'nobody'",
                "UPDATE records SET owner = owner || '!'",
            ],
        ]
        .concat();
        check(&connection, folder.path(), &newer).expect("an older one is no fault");
        for _ in 0..2 {
            migrate(&mut connection, &newer).expect("it can be brought up to date");
            let read = "SELECT kind || key || value || owner FROM records";
            let found: String = connection.query_row(read, [], |row| row.get(0)).expect("it is there");
            assert_eq!(found, "job1xnobody!");
        }
        let refused = check(&connection, folder.path(), VERSIONS).expect_err("it is newer now");
        assert!(matches!(refused, StoreError::Newer { found: 4, known: 2, .. }), "{refused}");
    }

    #[test]
    fn an_update_that_fails_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut connection = open(folder.path());
        let newer = [VERSIONS, &["CREATE TABLE more (x)", "INSERT INTO nowhere VALUES (1)"]].concat();
        migrate(&mut connection, &newer).expect_err("there is no such table");
        connection.execute("SELECT * FROM more", []).expect_err("it was rolled back");
        assert_eq!(connection.pragma_query_value(None, "user_version", |row| row.get(0)), Ok(VERSIONS.len()));
    }
}

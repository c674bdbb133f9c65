//! Reads and writes records in the tables.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::StoreError;
use crate::tables::{Change, EngineRow, RESTORE_GAP, ReadRow, Tables};

type Result<T> = std::result::Result<T, rusqlite::Error>;

/// The tables within a transaction of a file.
pub(super) struct Rows<'a> {
    pub(super) connection: &'a Connection,
    pub(super) path: &'a Path,
}

impl Rows<'_> {
    fn told<T>(&self, done: Result<T>) -> std::result::Result<T, StoreError> {
        done.map_err(|error| StoreError::sqlite(self.path, error))
    }
}

impl Tables for Rows<'_> {
    fn records(&mut self, kind: &str) -> std::result::Result<Vec<(String, String)>, StoreError> {
        self.told(records(self.connection, kind))
    }

    fn change(&mut self, changes: &[Change]) -> std::result::Result<(), StoreError> {
        self.told(change(self.connection, changes))
    }

    fn next_number(&mut self, name: &str) -> std::result::Result<u64, StoreError> {
        self.told(next_number(self.connection, name))
    }

    fn term(&mut self) -> std::result::Result<u64, StoreError> {
        self.told(term(self.connection))
    }

    fn begin_term(&mut self) -> std::result::Result<u64, StoreError> {
        self.told(begin_term(self.connection))
    }

    fn engine_records(&mut self) -> std::result::Result<Vec<ReadRow>, StoreError> {
        self.told(engine_records(self.connection))
    }

    fn change_engine(&mut self, rows: &[EngineRow]) -> std::result::Result<(), StoreError> {
        self.told(change_engine(self.connection, rows))
    }
}

fn records(connection: &Connection, kind: &str) -> Result<Vec<(String, String)>> {
    let mut query = connection.prepare_cached("SELECT key, value FROM records WHERE kind = ? ORDER BY key")?;
    query.query_map([kind], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

fn change(connection: &Connection, changes: &[Change]) -> Result<()> {
    let mut set = connection.prepare_cached("INSERT OR REPLACE INTO records VALUES (?, ?, ?)")?;
    let mut remove = connection.prepare_cached("DELETE FROM records WHERE kind = ? AND key = ?")?;
    for Change { kind, key, value } in changes {
        match value {
            Some(value) => set.execute(params![kind, key, value])?,
            None => remove.execute(params![kind, key])?,
        };
    }
    Ok(())
}

fn next_number(connection: &Connection, name: &str) -> Result<u64> {
    let mut count = connection.prepare_cached(
        "INSERT INTO numbers VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET last = last + 1 RETURNING last",
    )?;
    count.query_row([name], |row| row.get(0))
}

fn term(connection: &Connection) -> Result<u64> {
    connection.prepare_cached("SELECT last FROM term")?.query_row([], |row| row.get(0))
}

fn begin_term(connection: &Connection) -> Result<u64> {
    connection.query_row("UPDATE term SET last = last + 1 RETURNING last", [], |row| row.get(0))
}

fn engine_records(connection: &Connection) -> Result<Vec<ReadRow>> {
    let mut query = connection.prepare_cached("SELECT kind, key, format, value FROM engine_records")?;
    let read =
        |row: &Row<'_>| Ok(ReadRow { kind: row.get(0)?, key: row.get(1)?, format: row.get(2)?, value: row.get(3)? });
    query.query_map([], read)?.collect()
}

fn change_engine(connection: &Connection, rows: &[EngineRow]) -> Result<()> {
    let mut set = connection.prepare_cached("INSERT OR REPLACE INTO engine_records VALUES (?, ?, ?, ?)")?;
    let mut remove = connection.prepare_cached("DELETE FROM engine_records WHERE kind = ? AND key = ?")?;
    for EngineRow { kind, key, value } in rows {
        match value {
            Some((format, value)) => set.execute(params![kind, key, format, value])?,
            None => remove.execute(params![kind, key])?,
        };
    }
    Ok(())
}

/// Marks a backup, so that a scheduler that opens it later knows that it is one.
pub(super) fn mark_as_copy(connection: &Connection) -> Result<()> {
    connection.execute("UPDATE restored SET is_copy = 1", []).map(|_| ())
}

/// Leaves a gap in all numbers and terms if this is a backup that replaces a database. That one may have given more of
/// them after the backup was made, and nodes refuse a term that is lower than one that they have seen.
pub(super) fn go_on_after_restore(connection: &mut Connection) -> Result<()> {
    let transaction = connection.transaction()?;
    let is_copy: Option<bool> =
        transaction.query_row("SELECT is_copy FROM restored", [], |row| row.get(0)).optional()?;
    if is_copy == Some(true) {
        transaction.execute("UPDATE term SET last = last + ?", [RESTORE_GAP])?;
        transaction.execute("UPDATE numbers SET last = last + ?", [RESTORE_GAP])?;
        transaction.execute("UPDATE restored SET is_copy = 0", [])?;
    }
    transaction.commit()
}

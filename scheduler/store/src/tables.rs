//! What is read and written in the tables.

use rusqlite::{Connection, OptionalExtension, Row, params};

/// A record that is to be set or removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// What the record is about.
    pub kind: &'static str,
    /// Names the record among those of its kind.
    pub key: String,
    /// The record's new value, as JSON; `None`: there is no such record any more.
    pub value: Option<String>,
}

/// By how much numbers and terms go on after a backup was restored. More than are given between a backup and the loss of
/// the database, so that none is given twice.
pub(crate) const RESTORE_GAP: i64 = 1_000_000;

/// The table of the engine's records.
pub(crate) const ENGINE_RECORDS: &str = "engine_records";

pub(crate) type Result<T> = std::result::Result<T, rusqlite::Error>;

/// The records of a kind, by key.
pub(crate) fn records(connection: &Connection, kind: &str) -> Result<Vec<(String, String)>> {
    let mut query = connection.prepare_cached("SELECT key, value FROM records WHERE kind = ? ORDER BY key")?;
    query.query_map([kind], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

/// Sets and removes records, in this order.
pub(crate) fn change(connection: &Connection, changes: &[Change]) -> Result<()> {
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

/// The next number of this name.
pub(crate) fn next_number(connection: &Connection, name: &str) -> Result<u64> {
    let mut count = connection.prepare_cached(
        "INSERT INTO numbers VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET last = last + 1 RETURNING last",
    )?;
    count.query_row([name], |row| row.get(0))
}

/// A record of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EngineRow {
    pub(crate) kind: &'static str,
    pub(crate) key: String,
    /// The value and its format; `None`: there is no such record any more.
    pub(crate) value: Option<(u32, String)>,
}

/// A record of the engine as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReadRow {
    pub(crate) kind: String,
    pub(crate) key: String,
    pub(crate) format: i64,
    pub(crate) value: String,
}

/// The term that has begun last.
pub(crate) fn term(connection: &Connection) -> Result<u64> {
    connection.prepare_cached("SELECT last FROM term")?.query_row([], |row| row.get(0))
}

/// Begins a term, and answers it.
pub(crate) fn begin_term(connection: &Connection) -> Result<u64> {
    connection.query_row("UPDATE term SET last = last + 1 RETURNING last", [], |row| row.get(0))
}

/// All records of the engine.
pub(crate) fn engine_records(connection: &Connection) -> Result<Vec<ReadRow>> {
    let mut query = connection.prepare_cached("SELECT kind, key, format, value FROM engine_records")?;
    let read =
        |row: &Row<'_>| Ok(ReadRow { kind: row.get(0)?, key: row.get(1)?, format: row.get(2)?, value: row.get(3)? });
    query.query_map([], read)?.collect()
}

/// Sets and removes records of the engine.
pub(crate) fn change_engine(connection: &Connection, rows: &[EngineRow]) -> Result<()> {
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

/// Marks a backup, so that whoever opens it later knows that it is one.
pub(crate) fn mark_as_copy(connection: &Connection) -> Result<()> {
    connection.execute("UPDATE restored SET is_copy = 1", []).map(|_| ())
}

/// Leaves a gap in all numbers and terms if this is a backup that takes the place of a database. That one may have given
/// more of them after the backup was made, and nodes obey no term that is lower than one that they have seen.
pub(crate) fn go_on_after_restore(connection: &mut Connection) -> Result<()> {
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

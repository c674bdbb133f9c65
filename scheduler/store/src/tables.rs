//! What is read and written, whatever keeps it.

use std::path::Path;

use crate::error::StoreError;
use crate::writer::Queue;

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

/// What makes a version of the tables of which nothing but the number is new: records of jobs can name secrets from then on.
/// A scheduler that knows none would start such jobs without them, and refuses this version instead.
pub(crate) const JOBS_WITH_SECRETS: &str = "-- Records of jobs may name secrets.";

/// The table of the engine's records.
pub(crate) const ENGINE_RECORDS: &str = "engine_records";

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

/// What can be read and written in a transaction.
pub(crate) trait Tables {
    /// The records of a kind, by key.
    fn records(&mut self, kind: &str) -> Result<Vec<(String, String)>, StoreError>;

    /// Sets and removes records, in this order.
    fn change(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// The next number of this name.
    fn next_number(&mut self, name: &str) -> Result<u64, StoreError>;

    /// The term that has begun last.
    fn term(&mut self) -> Result<u64, StoreError>;

    /// Begins a term, and answers it.
    fn begin_term(&mut self) -> Result<u64, StoreError>;

    /// All records of the engine.
    fn engine_records(&mut self) -> Result<Vec<ReadRow>, StoreError>;

    /// Sets and removes records of the engine. Each record is named once.
    fn change_engine(&mut self, rows: &[EngineRow]) -> Result<(), StoreError>;
}

/// What is done in one transaction. It may be called again, in another one, if the first is not durable.
pub(crate) type Work<'a> = dyn FnMut(&mut dyn Tables) -> Result<(), StoreError> + 'a;

/// What keeps the tables. One thread uses it.
pub(crate) trait Backend: Send {
    /// Does all of this durably, or nothing of it.
    fn transact(&mut self, work: &mut Work<'_>) -> Result<(), StoreError>;

    /// Copies everything into a new file, and serves the queue meanwhile.
    fn back_up(&mut self, queue: &mut Queue, to: &Path) -> Result<(), StoreError>;
}

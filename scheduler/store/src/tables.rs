//! The operations on records, for every backend.

use std::path::Path;

use crate::error::StoreError;
use crate::writer::Queue;

/// A record to be set or removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The kind of the record, such as `job`.
    pub kind: &'static str,
    /// The key of the record, which is unique among those of its kind.
    pub key: String,
    /// The record's new value, as JSON; `None`: the record is removed.
    pub value: Option<String>,
}

/// The gap in numbers and terms after a backup was restored. It is greater than the number of those given between a
/// backup and the loss of the database, so that none is given twice.
pub(crate) const RESTORE_GAP: i64 = 1_000_000;

/// A version of the tables in which only the version number is new: from it on, records of jobs can name secrets. An
/// older scheduler would start such jobs without their secrets; because of the number it refuses the database instead.
pub(crate) const JOBS_WITH_SECRETS: &str = "-- Records of jobs may name secrets.";

/// The table of the engine's records.
pub(crate) const ENGINE_RECORDS: &str = "engine_records";

/// A record of the engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EngineRow {
    pub(crate) kind: &'static str,
    pub(crate) key: String,
    /// The value and its format; `None`: the record is removed.
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

/// The operations that are possible in a transaction.
pub(crate) trait Tables {
    /// All records of a kind, in the order of their keys.
    fn records(&mut self, kind: &str) -> Result<Vec<(String, String)>, StoreError>;

    /// Sets and removes records, in this order.
    fn change(&mut self, changes: &[Change]) -> Result<(), StoreError>;

    /// The next number of this counter.
    fn next_number(&mut self, name: &str) -> Result<u64, StoreError>;

    /// The term that has begun last.
    fn term(&mut self) -> Result<u64, StoreError>;

    /// Begins a term, and answers its number.
    fn begin_term(&mut self) -> Result<u64, StoreError>;

    /// All records of the engine.
    fn engine_records(&mut self) -> Result<Vec<ReadRow>, StoreError>;

    /// Sets and removes records of the engine. Each record occurs only once.
    fn change_engine(&mut self, rows: &[EngineRow]) -> Result<(), StoreError>;
}

/// The work of one transaction. It may be called again, in another transaction, if the first one is not durable.
pub(crate) type Work<'a> = dyn FnMut(&mut dyn Tables) -> Result<(), StoreError> + 'a;

/// A database that contains the tables. One thread uses it.
pub(crate) trait Backend: Send {
    /// Does the work durably and completely, or not at all.
    fn transact(&mut self, work: &mut Work<'_>) -> Result<(), StoreError>;

    /// Copies everything into a new file, and does the work in the queue in between.
    fn back_up(&mut self, queue: &mut Queue, to: &Path) -> Result<(), StoreError>;
}

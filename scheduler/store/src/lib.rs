//! Stores what must outlive a scheduler, in SQLite or PostgreSQL.
//!
//! A [`Database`] is one file, or a PostgreSQL database that several schedulers share ([`Candidate`]). It stores two
//! things apart: the state of the engine ([`Database::engine_store`]), and the records of the program around the engine
//! ([`Database::save`]). Each record has a kind, a key and a JSON value.
//!
//! # Promises
//!
//! * A save survives any crash of the process or of the machine, completely or not at all.
//! * Only one process at a time can write, and only one term of the engine can save.
//! * A file that is damaged, newer than this program, or not a scheduler's is refused. Nothing is repaired by guessing,
//!   and no content of a file causes a panic.
//!
//! # How it works
//!
//! One thread, the *writer*, uses the backend. Callers hand it work and wait. All work that waits at the same time is
//! done in one transaction, so many callers share one write to the disk. SQLite keeps a write-ahead log and syncs it at
//! each commit. In PostgreSQL, each transaction checks that the scheduler still leads.
//!
//! The format of the engine's records is defined in `scheduler/records`.

#![forbid(unsafe_code)]

mod database;
mod engine_store;
mod error;
mod leadership;
mod postgresql;
mod sqlite;
mod tables;
mod writer;

pub use database::Database;
pub use engine_store::EngineStore;
pub use error::StoreError;
pub use leadership::Leadership;
pub use postgresql::{Candidate, PostgresqlConfig, Standing};
pub use tables::Change;

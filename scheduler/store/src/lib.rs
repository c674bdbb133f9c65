//! Keeps what must outlive a scheduler, in SQLite or PostgreSQL.
//!
//! A [`Database`] is one file, or a PostgreSQL database that several schedulers share ([`Candidate`]). It keeps two things
//! apart: what the engine saves ([`Database::engine_store`]), and
//! records of whoever runs the engine ([`Database::save`]). Each record has a kind, a key and a JSON value.
//!
//! # Promises
//!
//! * What was saved is there after any crash of the process or of the machine, all of a save or nothing of it.
//! * One process at a time can write, and one term of the engine at a time can save.
//! * A file that is damaged, newer than this program, or not ours is refused. Nothing is repaired by guessing, and
//!   nothing bad in a file panics.
//!
//! # How it works
//!
//! One thread uses the backend, the *writer*. Callers hand it work and wait. What waits together is done in one
//! transaction, so many callers share one write to the disk. SQLite keeps a write-ahead log and syncs it at each commit.
//! In PostgreSQL, each transaction checks that the scheduler still leads.
//!
//! What the engine's records look like in the file is said in `format`, and nowhere else.

#![forbid(unsafe_code)]

mod database;
mod engine_store;
mod error;
mod format;
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

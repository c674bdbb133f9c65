//! The errors of a database.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rusqlite::ffi;

/// Why an operation of a database has failed: the file, the fault, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system refuses a file.
    #[error("{}: cannot {what}: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process has the database open.
    #[error("{}: it is in use by {}; stop that scheduler first", path.display(), owner(*pid))]
    InUse {
        /// The path of the database's file.
        path: PathBuf,
        /// The process that has it open, if the lock file names it.
        pid: Option<u32>,
    },
    /// Another program holds SQLite's own lock on the file for long.
    #[error("{}: another program keeps it locked; end the other programs that read or write this file", path.display())]
    Busy {
        /// The path of the database's file.
        path: PathBuf,
    },
    /// The file is not a scheduler's database.
    #[error("{}: this is not a database of a scheduler ({what}); check the path", path.display())]
    NotOurs {
        /// The path of the refused file.
        path: PathBuf,
        /// The actual kind of the file.
        what: &'static str,
    },
    /// A newer program has written the database.
    #[error(
        "{place}: it has format {found}, and this program knows {known} at most; use the newer program, or a backup \
             from before the update"
    )]
    Newer {
        /// The database, as messages name it.
        place: String,
        /// The format of the file.
        found: u32,
        /// The newest format that this program knows.
        known: u32,
    },
    /// A write-ahead log lies beside the file and does not belong to it.
    #[error("{}: {} is left of another database; if that one is not needed any more, remove {1}, and start again",
            path.display(), log.display())]
    ForeignLog {
        /// The path of the database's file.
        path: PathBuf,
        /// The path of the write-ahead log.
        log: PathBuf,
    },
    /// The file is incomplete or was changed.
    #[error("{}: it is damaged ({what}); put a backup in its place", path.display())]
    Damaged {
        /// The path of the database's file.
        path: PathBuf,
        /// The fault that was found.
        what: String,
    },
    /// A record cannot be read.
    #[error(
        "{place}: table {table}, kind {kind:?}, key {key:?}: {what}; put a backup in its place, or correct the record"
    )]
    Record {
        /// The database, as messages name it.
        place: String,
        /// The table with the record.
        table: &'static str,
        /// The kind of the record.
        kind: String,
        /// The record's key in its kind.
        key: String,
        /// The fault in the record.
        what: String,
    },
    /// There is no room for the change. No part of it is saved, and nothing saved before is lost.
    #[error("{}: the disk is full; make room and try again", path.display())]
    Full {
        /// The file that cannot grow.
        path: PathBuf,
    },
    /// A newer term of the engine has begun.
    #[error("{place}: term {term} cannot save any more; it is term {current} now")]
    TermEnded {
        /// The database, as messages name it.
        place: String,
        /// The term in which the engine tried to save.
        term: u64,
        /// The term that has begun last.
        current: u64,
    },
    /// A backup would replace a file.
    #[error("{}: it exists already; choose another name, or remove it first", path.display())]
    Exists {
        /// The path of the existing file.
        path: PathBuf,
    },
    /// SQLite fails for another reason.
    #[error("{}: {source}", path.display())]
    Sqlite {
        /// The path of the database's file.
        path: PathBuf,
        /// The error that SQLite has reported.
        source: rusqlite::Error,
    },
    /// The settings of a PostgreSQL database are wrong.
    #[error("{place}: {what}")]
    Unusable {
        /// The database, as messages name it.
        place: String,
        /// The fault, and the remedy.
        what: String,
    },
    /// The PostgreSQL server cannot be reached now, or cannot serve.
    #[error("{place}: it cannot be reached: {what}; it is tried again")]
    Unreachable {
        /// The database, as messages name it.
        place: String,
        /// Why it cannot be reached.
        what: String,
    },
    /// Another scheduler leads now, or may: this one has not renewed its lease in time.
    #[error("{place}: this scheduler is no longer the leader; another one continues from the saved state")]
    LeaseLost {
        /// The database, as messages name it.
        place: String,
    },
    /// PostgreSQL fails for another reason.
    #[error("{place}: {what}")]
    Postgresql {
        /// The database, as messages name it.
        place: String,
        /// The error that PostgreSQL has reported.
        what: String,
    },
}

fn owner(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl StoreError {
    /// The error for an error of SQLite about this file.
    pub(crate) fn sqlite(path: &Path, source: rusqlite::Error) -> Self {
        use rusqlite::Error;
        let path = path.to_owned();
        let code = source.sqlite_error();
        // The index of the write-ahead log is a file too. If it cannot grow, SQLite gives a code of its own.
        let is_full = code.is_some_and(|code| code.extended_code == ffi::SQLITE_IOERR_SHMSIZE);
        match code.map(|code| code.code) {
            _ if is_full => Self::Full { path },
            Some(ErrorCode::DiskFull) => Self::Full { path },
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path, what: source.to_string() },
            Some(ErrorCode::NotADatabase) => Self::NotOurs { path, what: "not an SQLite file" },
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy { path },
            None if matches!(
                source,
                Error::InvalidColumnType(..)
                    | Error::IntegralValueOutOfRange(..)
                    | Error::FromSqlConversionFailure(..)
                    | Error::QueryReturnedNoRows
            ) =>
            {
                Self::Damaged { path, what: source.to_string() }
            }
            _ => Self::Sqlite { path, source },
        }
    }

    /// Makes an error of the operating system about this file; `what` is the operation that failed.
    pub(crate) fn file(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::File { path, what, source },
        }
    }
}

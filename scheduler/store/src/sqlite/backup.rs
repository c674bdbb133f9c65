//! Copies of a database that is in use.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::{file, schema, tables, transact};
use crate::error::StoreError;
use crate::writer::Queue;

/// The number of pages that are copied before waiting saves are done: 4 MiB.
const STEP_PAGES: i32 = 1024;

/// Copies the database into a new file, and does waiting saves in between.
pub(super) fn back_up(connection: &Connection, path: &Path, queue: &mut Queue, to: &Path) -> Result<(), StoreError> {
    let exists = || StoreError::Exists { path: to.to_owned() };
    if fs::symlink_metadata(to).is_ok() {
        return Err(exists());
    }
    let part = file::beside(to, &format!(".{}.part", std::process::id()));
    let done = copy(connection, path, queue, &part).and_then(|()| {
        // Making a link never replaces a file.
        fs::hard_link(&part, to).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => exists(),
            _ => StoreError::file(to, "create it")(error),
        })
    });
    let cleared = ["", "-journal"].into_iter().try_for_each(|suffix| file::remove(&file::beside(&part, suffix)));
    done.and(cleared)?;
    file::sync_folder_of(to)
}

fn copy(connection: &Connection, path: &Path, queue: &mut Queue, part: &Path) -> Result<(), StoreError> {
    file::remove(part)?;
    file::create_private(part)?;
    copy_pages(connection, path, queue, part)?;
    let copy = schema::connect(part)?;
    let mark = || -> Result<(), rusqlite::Error> {
        // The copy must be one file, without a log beside it.
        copy.pragma_update(None, "journal_mode", "delete")?;
        tables::mark_as_copy(&copy)
    };
    mark().map_err(|error| StoreError::sqlite(part, error))?;
    copy.close().map_err(|(_, error)| StoreError::sqlite(part, error))?;
    file::sync(part)
}

/// SQLite also writes into the copy what this connection changes in pages that were copied already. So the copy is the
/// database as it is when the copying ends.
fn copy_pages(connection: &Connection, path: &Path, queue: &mut Queue, part: &Path) -> Result<(), StoreError> {
    let mut copy = schema::connect(part)?;
    let error = |error| StoreError::sqlite(part, error);
    copy.pragma_update(None, "synchronous", "off").map_err(error)?;
    let backup = Backup::new(connection, &mut copy).map_err(error)?;
    loop {
        match backup.step(STEP_PAGES).map_err(error)? {
            StepResult::Done => return Ok(()),
            StepResult::More => queue.serve(&mut |work| transact(connection, path, work), None),
            _ => return Err(StoreError::Busy { path: path.to_owned() }),
        }
    }
}

//! The database as a file: its lock, its creation, and the checks before SQLite reads it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::StoreError;

/// Only the owner may read and write the files, because tokens and keys may be in them.
const MODE: u32 = 0o600;
/// The first bytes of every SQLite file.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Where the file contains its page size, in two bytes; 1 means 65536.
const PAGE_SIZE_BYTE: usize = 16;
/// The byte that tells whether the file has a write-ahead log, and its value if it has.
const JOURNAL_BYTE: usize = 18;
const WITH_LOG: u8 = 2;

/// The path of a file beside another one, with this suffix added.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The path of a file without links; the file need not exist. Two schedulers must find the same lock.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, StoreError> {
    match fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(StoreError::file(path, "find it")(error));
            };
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            let folder = fs::canonicalize(folder).map_err(StoreError::file(folder, "find the folder"))?;
            Ok(folder.join(name))
        }
        Err(error) => Err(StoreError::file(path, "find it")(error)),
    }
}

/// Keeps other processes away from a database, until it is dropped or the process ends.
///
/// The lock file stays when the database is closed: removing it could remove the lock of another process.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    /// Unlocks explicitly, because closing may not be enough: a child between fork and exec still has the file open.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Lock {
    /// # Errors
    /// If another process has the database open; the error names it.
    pub(super) fn take(database: &Path) -> Result<Self, StoreError> {
        let path = beside(database, ".lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(MODE);
        let mut file = options.open(&path).map_err(StoreError::file(&path, "open the lock file"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let _ = file.read_to_string(&mut text);
                return Err(StoreError::InUse { path: database.to_owned(), pid: text.trim().parse().ok() });
            }
            Err(error) => return Err(StoreError::file(&path, "lock it")(error.into())),
        }
        let pid = format!("{}\n", std::process::id());
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(pid.as_bytes()));
        written.map_err(StoreError::file(&path, "write the lock file"))?;
        Ok(Self { file })
    }
}

/// Makes an empty file that only its owner can read and write.
pub(super) fn create_private(path: &Path) -> Result<(), StoreError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
    made.map(drop).map_err(StoreError::file(path, "create it"))
}

/// Makes a file readable for its owner alone. A restored backup may have other permissions.
pub(super) fn make_private(path: &Path) -> Result<(), StoreError> {
    let error = StoreError::file(path, "make it private");
    fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(error)
}

/// Removes a file if it is there.
pub(super) fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::file(path, "remove it")(error)),
        _ => Ok(()),
    }
}

/// Makes the content of a file durable.
pub(super) fn sync(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(StoreError::file(path, "sync it"))
}

/// Makes the list of files durable in the folder of this file.
pub(super) fn sync_folder_of(path: &Path) -> Result<(), StoreError> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => sync(folder),
        _ => sync(Path::new(".")),
    }
}

/// Whether a database exists at this path.
///
/// # Errors
/// If the file cannot be a database, or if a write-ahead log lies there that would damage it: SQLite applies a log to
/// any file with the matching name.
pub(super) fn examine(path: &Path) -> Result<bool, StoreError> {
    let log = beside(path, "-wal");
    let has_log = fs::metadata(&log).is_ok_and(|metadata| metadata.len() > 0);
    let foreign_log = || StoreError::ForeignLog { path: path.to_owned(), log: log.clone() };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound && has_log => return Err(foreign_log()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(StoreError::file(path, "open it")(error)),
    };
    let mut head = Vec::new();
    let length = file.metadata().map(|metadata| metadata.len());
    let read = length.and_then(|length| file.take(100).read_to_end(&mut head).map(|_| length));
    let length = read.map_err(StoreError::file(path, "read it"))?;
    if head.is_empty() {
        // Databases are made under another name first, so an empty file was never a complete database.
        return Err(StoreError::Damaged { path: path.to_owned(), what: "it is empty".to_owned() });
    }
    if !head.starts_with(MAGIC) {
        return Err(StoreError::NotOurs { path: path.to_owned(), what: "not an SQLite file" });
    }
    // A backup has no log of its own.
    if has_log && head.get(JOURNAL_BYTE).is_some_and(|byte| *byte != WITH_LOG) {
        return Err(foreign_log());
    }
    // A crash can leave a partial page, but then there is a log with the complete one.
    if !has_log && !has_whole_pages(&head, length) {
        return Err(StoreError::Damaged { path: path.to_owned(), what: "its last page is cut off".to_owned() });
    }
    Ok(true)
}

fn has_whole_pages(head: &[u8], length: u64) -> bool {
    match head.get(PAGE_SIZE_BYTE..PAGE_SIZE_BYTE + 2) {
        Some(&[0, 1]) => length.is_multiple_of(1 << 16),
        Some(&[high, low]) => length.is_multiple_of(u64::from(u16::from_be_bytes([high, low]))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_although_a_child_still_has_its_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("state.db");
        let lock = Lock::take(&database).expect("it is free");
        let _of_child = lock.file.try_clone().expect("a file can be open twice");
        drop(lock);
        Lock::take(&database).expect("it is free again");
    }
}

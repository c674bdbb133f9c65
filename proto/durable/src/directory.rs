//! A directory of small files that many threads change at once.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::group_commit::GroupCommit;
use crate::{exchange, sync_parent};

/// A directory in which each file is written by one thread at a time, and many files at once. Each file is synced by
/// itself; changes that come together share the sync of the directory.
///
/// An unfinished file has the extension `new`, in place of the file's own.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    changes: GroupCommit<(), io::Result<()>>,
}

impl Directory {
    /// The directory `path`, which must exist.
    #[must_use]
    pub fn new(path: PathBuf) -> Directory {
        Directory { path, changes: GroupCommit::default() }
    }

    /// The path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the file `path` of this directory. When this returns, the new contents outlive a loss of power. If it fails, the old or the
    /// new contents are there.
    ///
    /// # Errors
    /// The file cannot be written, renamed or synced.
    pub fn replace(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        exchange(&path.with_extension("new"), path, contents, File::sync_all)?;
        self.sync()
    }

    /// Makes the file `path` of this directory, which is not there. When this returns, the file outlives the end of this process. A loss of
    /// power can leave it empty, or absent.
    ///
    /// # Errors
    /// The file cannot be written or renamed.
    pub fn make_unsynced(&self, path: &Path, contents: &[u8]) -> io::Result<()> {
        exchange(&path.with_extension("new"), path, contents, |_| Ok(()))
    }

    /// Removes the file `path` of this directory. When this returns, it stays away also after a loss of power. A file that is not there is no
    /// error.
    ///
    /// # Errors
    /// The file cannot be removed, or the directory cannot be synced.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Syncs the names of the files, together with other threads.
    fn sync(&self) -> io::Result<()> {
        self.changes.commit((), |changes| {
            let outcome = sync_parent(&self.path.join("any"));
            // A failed sync is not repeated for each change: after a failure the kernel may report lost changes as
            // written.
            changes.iter().map(|()| outcome.as_ref().copied().map_err(again)).collect()
        })
    }
}

/// A copy of the error.
fn again(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn many_threads_replace_and_remove_files_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let files = Directory::new(dir.path().into());
        thread::scope(|scope| {
            for number in 0..20 {
                let files = &files;
                scope.spawn(move || {
                    let path = files.path().join(format!("{number:02}.json"));
                    files.make_unsynced(&path, b"begun").unwrap();
                    files.replace(&path, b"done").unwrap();
                    assert_eq!(fs::read(&path).unwrap(), b"done");
                    if number % 2 == 0 {
                        files.remove(&path).unwrap();
                        files.remove(&path).unwrap();
                    }
                });
            }
        });
        let mut left: Vec<String> =
            fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        left.sort_unstable();
        assert_eq!(left, (1..20).step_by(2).map(|number| format!("{number:02}.json")).collect::<Vec<_>>());
    }

    #[test]
    fn each_change_hears_of_a_sync_that_failed() {
        let dir = tempfile::tempdir().unwrap();
        let files = Directory::new(dir.path().join("gone"));
        assert_eq!(files.sync().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(files.replace(&files.path().join("a"), b"").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

//! A tenant's counters: `struct counts` of `tests/programs/tenant.c`, in a file that the tenant maps.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The length that the tenant maps, which is more than the counters take.
const FILE_BYTES: u64 = 4096;

/// The file of a tenant's counters. Dropping this removes it.
pub(crate) struct Counts {
    path: PathBuf,
    file: File,
}

/// The counters, as read at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Counted {
    pub(crate) calls: u64,
    pub(crate) granted: u64,
    pub(crate) refused: u64,
    pub(crate) launches: u64,
    pub(crate) unexpected: u64,
    pub(crate) last_unexpected: u64,
}

impl Counts {
    pub(crate) fn create(path: &Path) -> io::Result<Counts> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
        file.set_len(FILE_BYTES)?;
        Ok(Counts { path: path.to_owned(), file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn read(&self) -> Counted {
        let mut bytes = [0; 48];
        // No process shortens this file. If it cannot be read, the tenant seems to make no progress, which is reported.
        let _ = self.file.read_exact_at(&mut bytes, 0);
        let (words, _) = bytes.as_chunks::<8>();
        let word = |number: usize| u64::from_ne_bytes(words[number]);
        Counted {
            calls: word(0),
            granted: word(1),
            refused: word(2),
            launches: word(3),
            unexpected: word(4),
            last_unexpected: word(5),
        }
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        // An error does not matter: the whole directory is removed later.
        let _ = fs::remove_file(&self.path);
    }
}

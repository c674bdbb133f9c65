//! What a tenant tells of itself: `struct counts` of `tests/programs/tenant.c`, in a file that it maps.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// More than the counts take: what the tenant maps.
const FILE_BYTES: u64 = 4096;

/// The file, which is gone when this is dropped.
pub(crate) struct Counts {
    path: PathBuf,
    file: File,
}

/// What stood there at a look.
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
        // A file of ours that nobody shortens: what cannot be read looks like no progress, which is told.
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
        // It lies in a directory that goes as a whole.
        let _ = fs::remove_file(&self.path);
    }
}

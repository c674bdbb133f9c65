//! The manager's persistent state: the slices, in one file that is replaced atomically.
//!
//! The file is written under another name, synced, and renamed; then its directory is synced. A reader finds the state
//! before or after a change, never half of one. On a full disk the file is overwritten in place instead, provided that
//! its copy holds the former state meanwhile.
//!
//! Each slice is stored with its phase. `making` is written before any file of a slice is made, and `removing` before
//! any is removed. So after a kill at any moment all possible leftovers are known, and the next start removes them.
//! `ready` slices are those that the manager has promised.
//!
//! A second file holds a copy. It is written after the first one, and read if the first one is damaged or gone. If both
//! are damaged or gone, the regions tell which slices exist: see `manager::recovery`.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::slices::Slice;

mod journal;
pub(crate) use journal::Journal;

const FILE: &str = "checkpoint.json";
const COPY: &str = "checkpoint.copy.json";
/// A file that cannot be read is kept under this name, for people to look at.
const DAMAGED: &str = "checkpoint.damaged.json";
const VERSION: u32 = 1;

/// How far the making or the removal of a slice has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// The making has begun; the slice is not promised to a caller yet.
    Making,
    /// The slice is made and promised to its caller.
    Ready,
    /// Its removal has begun.
    Removing,
}

/// A slice in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// How far the making or the removal has got.
    pub phase: Phase,
    /// The slice that is made, promised or removed.
    #[serde(flatten)]
    pub slice: Slice,
}

/// The content of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contents {
    version: u32,
    /// The boot during which it was written. After another boot the regions are gone.
    pub boot_id: String,
    /// All slices, each with its phase.
    pub slices: Vec<Entry>,
}

impl Contents {
    /// Contents in the version that this manager writes.
    #[must_use]
    pub(crate) fn new(boot_id: String, slices: Vec<Entry>) -> Contents {
        Contents { version: VERSION, boot_id, slices }
    }
}

/// Why the checkpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("cannot read the checkpoint {}: {source}", path.display())]
    Read {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// The file was written by a newer manager, in a version that this one cannot read.
    #[error(
        "the checkpoint {} is of version {found}, and this manager knows version {VERSION}; install the newer manager \
         again, or remove the slices with it first", path.display()
    )]
    Version {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The version of the file's format.
        found: u32,
    },
    /// The file cannot be written.
    #[error("cannot write the checkpoint {}: {source}", path.display())]
    Write {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
}

impl CheckpointError {
    /// Whether the failure is only a lack of disk space. Then a state that needs no more space can still be written.
    #[must_use]
    pub(crate) fn is_full_disk(&self) -> bool {
        matches!(self, CheckpointError::Write { source, .. } if is_full(source))
    }
}

/// The checkpoint as it is found at a start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No file: this is the first start, or both files were deleted.
    Nothing,
    /// The state that was saved last.
    Whole(Contents),
    /// The copy (the state that was saved last, or the one before it), and what is wrong with the file itself.
    Copy(Contents, String),
    /// Neither file can be read; what is wrong with them.
    Lost(String),
}

/// The checkpoint's files, if there is a state directory.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    dir: Option<PathBuf>,
}

impl Checkpoint {
    /// The checkpoint in `dir`; `None`: nothing is saved.
    #[must_use]
    pub(crate) fn new(dir: Option<PathBuf>) -> Checkpoint {
        Checkpoint { dir }
    }

    /// Reads the checkpoint.
    ///
    /// # Errors
    /// See [`CheckpointError`]. Reading never changes a file.
    pub(crate) fn load(&self) -> Result<Found, CheckpointError> {
        let Some(dir) = &self.dir else { return Ok(Found::Nothing) };
        let (path, copy) = (dir.join(FILE), dir.join(COPY));
        let problem = match read(&path)? {
            Read::Whole(contents) => return Ok(Found::Whole(contents)),
            Read::Damaged(error) => format!("the checkpoint {} is damaged: {error}", path.display()),
            Read::Missing => format!("the checkpoint {} is gone", path.display()),
        };
        Ok(match read(&copy)? {
            Read::Whole(contents) => Found::Copy(contents, problem),
            Read::Damaged(error) => Found::Lost(format!("{problem}; its copy {} is damaged: {error}", copy.display())),
            Read::Missing if !path.exists() => Found::Nothing,
            Read::Missing => Found::Lost(format!("{problem}; there is no copy {}", copy.display())),
        })
    }

    /// Renames a file that cannot be read, so that the next save does not overwrite it. Returns the new path.
    pub(crate) fn set_aside(&self) -> Option<PathBuf> {
        let dir = self.dir.as_ref()?;
        let aside = dir.join(DAMAGED);
        fs::rename(dir.join(FILE), &aside).ok().map(|()| aside)
    }

    /// Replaces the checkpoint and its copy.
    ///
    /// # Errors
    /// The checkpoint cannot be written. It holds the former state, or the new one if only the directory's sync failed.
    pub(crate) fn save(&self, contents: &Contents) -> Result<(), CheckpointError> {
        let Some(dir) = &self.dir else { return Ok(()) };
        let path = dir.join(FILE);
        // Serialised in one piece: a serialiser on the file itself would write token by token.
        let mut text = serde_json::to_vec_pretty(contents)
            .map_err(|error| CheckpointError::Write { path: path.clone(), source: error.into() })?;
        text.push(b'\n');
        let copy = dir.join(COPY);
        // On a full disk a slice can still be removed, because that does not make the file longer.
        write(dir, &path, &text, || overwrite_beside_copy(&path, &copy, &text))
            .map_err(|source| CheckpointError::Write { path: path.clone(), source })?;
        // The file is whole and durable, so the copy may be incomplete for a moment.
        if let Err(error) = write(dir, &copy, &text, || overwrite(&copy, &text)) {
            // A stale copy is worse than none: without one, the regions are asked.
            let _ = fs::remove_file(&copy);
            warn!(copy = %copy.display(), %error, "cannot write the copy of the checkpoint; the checkpoint itself is whole");
        }
        Ok(())
    }

    /// Whether the checkpoint saves nothing, because there is no state directory.
    #[must_use]
    pub(crate) fn is_off(&self) -> bool {
        self.dir.is_none()
    }
}

enum Read {
    Missing,
    Damaged(serde_json::Error),
    Whole(Contents),
}

fn read(path: &Path) -> Result<Read, CheckpointError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Read::Missing),
        Err(source) => return Err(CheckpointError::Read { path: path.into(), source }),
    };
    // The version is read by itself first: a newer file may differ in everything else.
    match serde_json::from_slice(&text) {
        Ok(Version { version: VERSION }) => {}
        Ok(Version { version: found }) => return Err(CheckpointError::Version { path: path.into(), found }),
        Err(error) => return Ok(Read::Damaged(error)),
    }
    Ok(serde_json::from_slice(&text).map_or_else(Read::Damaged, Read::Whole))
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Replaces a file; on a full disk calls `in_place` instead.
fn write(dir: &Path, path: &Path, text: &[u8], in_place: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let new = dir.join(".checkpoint.new");
    aliquot_durable::replace_through(&new, path, text)
        .or_else(|error| if is_full(&error) && in_place().is_ok() { Ok(()) } else { Err(error) })
}

/// Overwrites the checkpoint in place. Before that, and until the new state is durable, its copy holds the former
/// state: if the machine stops in between, one of the two files is whole. Without a copy nothing is overwritten.
fn overwrite_beside_copy(path: &Path, copy: &Path, text: &[u8]) -> io::Result<()> {
    let is_whole = |path: &Path| matches!(read(path), Ok(Read::Whole(_)));
    if is_whole(path) {
        // The copy can be one change behind.
        overwrite(copy, fs::read(path)?.trim_ascii_end())?;
    } else if !is_whole(copy) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    overwrite(path, text)
}

/// Overwrites a file that is at least as long as `text`, and keeps its length.
fn overwrite(path: &Path, text: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if text.len() > length {
        return Err(io::ErrorKind::StorageFull.into());
    }
    let mut padded = text.to_vec();
    padded.resize(length, b'\n');
    file.write_all_at(&padded, 0)?;
    file.sync_all()
}

#[cfg(test)]
pub(crate) mod tests;

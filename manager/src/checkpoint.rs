//! The manager's persistent state: the slices, in one file that is replaced atomically.
//!
//! The file is written under another name, synced, and renamed; then its directory is synced. A reader finds the state
//! before or after a change, never half of one. On a full disk the file is overwritten in place instead; meanwhile only
//! its copy is whole, if there is one.
//!
//! Each slice is stored with its phase. `making` is written before anything of a slice is made, and `removing` before
//! anything of it is removed. So after a kill at any moment all possible leftovers are known, and the next start
//! removes them. `ready` slices are what the manager has promised.
//!
//! A second file holds a copy. It is written after the first one, and read if the first one is damaged or gone. If both
//! are, the regions tell which slices there are: see `manager::recovery`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::slices::Slice;

const FILE: &str = "checkpoint.json";
const COPY: &str = "checkpoint.copy.json";
/// A file that cannot be read is kept under this name, for people to look at.
const DAMAGED: &str = "checkpoint.damaged.json";
const VERSION: u32 = 1;

/// How far the making or the removal of a slice has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// Begun, and not promised to a caller yet.
    Making,
    /// Made and promised.
    Ready,
    /// Its removal has begun.
    Removing,
}

/// A slice in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// How far it has got.
    pub phase: Phase,
    /// The slice.
    #[serde(flatten)]
    pub slice: Slice,
}

/// What the checkpoint holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contents {
    version: u32,
    /// The boot during which it was written: after another boot the regions are gone.
    pub boot_id: String,
    /// The slices.
    pub slices: Vec<Entry>,
}

impl Contents {
    /// The contents of this version.
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
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file was written by a newer manager.
    #[error(
        "the checkpoint {} is of version {found}, and this manager knows version {VERSION}; install the newer manager \
         again, or remove the slices with it first", path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file cannot be written.
    #[error("cannot write the checkpoint {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl CheckpointError {
    /// Whether only disk space is missing: a state that needs no more space can still be written.
    #[must_use]
    pub(crate) fn is_full_disk(&self) -> bool {
        matches!(self, CheckpointError::Write { source, .. } if is_full(source))
    }
}

/// What a start finds.
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
#[derive(Debug)]
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
        // In one piece: a serialiser on the file itself would write token by token.
        let mut text = serde_json::to_vec_pretty(contents)
            .map_err(|error| CheckpointError::Write { path: path.clone(), source: error.into() })?;
        text.push(b'\n');
        write(dir, &path, &text).map_err(|source| CheckpointError::Write { path, source })?;
        let copy = dir.join(COPY);
        if let Err(error) = write(dir, &copy, &text) {
            // A stale copy is worse than none: without one, the regions are asked.
            let _ = fs::remove_file(&copy);
            warn!(copy = %copy.display(), %error, "cannot write the copy of the checkpoint; the checkpoint itself is whole");
        }
        Ok(())
    }

    /// Whether nothing is saved.
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
    // The version alone first: a newer file may differ in everything else.
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

fn write(dir: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let new = dir.join(".checkpoint.new");
    replace(dir, &new, path, text).or_else(|error| {
        let _ = fs::remove_file(&new);
        // On a full disk a slice can still be removed, because that makes the file no longer.
        if is_full(&error) && overwrite(path, text).is_ok() { Ok(()) } else { Err(error) }
    })
}

fn replace(dir: &Path, new: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(new)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    File::open(dir)?.sync_all()
}

/// Overwrites a file that is at least as long, and keeps its length. Only the other file, if any, is whole meanwhile.
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
mod tests {
    use std::time::SystemTime;

    use aliquot_node::PriorityClass;

    use super::*;
    use crate::inventory::DeviceUuid;
    use crate::slices::{Part, Published, SliceId};

    fn contents() -> Contents {
        let part = Part {
            device: DeviceUuid::new("GPU-1"),
            core_request_percent: 30,
            core_limit_percent: 60,
            memory_limit_bytes: u64::MAX,
        };
        let slice = Slice {
            name: "train-1".into(),
            id: SliceId::from_random(u128::MAX / 3),
            parts: vec![part],
            host_memory_limit_bytes: 0,
            priority_class: PriorityClass::LatencyCritical,
            audit_policy: None,
            published: Published::default(),
            created: SystemTime::now(),
            description: "\"quoted\"\n".into(),
            owner: None,
            users: [7].into(),
        };
        Contents::new("boot".into(), vec![Entry { phase: Phase::Ready, slice }])
    }

    fn loaded(checkpoint: &Checkpoint) -> Contents {
        match checkpoint.load().unwrap() {
            Found::Whole(contents) => contents,
            other => panic!("{other:?}"),
        }
    }

    /// A checkpoint with `contents` saved, and the paths of its file and copy.
    fn saved(dir: &Path, contents: &Contents) -> (Checkpoint, [PathBuf; 2]) {
        let checkpoint = Checkpoint::new(Some(dir.into()));
        checkpoint.save(contents).unwrap();
        (checkpoint, [dir.join(FILE), dir.join(COPY)])
    }

    #[test]
    fn the_saved_state_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Checkpoint::new(Some(dir.path().into())).load().unwrap(), Found::Nothing);
        let contents = contents();
        let (checkpoint, _) = saved(dir.path(), &contents);
        assert_eq!(loaded(&checkpoint), contents);
    }

    #[test]
    fn a_checkpoint_of_before_there_were_host_limits_and_priorities_is_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let (checkpoint, [path, _]) = saved(dir.path(), &contents());
        let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let slice = value["slices"][0].as_object_mut().unwrap();
        assert_eq!(slice.remove("priority_class").unwrap(), "latency-critical");
        slice.remove("host_memory_limit_bytes").unwrap();
        fs::write(&path, value.to_string()).unwrap();
        let loaded = loaded(&checkpoint).slices.remove(0).slice;
        assert_eq!((loaded.priority_class, loaded.host_memory_limit_bytes), (PriorityClass::Standard, 0));
    }

    #[test]
    fn a_newer_checkpoint_is_refused_by_name_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (checkpoint, files) = saved(dir.path(), &contents());
        let newer = "{\"version\": 2, \"new\": []}";
        for path in files.iter().rev() {
            fs::write(path, newer).unwrap();
            if path == &files[0] {
                let error = checkpoint.load().unwrap_err();
                assert!(matches!(error, CheckpointError::Version { found: 2, .. }), "{error}");
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            }
            assert_eq!(fs::read_to_string(path).unwrap(), newer);
        }
    }

    #[test]
    fn the_copy_stands_in_for_a_damaged_or_missing_file() {
        let dir = tempfile::tempdir().unwrap();
        let contents = contents();
        let (checkpoint, [path, copy]) = saved(dir.path(), &contents);
        for text in ["", "{", "[]", "{\"version\": 1}", "\0\0\0\0"] {
            fs::write(&path, text).unwrap();
            let Found::Copy(found, problem) = checkpoint.load().unwrap() else { panic!("{text}") };
            assert_eq!(found, contents);
            assert!(problem.contains(path.to_str().unwrap()) && problem.contains("damaged"), "{problem}");
        }
        let aside = checkpoint.set_aside().unwrap();
        assert_eq!(fs::read(aside).unwrap(), [0; 4]);
        assert!(matches!(checkpoint.load().unwrap(), Found::Copy(..)));
        fs::write(&copy, "{").unwrap();
        assert!(matches!(checkpoint.load().unwrap(), Found::Lost(_)));
        fs::remove_file(&copy).unwrap();
        assert_eq!(checkpoint.load().unwrap(), Found::Nothing);
        fs::write(&path, "").unwrap();
        assert!(matches!(checkpoint.load().unwrap(), Found::Lost(_)));
    }

    #[test]
    fn a_failed_write_leaves_the_former_state() {
        let dir = tempfile::tempdir().unwrap();
        let (checkpoint, _) = saved(dir.path(), &contents());
        // A directory in the place of the temporary file: even root cannot write to it.
        fs::create_dir(dir.path().join(".checkpoint.new")).unwrap();
        checkpoint.save(&Contents::new("other".into(), Vec::new())).unwrap_err();
        assert_eq!(loaded(&checkpoint).boot_id, "boot");
    }

    #[test]
    fn a_shorter_state_can_overwrite_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (checkpoint, [path, _]) = saved(dir.path(), &contents());
        let length = fs::metadata(&path).unwrap().len();
        let shorter = Contents::new("boot".into(), Vec::new());
        overwrite(&path, &serde_json::to_vec(&shorter).unwrap()).unwrap();
        assert_eq!((loaded(&checkpoint), fs::metadata(&path).unwrap().len()), (shorter.clone(), length));
        overwrite(&path, &vec![b' '; length as usize + 1]).unwrap_err();
        assert_eq!(loaded(&checkpoint), shorter);
    }
}

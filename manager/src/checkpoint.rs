//! What the manager must remember: the slices, in one file that is always whole.
//!
//! The file is written under another name, synced, and renamed; then its directory is synced. Whoever reads it finds
//! the state before or after a change, never half of one.
//!
//! A slice stands in it with its phase. `making` is written before anything of a slice is made and `removing` before
//! anything of it is removed; so after a kill at any moment, all that can be left over of a slice is known, and is
//! removed at the next start. `ready` slices are what the manager has promised.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::slices::Slice;

const FILE: &str = "checkpoint.json";
const VERSION: u32 = 1;

/// How far a slice has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// Begun, and promised to nobody yet.
    Making,
    /// It is there.
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
    /// The boot during which it was written: after another one the regions are gone.
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
    /// The file is not a checkpoint.
    #[error(
        "the checkpoint {} is damaged: {source}; it is left as it is: restore it from a backup, or move it away to start \
         without the slices that it holds", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The file was written by a newer manager.
    #[error(
        "the checkpoint {} is of version {found}, and this manager knows version {VERSION}; install the newer manager \
         again, or move the file away to start without the slices that it holds", path.display()
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

/// The checkpoint's file, if anything is to be remembered at all.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    dir: Option<PathBuf>,
}

impl Checkpoint {
    /// The checkpoint in `dir`; `None`: nothing is remembered.
    #[must_use]
    pub(crate) fn new(dir: Option<PathBuf>) -> Checkpoint {
        Checkpoint { dir }
    }

    /// Reads it; `None` if there is none yet.
    ///
    /// # Errors
    /// See [`CheckpointError`]. The file is never changed by this.
    pub(crate) fn load(&self) -> Result<Option<Contents>, CheckpointError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Some(path) = self.path() else { return Ok(None) };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CheckpointError::Read { path, source }),
        };
        let damaged = |source| CheckpointError::Damaged { path: path.clone(), source };
        // First the version alone: a newer file need not look like this one in anything else.
        let Version { version: found } = serde_json::from_slice(&text).map_err(damaged)?;
        if found != VERSION {
            return Err(CheckpointError::Version { path, found });
        }
        serde_json::from_slice(&text).map_err(damaged).map(Some)
    }

    /// Replaces it.
    ///
    /// # Errors
    /// It cannot be written; what was there before is still there.
    pub(crate) fn save(&self, contents: &Contents) -> Result<(), CheckpointError> {
        let (Some(dir), Some(path)) = (&self.dir, self.path()) else { return Ok(()) };
        let new = dir.join(".checkpoint.new");
        write(dir, &new, &path, contents).map_err(|source| {
            let _ = fs::remove_file(&new);
            CheckpointError::Write { path, source }
        })
    }

    /// Whether nothing is remembered.
    #[must_use]
    pub(crate) fn is_off(&self) -> bool {
        self.dir.is_none()
    }

    fn path(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join(FILE))
    }
}

fn write(dir: &Path, new: &Path, path: &Path, contents: &Contents) -> io::Result<()> {
    // Written at once: the file itself would be written token by token.
    let mut text = serde_json::to_vec_pretty(contents)?;
    text.push(b'\n');
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(new)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::inventory::DeviceUuid;
    use crate::slices::{Part, PriorityClass, Published, SliceId};

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
        };
        Contents::new("boot".into(), vec![Entry { phase: Phase::Ready, slice }])
    }

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(Some(dir.path().into()));
        assert_eq!(checkpoint.load().unwrap(), None);
        checkpoint.save(&contents()).unwrap();
        assert_eq!(
            checkpoint.load().unwrap(),
            Some(contents()).map(|mut expected| {
                expected.slices[0].slice.created = checkpoint.load().unwrap().unwrap().slices[0].slice.created;
                expected
            })
        );
    }

    #[test]
    fn a_checkpoint_of_before_there_were_host_limits_and_priorities_is_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(Some(dir.path().into()));
        checkpoint.save(&contents()).unwrap();
        let path = dir.path().join(FILE);
        let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let slice = value["slices"][0].as_object_mut().unwrap();
        assert_eq!(slice.remove("priority_class").unwrap(), "latency-critical");
        slice.remove("host_memory_limit_bytes").unwrap();
        fs::write(&path, value.to_string()).unwrap();
        let loaded = checkpoint.load().unwrap().unwrap().slices.remove(0).slice;
        assert_eq!((loaded.priority_class, loaded.host_memory_limit_bytes), (PriorityClass::Standard, 0));
    }

    #[test]
    fn a_damaged_or_newer_checkpoint_is_refused_by_name_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let checkpoint = Checkpoint::new(Some(dir.path().into()));
        for text in ["", "{", "[]", "{\"version\": 1}", "{\"version\": 2, \"new\": []}", "\0\0\0\0"] {
            fs::write(&path, text).unwrap();
            let error = checkpoint.load().unwrap_err();
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert_eq!(matches!(error, CheckpointError::Version { found: 2, .. }), text.contains("new"));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_failed_write_leaves_the_former_state() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::new(Some(dir.path().into()));
        checkpoint.save(&contents()).unwrap();
        // A directory in the place of the temporary file: even root cannot write to it.
        fs::create_dir(dir.path().join(".checkpoint.new")).unwrap();
        checkpoint.save(&Contents::new("other".into(), Vec::new())).unwrap_err();
        assert_eq!(checkpoint.load().unwrap().unwrap().boot_id, "boot");
    }
}

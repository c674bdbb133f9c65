//! What a region's limits do not say of its slice, kept beside them: if the checkpoint and its copy are lost, the slice
//! is known from here.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::slices::{Slice, SliceId};

const FILE: &str = "slice.json";
const NEW_FILE: &str = ".slice.new";

/// A slice as it was when its region was made or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The boot during which it was written: after another one the region's books say nothing.
    pub boot_id: String,
    /// The slice.
    pub slice: Slice,
}

impl Manifest {
    /// Reads the manifest in `dir` of slice `id`; `None` if there is none that is whole.
    #[must_use]
    pub(crate) fn read(dir: &Path, id: SliceId) -> Option<Manifest> {
        let text = fs::read(dir.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok().filter(|manifest: &Manifest| manifest.slice.id == id)
    }

    /// Writes it into `dir`, unless it is there.
    ///
    /// # Errors
    /// It cannot be written; what was there before is still there.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        let (new, path) = (dir.join(NEW_FILE), dir.join(FILE));
        if fs::read(&path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        let write = || {
            // For this manager alone: a description is none of the container's business.
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            fs::rename(&new, &path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

//! The facts about a slice that its region's limits do not contain, stored beside them. If the checkpoint and its copy
//! are lost, the slice is restored from here.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::slices::{Slice, SliceId};

const FILE: &str = "slice.json";
const NEW_FILE: &str = ".slice.new";

/// A slice as it was when its region was made or last changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The boot during which the manifest was written: after another boot the region's ledger is meaningless.
    pub boot_id: String,
    /// The slice, with all that its limits do not contain.
    pub slice: Slice,
}

impl Manifest {
    /// Reads the manifest of slice `id` in `dir`; `None` if there is none or it is not whole.
    #[must_use]
    pub(crate) fn read(dir: &Path, id: SliceId) -> Option<Manifest> {
        let text = fs::read(dir.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok().filter(|manifest: &Manifest| manifest.slice.id == id)
    }

    /// Writes the manifest into `dir`, unless the same content is there already.
    ///
    /// # Errors
    /// The manifest cannot be written. The former content is still there.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(self)?;
        let (new, path) = (dir.join(NEW_FILE), dir.join(FILE));
        if fs::read(&path).is_ok_and(|found| found == text) {
            return Ok(());
        }
        let write = || {
            // Readable for the manager's user only: the container need not see the description.
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(&text)?;
            fs::rename(&new, &path)
        };
        write().inspect_err(|_| drop(fs::remove_file(&new)))
    }
}

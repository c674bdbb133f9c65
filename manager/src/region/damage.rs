//! Damage to a region, by its own processes or by other users who may write to the node's directories.
//!
//! A damaged region is never trusted again, even if it looks right again: it is unknown what was granted in between. So
//! when damage is found, everything is revoked ([`Region::revoke`]) and the slice must be made anew; a container that
//! keeps a removed directory mounted cannot be given another one. Only two kinds of damage are repaired: damage that
//! would harm others, and damage that would kill the slice's own processes on access.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use aliquot_abi::region::{LEDGER_BACKED_BYTES, LEDGER_FILE, LEDGER_FILE_BYTES, LEDGER_MAGIC, LIMITS_FILE};

use crate::region::{Region, files, header, view};

/// A file's identity, which no name can fake; `None` if there is no file.
type Inode = Option<(u64, u64)>;

/// The identities of a region's files.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Files {
    dir: Inode,
    limits: Inode,
    ledger: Inode,
    shim: Inode,
}

impl Files {
    /// The files that exist now.
    pub(super) fn at(dir: &Path, shim_path: &Path) -> Files {
        let inode = |path: &Path| fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()));
        Files {
            dir: inode(dir),
            limits: inode(&dir.join(LIMITS_FILE)),
            ledger: inode(&dir.join(LEDGER_FILE)),
            shim: inode(shim_path),
        }
    }

    /// Describes the first of these files that is gone or differs in `now`.
    fn missing_from(&self, now: &Files) -> Option<String> {
        let files = [
            ("directory", self.dir, now.dir),
            ("limits file", self.limits, now.limits),
            ("ledger", self.ledger, now.ledger),
            ("library", self.shim, now.shim),
        ];
        let (what, _, found) = files.into_iter().find(|(_, opened, found)| opened != found)?;
        let how = if found.is_none() { "deleted" } else { "replaced" };
        Some(format!("the {what} of its region was {how}"))
    }
}

impl Region {
    /// Describes the file that was deleted or replaced, so that new processes would not find the files that this
    /// manager uses. `None` if all are in place.
    #[must_use]
    pub(crate) fn displacement(&self) -> Option<String> {
        self.files.missing_from(&Files::at(&self.dir, &self.shim_path))
    }

    /// Checks whether the container has damaged its ledger; `None` if no damage is found. On damage everything is
    /// revoked, and a ledger of the wrong size gets its size again: a longer one could fill the file system of all
    /// regions, and a shorter one would kill the processes that have it mapped.
    #[must_use]
    pub(crate) fn damage(&self) -> Option<String> {
        let found = self.resized().or_else(|| self.overwritten());
        if found.is_some() {
            self.revoke();
        }
        found
    }

    fn resized(&self) -> Option<String> {
        let found_bytes = match self.ledger_file.metadata() {
            Ok(metadata) if metadata.len() == LEDGER_FILE_BYTES as u64 => {
                return self.lost_pages().map(Into::into);
            }
            Ok(metadata) => metadata.len(),
            Err(error) => return Some(format!("the ledger cannot be looked at: {error}")),
        };
        // Revoked first: a ledger of zeros appears to have room for everything.
        self.revoke();
        let how = if found_bytes < LEDGER_FILE_BYTES as u64 { "truncated" } else { "extended" };
        let outcome = match restore_size(&self.ledger_file) {
            Ok(()) => "has its size again".into(),
            Err(error) => format!("cannot be given its size again: {error}"),
        };
        Some(format!("the ledger was {how} to {found_bytes} bytes by a process of the slice, and {outcome}"))
    }

    /// The file of which a page was missing when it was read or written.
    fn lost_pages(&self) -> Option<&'static str> {
        if self.limits.is_damaged() {
            return Some("the limits file was truncated");
        }
        self.ledger.is_damaged().then_some("the ledger was truncated by a process of the slice")
    }

    fn overwritten(&self) -> Option<String> {
        if let Err(error) = self.ledger.header.check(LEDGER_MAGIC, LEDGER_FILE_BYTES) {
            return Some(format!("the ledger was overwritten by a process of the slice: {}", header(&error)));
        }
        if self.ledger.header.region_id.load(Ordering::Relaxed) != self.id.region_id() {
            return Some("the ledger was overwritten by a process of the slice: its id is wrong".into());
        }
        None
    }

    /// Words of the ledger that the protocol never writes. They do not count as damage: a program's stray write may
    /// have caused them, and the sweeps of the ledger put them right.
    #[must_use]
    pub(crate) fn implausible(&self) -> Option<String> {
        view::implausible(&self.ledger, self.device_count)
    }
}

fn restore_size(ledger: &File) -> std::io::Result<()> {
    ledger.set_len(LEDGER_FILE_BYTES as u64)?;
    files::back(ledger, LEDGER_BACKED_BYTES)
}

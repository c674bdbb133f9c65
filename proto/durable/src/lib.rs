//! Replaces files so that a crash or a loss of power leaves the old or the new contents, and nothing between.
//!
//! The manager, its adapters and the scheduler keep durable state in such files. Only the user of the process can read
//! what is written here. The crate uses only the standard library.
//!
//! The unfinished file has a fixed name beside the file: what a kill leaves behind, the next write overwrites. Crates
//! that do the same give it a random name, and leave one more file behind at each kill.
//!
//! Some files are renamed elsewhere without a sync: those that must not outlive a restart of the machine (regions, CDI
//! specifications), and those that can be made again at any time (reports).

#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

mod directory;
mod group_commit;

pub use directory::Directory;
pub use group_commit::GroupCommit;

/// Replaces the file `path`. When this returns, the new contents outlive a loss of power. If it fails, the old or the
/// new contents are there. The unfinished file has the extension `new`.
///
/// # Errors
/// The file cannot be written, renamed or synced.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    replace_through(&path.with_extension("new"), path, contents)
}

/// As [`replace`], with `unfinished`, in the same directory, as the unfinished file.
///
/// # Errors
/// The file cannot be written, renamed or synced.
pub fn replace_through(unfinished: &Path, path: &Path, contents: &[u8]) -> io::Result<()> {
    exchange(unfinished, path, contents, File::sync_all)?;
    sync_parent(path)
}

/// Writes `unfinished`, syncs it by `sync`, and renames it to `path`. Does not sync the directory.
fn exchange(
    unfinished: &Path,
    path: &Path,
    contents: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let written = create_private(unfinished).and_then(|mut file| {
        file.write_all(contents)?;
        sync(&file)
    });
    written.and_then(|()| fs::rename(unfinished, path)).inspect_err(|_| _ = fs::remove_file(unfinished))
}

/// Renames `from` to `to` in the same directory. The new name outlives a loss of power.
///
/// # Errors
/// The file cannot be renamed, or the directory cannot be synced.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent(to)
}

/// Syncs the directory that `path` is in, so that the names in it outlive a loss of power.
///
/// # Errors
/// The directory cannot be opened or synced.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    File::open(parent.unwrap_or(Path::new("/")))?.sync_all()
}

/// Makes an empty file that only this user can read, in place of an existing one.
///
/// # Errors
/// The file cannot be made, or belongs to another user.
pub fn create_private(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // An existing file may have had other permissions.
    file.set_permissions(Permissions::from_mode(0o600))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        // A kill left this file behind, readable for all users.
        fs::write(dir.path().join("state.new"), "much longer than what is written now").unwrap();
        fs::set_permissions(dir.path().join("state.new"), Permissions::from_mode(0o644)).unwrap();
        for contents in ["old", "new"] {
            replace(&path, contents.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_contents_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (path, target) = (dir.path().join("state"), dir.path().join("directory"));
        replace(&path, b"old").unwrap();
        fs::create_dir_all(target.join("full")).unwrap();
        assert!(replace_through(&dir.path().join("unfinished"), &target, b"new").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(!dir.path().join("unfinished").exists());
    }
}

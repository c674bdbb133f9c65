//! Decides which users can pass through the directory around a region.
//!
//! The directory's owner, which is the manager's user, can. Other users are admitted one by one, by entries in the
//! directory's access control list that allow only passing through. A group is not used, because it may have other
//! members. The directory is not given to another user either, because its owner could replace the region in it. Where
//! the file system has no access control lists, a slice for other users is refused.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, setxattr};
use rustix::io::Errno;

/// Why a user cannot be let into a slice.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The file system has no access control lists.
    #[error(
        "the file system of {} has no access control lists, so the manager cannot admit user {user} to the slice and keep other \
         users out; mount a tmpfs on the manager's runtime_dir, choose another with --runtime-dir, or run a manager as that user", path.display()
    )]
    Unsupported {
        /// The path of the directory around the region.
        path: PathBuf,
        /// The uid of the first of these users.
        user: u32,
    },
    /// The list cannot be written.
    #[error("cannot write the access control list of {}: {source}", path.display())]
    Io {
        /// The path of the directory around the region.
        path: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
}

/// Lets `users` pass through `dir`, and no other user but its owner.
///
/// # Errors
/// See [`AdmissionError`].
pub(super) fn admit(dir: &Path, users: &BTreeSet<u32>) -> Result<(), AdmissionError> {
    match (setxattr(dir, "system.posix_acl_access", &list(users), XattrFlags::empty()), users.first()) {
        // Without access control lists and without users there is nothing to do.
        (Ok(()), _) | (Err(Errno::OPNOTSUPP), None) => Ok(()),
        (Err(Errno::OPNOTSUPP), Some(&user)) => Err(AdmissionError::Unsupported { path: dir.into(), user }),
        (Err(errno), _) => Err(AdmissionError::Io { path: dir.into(), source: errno.into() }),
    }
}

/// The list in the kernel's format (`struct posix_acl_xattr_header` and its entries), which fixes the order of the
/// kinds of entries.
fn list(users: &BTreeSet<u32>) -> Vec<u8> {
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    const OWNER: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x04;
    const MASK: u16 = 0x10;
    const OTHERS: u16 = 0x20;
    const ALL: u16 = 7;
    const PASS: u16 = 1;
    let entry = |kind: u16, rights: u16, id: u32| {
        [&kind.to_le_bytes()[..], &rights.to_le_bytes()[..], &id.to_le_bytes()[..]].concat()
    };
    let mut list = VERSION.to_le_bytes().to_vec();
    list.extend(entry(OWNER, ALL, NO_ID));
    list.extend(users.iter().flat_map(|&user| entry(USER, PASS, user)));
    list.extend(entry(GROUP, 0, NO_ID));
    // The mask bounds the rights of named users. Without named users the kernel stores only the directory's mode, and
    // no list.
    if !users.is_empty() {
        list.extend(entry(MASK, PASS, NO_ID));
    }
    list.extend(entry(OTHERS, 0, NO_ID));
    list
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_named_users_are_let_in() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let mode = || fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777;
        admit(dir.path(), &BTreeSet::new()).unwrap();
        assert_eq!(mode(), 0o700);
        // The kernel refuses an unordered list. It shows the mask, which bounds the rights of named users, as the
        // group's rights.
        admit(dir.path(), &[4711, 7, 1000].into()).unwrap();
        assert_eq!(mode(), 0o710);
        admit(dir.path(), &BTreeSet::new()).unwrap();
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn without_access_control_lists_the_error_names_the_user_and_the_remedy() {
        let error = admit(Path::new("/proc/sys"), &[4711].into()).unwrap_err();
        assert!(matches!(error, AdmissionError::Unsupported { user: 4711, .. }), "{error}");
        assert!(error.to_string().contains("--runtime-dir"), "{error}");
    }
}

//! The kind of a directory's file system, and its consequences for regions in the directory.
//!
//! The device writes progress markers into a region's ledger, and the driver registers the ledger's pages for that.
//! Linux lets a driver hold pages of memory file systems only: writing a page back to a disk would race with the
//! device. Where the pages cannot be registered, the shim uses events instead of markers, and shares are less exact.

use std::io;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const HUGETLBFS: u64 = 0x9584_58f6;

/// Names of the file systems that are common on nodes.
const NAMES: [(u64, &str); 9] = [
    (TMPFS, "tmpfs"),
    (RAMFS, "ramfs"),
    (HUGETLBFS, "hugetlbfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0x794c_7630, "overlayfs"),
    (0x6969, "nfs"),
];

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    kind: u64,
}

impl FileSystem {
    /// The file system of `path`.
    ///
    /// # Errors
    /// The file does not exist or cannot be examined.
    pub fn of(path: &Path) -> io::Result<FileSystem> {
        // The number has 32 bits, but its type depends on the architecture.
        Ok(FileSystem { kind: statfs(path)?.f_type as u64 & 0xffff_ffff })
    }

    /// Whether its files consist of memory pages only, so that the driver can register them.
    #[must_use]
    pub fn is_memory(self) -> bool {
        [TMPFS, RAMFS, HUGETLBFS].contains(&self.kind)
    }

    /// Its name, or its number if the name is not known here.
    #[must_use]
    pub fn name(self) -> String {
        let known = NAMES.iter().find(|(kind, _)| *kind == self.kind);
        known.map_or_else(|| format!("file system {:#x}", self.kind), |(_, name)| (*name).to_owned())
    }
}

/// Whether the driver can register pages of files in `dir`; `false` if that cannot be found out.
#[must_use]
pub fn is_in_memory(dir: &Path) -> bool {
    FileSystem::of(dir).is_ok_and(FileSystem::is_memory)
}

/// Whether libraries cannot be loaded from `dir`. Several distributions mount /run this way.
#[must_use]
pub fn is_noexec(dir: &Path) -> bool {
    statvfs(dir).is_ok_and(|file_system| file_system.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_file_systems_are_recognised_as_such() {
        assert!(is_in_memory(Path::new("/dev/shm")));
        assert_eq!(FileSystem::of(Path::new("/dev/shm")).unwrap().name(), "tmpfs");
        for kind in [0xef53, 0x5846_5342, 0x9123_683e, 0x794c_7630, 0x6969, 0x1234] {
            assert!(!FileSystem { kind }.is_memory(), "{kind:#x}");
        }
        assert_eq!(FileSystem { kind: 0x1234 }.name(), "file system 0x1234");
        assert!(!is_in_memory(Path::new("/proc")) && !is_in_memory(Path::new("/nonexistent")));
    }
}

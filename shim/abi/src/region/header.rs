//! The beginning of a region's files: which file it is, of which version, and whether it is complete.

use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Version of the layout and protocols in this crate: reader and file must have the same.
pub const MAJOR: u32 = 3;
/// Version of additions that older readers can ignore.
pub const MINOR: u32 = 1;

/// The beginning of each of the two files.
#[repr(C)]
pub struct Header {
    /// Says which file this is. Zero until the rest of the file is complete.
    pub magic: AtomicU64,
    /// [`MAJOR`] of the manager that made the file.
    pub major: AtomicU32,
    /// [`MINOR`] of the manager that made the file.
    pub minor: AtomicU32,
    /// Size of the file in bytes.
    pub file_bytes: AtomicU64,
    /// Unique to this region; both its files hold the same number.
    pub region_id: AtomicU64,
}

/// Why a file of a region cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// The manager has not finished making the file.
    NotReady,
    /// This is some other file.
    WrongMagic {
        /// The number in the header.
        found: u64,
    },
    /// The file was made by a manager with another major version.
    WrongMajor {
        /// The version in the header.
        found: u32,
    },
    /// The size in the header is not the size that this version maps.
    WrongSize {
        /// The size found in bytes.
        found_bytes: u64,
    },
}

impl Header {
    /// Checks that the file is complete and of a version that this crate knows.
    ///
    /// Pairs with [`Header::publish`]: once the magic is seen, everything written before it is.
    ///
    /// # Errors
    /// See [`HeaderError`].
    pub fn check(&self, magic: u64, file_bytes: usize) -> Result<(), HeaderError> {
        match self.magic.load(Ordering::Acquire) {
            found if found == magic => {}
            0 => return Err(HeaderError::NotReady),
            found => return Err(HeaderError::WrongMagic { found }),
        }
        let found = self.major.load(Ordering::Relaxed);
        if found != MAJOR {
            return Err(HeaderError::WrongMajor { found });
        }
        let found_bytes = self.file_bytes.load(Ordering::Relaxed);
        if found_bytes != file_bytes as u64 {
            return Err(HeaderError::WrongSize { found_bytes });
        }
        Ok(())
    }

    /// Writes the header, and so declares the file complete.
    pub fn publish(&self, magic: u64, file_bytes: usize, region_id: u64) {
        self.major.store(MAJOR, Ordering::Relaxed);
        self.minor.store(MINOR, Ordering::Relaxed);
        self.file_bytes.store(file_bytes as u64, Ordering::Relaxed);
        self.region_id.store(region_id, Ordering::Relaxed);
        self.magic.store(magic, Ordering::Release);
    }
}

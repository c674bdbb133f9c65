//! The files of a region, mapped into the test as they are mapped into the region's processes.

use std::fs::OpenOptions;
use std::ops::Deref;
use std::path::Path;
use std::ptr::NonNull;

use aliquot_abi::region::{LEDGER_FILE_BYTES, LIMITS_FILE_BYTES, Ledger, Limits};
use rustix::mm::{MapFlags, ProtFlags};

/// A file of a region, mapped for reading and writing.
pub struct Mapped<T: RegionFile> {
    address: NonNull<T>,
}

/// The type of a file of a region.
///
/// # Safety
/// Every byte pattern must be a valid value of the type. Processes must change it only through atomics. The type must
/// be no larger than `FILE_BYTES`.
pub unsafe trait RegionFile {
    /// The file's size in bytes.
    const FILE_BYTES: usize;
}

// SAFETY: the type consists of integers and atomic integers; `aliquot_abi` asserts that it fits into the file.
unsafe impl RegionFile for Limits {
    const FILE_BYTES: usize = LIMITS_FILE_BYTES;
}

// SAFETY: as above.
unsafe impl RegionFile for Ledger {
    const FILE_BYTES: usize = LEDGER_FILE_BYTES;
}

impl<T: RegionFile> Mapped<T> {
    /// Maps the file at `path`, which must have its full size.
    #[must_use]
    pub fn open(path: &Path) -> Mapped<T> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
        let size = file.metadata().expect("an open file has a size").len();
        assert_eq!(size, T::FILE_BYTES as u64, "the size of {}", path.display());
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of an open file of this length; the kernel chooses an address that is not in use.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), T::FILE_BYTES, protection, MapFlags::SHARED, &file, 0) };
        let address = address.unwrap_or_else(|error| panic!("cannot map {}: {error}", path.display()));
        Mapped { address: NonNull::new(address.cast()).expect("a mapping is not at 0") }
    }
}

impl<T: RegionFile> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped until this is dropped, page-aligned, and valid whatever its bytes are.
        unsafe { self.address.as_ref() }
    }
}

impl<T: RegionFile> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), T::FILE_BYTES) };
    }
}

// SAFETY: the contents are atomics, and the mapping belongs to the process, not to a thread.
unsafe impl<T: RegionFile> Send for Mapped<T> {}
// SAFETY: as above.
unsafe impl<T: RegionFile> Sync for Mapped<T> {}

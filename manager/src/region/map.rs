//! A shared file, mapped as the type that it contains.

use std::fs::{File, OpenOptions};
use std::ops::Deref;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::{io, ptr};

use aliquot_abi::region::{Ledger, Limits};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::region::OpenRegionError;
use crate::region::fault::Guard;

/// A type that a region's file contains.
///
/// # Safety
/// The type is `repr(C)`, any bytes are a valid value of it, and all fields that another process may change while it is
/// mapped are atomics.
pub(super) unsafe trait Shared {}

// SAFETY: it consists of integers and atomic integers. Only the maker of the file writes the fields that are not
// atomic, before the file is published.
unsafe impl Shared for Limits {}
// SAFETY: it consists of integers and atomic integers. The fields that are not atomic are reserved: no process reads or
// writes them.
unsafe impl Shared for Ledger {}

/// A shared, writable mapping of a file that holds a `T`.
pub(super) struct Mapping<T: Shared> {
    address: NonNull<T>,
    bytes: usize,
    guard: Guard,
}

// SAFETY: a mapping belongs to the whole process, and `T` is reached through atomics.
unsafe impl<T: Shared> Send for Mapping<T> {}
// SAFETY: a mapping belongs to the whole process, and `T` is reached through atomics.
unsafe impl<T: Shared> Sync for Mapping<T> {}

impl<T: Shared> Mapping<T> {
    /// Opens the file `path` and maps its first `bytes` bytes; it must be at least that long.
    pub(super) fn open(path: &Path, bytes: usize) -> Result<(Mapping<T>, File), OpenRegionError> {
        let io = |source| OpenRegionError::Io { path: path.into(), source };
        let mut options = OpenOptions::new();
        // A container may have replaced the file by anything.
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(io(io::Error::new(io::ErrorKind::InvalidData, "not a regular file")));
        }
        if metadata.len() < bytes as u64 {
            let (found_bytes, expected_bytes) = (metadata.len(), bytes as u64);
            return Err(OpenRegionError::Size { path: path.into(), found_bytes, expected_bytes });
        }
        Ok((Mapping::new(&file, bytes).map_err(io)?, file))
    }

    /// Maps the first `bytes` bytes of `file`.
    pub(super) fn new(file: &File, bytes: usize) -> io::Result<Mapping<T>> {
        if bytes < size_of::<T>() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory in use.
        let address =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        let address = NonNull::new(address).ok_or(io::ErrorKind::OutOfMemory)?;
        match Guard::new(address.as_ptr() as usize, bytes) {
            Ok(guard) => Ok(Mapping { address: address.cast(), bytes, guard }),
            Err(error) => {
                // SAFETY: it was mapped above, and nothing refers to it.
                let _ = unsafe { munmap(address.as_ptr(), bytes) };
                Err(error)
            }
        }
    }

    /// Whether an access has found a page of the mapping missing.
    pub(super) fn is_damaged(&self) -> bool {
        self.guard.is_damaged()
    }
}

impl<T: Shared> Deref for Mapping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the memory is mapped as long as `self` lives, page-aligned, and at least as long as a `T`; any bytes
        // are a `T` by the trait's contract. A missing page is replaced before the access completes.
        unsafe { self.address.as_ref() }
    }
}

impl<T: Shared> Drop for Mapping<T> {
    fn drop(&mut self) {
        // Done first, so that the handler never touches an address that the kernel has given to another mapping.
        self.guard.release();
        // SAFETY: it was mapped in `new`, and no reference outlives `self`.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

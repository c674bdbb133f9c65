//! Anonymous files that back device memory, so that it can be mapped twice and shared with other processes. Processes
//! that share memory really share its bytes.

use core::ffi::{CStr, c_int, c_void};

pub(crate) struct Backing {
    descriptor: c_int,
    /// Identifies the file. A program may close descriptors that it does not know, and open another file under the same
    /// number.
    inode: u64,
}

/// The place of a file, with which another process can open it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct BackingPlace {
    pub(crate) process_id: u32,
    descriptor: c_int,
    inode: u64,
}

fn inode_of(descriptor: c_int) -> Option<u64> {
    // SAFETY: zeroed memory is a valid `stat`, and the call writes nothing else.
    unsafe {
        let mut status: libc::stat = core::mem::zeroed();
        (libc::fstat(descriptor, &mut status) == 0).then_some(status.st_ino)
    }
}

impl Backing {
    /// Makes a file of `bytes` zeros. It takes no memory until it is written.
    pub(crate) fn create(name: &CStr, bytes: u64) -> Option<Backing> {
        // SAFETY: the name is NUL-terminated.
        let descriptor = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        let backing = Backing::own(descriptor)?;
        backing.grow(bytes).then_some(backing)
    }

    /// Takes ownership of a descriptor of such a file.
    pub(crate) fn own(descriptor: c_int) -> Option<Backing> {
        if descriptor < 0 {
            return None;
        }
        Some(Backing { descriptor, inode: inode_of(descriptor)? })
    }

    /// The file's inode number, which identifies it.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// The descriptor, if the program has not closed it.
    fn descriptor(&self) -> Option<c_int> {
        (inode_of(self.descriptor) == Some(self.inode)).then_some(self.descriptor)
    }

    /// Makes the file `bytes` long.
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        // SAFETY: the descriptor is this file's; the call touches no memory of the process.
        self.descriptor().is_some_and(|descriptor| unsafe { libc::ftruncate(descriptor, bytes as i64) } == 0)
    }

    /// Maps a part of the file. If `address` is not 0, the pages there are replaced.
    pub(crate) fn map(&self, offset: u64, bytes: u64, address: u64, protection: c_int) -> Option<u64> {
        let fixed = if address == 0 { 0 } else { libc::MAP_FIXED };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
        let target = address as *mut c_void;
        // SAFETY: without an address no mapping is replaced; with one the caller owns the pages.
        let mapped =
            unsafe { libc::mmap(target, bytes as usize, protection, flags, self.descriptor()?, offset as i64) };
        (mapped != libc::MAP_FAILED).then_some(mapped as u64)
    }

    /// Discards the contents of a part of the file.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) {
        if let Some(descriptor) = self.descriptor() {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: the descriptor is this file's; the caller says that this part is not used any more.
            unsafe { libc::fallocate(descriptor, mode, offset as i64, bytes as i64) };
        }
    }

    /// Another descriptor of the file, for the program.
    pub(crate) fn duplicate(&self) -> Option<c_int> {
        // SAFETY: the descriptor is this file's.
        let copy = unsafe { libc::fcntl(self.descriptor()?, libc::F_DUPFD_CLOEXEC, 0) };
        (copy >= 0).then_some(copy)
    }

    /// Reads from the file.
    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) -> bool {
        let count = target.len();
        // SAFETY: the slice has room for that many bytes.
        let read = self
            .descriptor()
            .map(|descriptor| unsafe { libc::pread(descriptor, target.as_mut_ptr().cast(), count, offset as i64) });
        read == Some(count as isize)
    }

    /// Writes to the file.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        let count = bytes.len();
        // SAFETY: the slice has that many bytes.
        let written = self
            .descriptor()
            .map(|descriptor| unsafe { libc::pwrite(descriptor, bytes.as_ptr().cast(), count, offset as i64) });
        written == Some(count as isize)
    }

    pub(crate) fn bytes(&self) -> Option<u64> {
        // SAFETY: the descriptor is this file's; the file offset that this changes is not used.
        let end = unsafe { libc::lseek(self.descriptor()?, 0, libc::SEEK_END) };
        u64::try_from(end).ok()
    }

    /// The place by which another process can open the file while this process lives.
    pub(crate) fn place(&self) -> BackingPlace {
        BackingPlace { process_id: std::process::id(), descriptor: self.descriptor, inode: self.inode }
    }

    /// Opens a file of another process, if that process is alive and this one may access it.
    pub(crate) fn open(place: &BackingPlace) -> Option<Backing> {
        let path = format!("/proc/{}/fd/{}\0", place.process_id, place.descriptor);
        // SAFETY: the path is NUL-terminated.
        let descriptor = unsafe { libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC) };
        Backing::own(descriptor).filter(|backing| backing.inode == place.inode)
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor() {
            // SAFETY: the descriptor is this file's, and is not used after this.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Ends a mapping.
///
/// # Safety
/// The pages belong to the caller and are not used any more.
pub(crate) unsafe fn unmap(address: u64, bytes: u64) {
    // SAFETY: by this function's contract.
    unsafe { libc::munmap(address as *mut c_void, bytes as usize) };
}

/// A structure that is passed in files and handles as bytes.
///
/// # Safety
/// It is `repr(C)`, of integers only, without padding: every byte is initialised, and any bytes are a valid value.
pub(crate) unsafe trait Plain: Copy {
    fn bytes(&self) -> &[u8] {
        // SAFETY: by the trait's contract all of them are initialised.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// The value at the start of `bytes`, if they are long enough.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        // SAFETY: there are enough bytes, and by the trait's contract any bytes are a valid value.
        (bytes.len() >= size_of::<Self>()).then(|| unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

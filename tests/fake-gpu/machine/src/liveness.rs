//! Tells which processes are alive, by POSIX record locks on the bytes of the lock file.
//!
//! Such a lock belongs to the process (not to a thread or descriptor), is not inherited by a fork, and is lost when the
//! process closes *any* descriptor of the file. So a descriptor of the lock file is never closed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libc::c_int;

use crate::PROCESSES_MAX;

/// The lock file, open for the life of the process.
pub(crate) struct LifeLocks {
    descriptor: RawFd,
    /// A record lock does not exclude other threads of the same process; this mutex does.
    registry: Mutex<()>,
}

/// The right to give out and to free records, until dropped.
pub(crate) struct Registry<'a> {
    locks: &'a LifeLocks,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for Registry<'_> {
    fn drop(&mut self) {
        let mut lock = byte(PROCESSES_MAX, libc::F_UNLCK);
        // SAFETY: the descriptor is open for ever and `lock` is a valid flock structure.
        unsafe { libc::fcntl(self.locks.descriptor, libc::F_SETLK, &raw mut lock) };
    }
}

/// The identity of a process, as numbers that another library in the same process can compare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    pub(crate) pid_namespace: u64,
    pub(crate) start_ticks: u64,
}

impl Identity {
    pub(crate) fn own() -> Identity {
        let pid_namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
        let start_ticks = std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| start_ticks(&stat));
        Identity { pid: std::process::id(), pid_namespace, start_ticks: start_ticks.unwrap_or(0) }
    }
}

/// Field 22 of `/proc/PID/stat`. The name in field 2 may contain spaces and parentheses, so counting starts after it.
fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

impl LifeLocks {
    /// Opens the lock file, making it if need be, usable by every user.
    pub(crate) fn open(path: &Path) -> io::Result<LifeLocks> {
        let file = open_for_all(path)?;
        Ok(LifeLocks { descriptor: file.into_raw_fd(), registry: Mutex::new(()) })
    }

    /// Waits for the right to give out and to free records. The kernel releases this lock when the process ends.
    pub(crate) fn registry(&self) -> io::Result<Registry<'_>> {
        let threads = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lock = byte(PROCESSES_MAX, libc::F_WRLCK);
        // SAFETY: the descriptor is open for ever and `lock` is a valid flock structure.
        while unsafe { libc::fcntl(self.descriptor, libc::F_SETLKW, &raw mut lock) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(Registry { locks: self, _threads: threads })
    }

    /// Locks byte `index` for this process. Returns false if another process has it.
    pub(crate) fn take(&self, index: usize) -> io::Result<bool> {
        let mut lock = byte(index, libc::F_WRLCK);
        // SAFETY: the descriptor is open for ever and `lock` is a valid flock structure.
        if unsafe { libc::fcntl(self.descriptor, libc::F_SETLK, &raw mut lock) } == 0 {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EAGAIN)) => Ok(false),
            error => Err(error),
        }
    }

    /// The process id, in this process's namespace, of another process that has locked byte `index`; 0 if it has no id
    /// in this namespace.
    pub(crate) fn holder(&self, index: usize) -> Option<u32> {
        let mut lock = byte(index, libc::F_WRLCK);
        // SAFETY: the descriptor is open for ever and `lock` is a valid flock structure, which the kernel fills in.
        let result = unsafe { libc::fcntl(self.descriptor, libc::F_GETLK, &raw mut lock) };
        if result != 0 {
            // Without an answer no process may be treated as dead.
            return Some(0);
        }
        (lock.l_type != libc::F_UNLCK as i16).then(|| u32::try_from(lock.l_pid).unwrap_or(0))
    }
}

fn byte(index: usize, kind: c_int) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: index as i64, l_len: 1, l_pid: 0 }
}

/// Opens `path` for reading and writing. If this creates the file, every user may use it, whatever the umask is.
pub(crate) fn open_for_all(path: &Path) -> io::Result<File> {
    match OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(path) {
        Ok(file) => {
            file.set_permissions(std::fs::Permissions::from_mode(0o666))?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            OpenOptions::new().read(true).write(true).open(path)
        }
        Err(error) => Err(error),
    }
}

/// The lock of a whole file, until dropped.
pub(crate) struct WholeFileLock<'a>(&'a File);

impl WholeFileLock<'_> {
    /// Waits for the lock of `file`.
    pub(crate) fn take(file: &File) -> io::Result<WholeFileLock<'_>> {
        // SAFETY: the descriptor is open.
        while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(WholeFileLock(file))
    }
}

impl Drop for WholeFileLock<'_> {
    fn drop(&mut self) {
        // Closing the file would not release the lock, because a mapping of the file keeps it.
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(test)]
mod tests {
    use super::start_ticks;

    #[test]
    fn start_time_is_found_behind_any_process_name() {
        let fields = (3..=30).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(start_ticks(&format!("7 (a b) c)) {fields}")), Some(22));
        assert_eq!(start_ticks("7 (a"), None);
    }
}

//! Keeps a second manager out of the directories of a running one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tracing::{info, warn};

use super::OpenError;
use crate::procfs::Stat;

/// How long to wait for locks. A manager that was killed can leave a child that has not reached its exec yet and still
/// holds the locks. On an overloaded machine its exec can take long.
const PATIENCE: Duration = Duration::from_secs(5);
const RETRY: Duration = Duration::from_millis(10);

/// Locks against a second manager, held until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Whether this manager waits for another one that holds a lock, however long that runs.
    stands_by: bool,
    files: Vec<File>,
}

impl Locks {
    /// A set without locks. With `stands_by`, taking a lock waits for the manager that holds it, however long that
    /// runs.
    pub(super) fn new(stands_by: bool) -> Locks {
        Locks { stands_by, files: Vec::new() }
    }

    /// Adds the lock of `dir`.
    ///
    /// # Errors
    /// Another manager holds it, or it cannot be locked.
    pub(super) fn take(&mut self, dir: &Path) -> Result<(), OpenError> {
        let error = |source: io::Error| OpenError::Dir { path: dir.into(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(dir.join("manager.lock")).map_err(error)?;
        let patience = Instant::now() + PATIENCE;
        let mut told = None;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(error(errno.into())),
            }
            let holder = Holder::read(&file).filter(Holder::is_alive);
            let waits = if holder.is_some() { self.stands_by } else { self.stands_by || Instant::now() < patience };
            if !waits {
                return Err(OpenError::Locked { path: dir.into(), holder: holder.map(|holder| holder.name()) });
            }
            if told != Some(holder.is_some()) {
                told = Some(holder.is_some());
                match holder {
                    Some(holder) => {
                        info!(dir = %dir.display(), holder = holder.name(), "standing by for another manager")
                    }
                    None => warn!(dir = %dir.display(), "waiting for what a manager that was killed has left behind"),
                }
            }
            thread::sleep(RETRY);
        }
        // On a full disk the file does not name the holder.
        let _ = Holder::this_process().map(|holder| holder.write(&file));
        self.files.push(file);
        Ok(())
    }
}

impl Drop for Locks {
    /// Unlocks explicitly: closing a file does not unlock it while a child that another thread is starting still has it
    /// open.
    fn drop(&mut self) {
        for file in &self.files {
            // If this fails, the lock ends when the file is closed.
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

/// The holder of a lock, as named in its file.
struct Holder {
    pid: u32,
    start_time: u64,
}

impl Holder {
    fn this_process() -> Option<Holder> {
        let pid = std::process::id();
        Some(Holder { pid, start_time: Stat::of(pid)?.start_time })
    }

    fn read(file: &File) -> Option<Holder> {
        let mut bytes = [0; 64];
        let length = file.read_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(bytes.get(..length)?).ok()?;
        let mut words = text.split_whitespace();
        Some(Holder { pid: words.next()?.parse().ok()?, start_time: words.next()?.parse().ok()? })
    }

    /// Always the same length, so it overwrites the former text completely.
    fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(format!("{:10} {:20}\n", self.pid, self.start_time).as_bytes(), 0)
    }

    fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.start_time == self.start_time && !stat.has_ended())
    }

    fn name(&self) -> String {
        let name = fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        format!("process {} ({})", self.pid, String::from_utf8_lossy(&name).trim_end())
    }
}

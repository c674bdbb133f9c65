//! The time until which the jobs of this node may run: a file that the agent writes and every supervisor reads.
//!
//! The file is overwritten in place, so a full disk does not end the lease. A restart of the machine ends it: the clock
//! begins anew then, and a file from before the restart is not believed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::clock;

/// The time until which jobs may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Lease {
    /// When the lease lapses, by the clock of [`boot_ms`](crate::clock::boot_ms); 0 if there is none.
    pub(crate) end_ms: u64,
    /// The lease's length when it was given.
    pub(crate) length_ms: u64,
}

impl Lease {
    /// Whether jobs may run now.
    pub(crate) fn is_held(self, now_ms: u64) -> bool {
        now_ms < self.end_ms
    }

    /// When processes that still run are killed. This is before the lease lapses, because a busy machine may be late
    /// with it.
    pub(crate) fn kill_ms(self) -> u64 {
        self.end_ms.saturating_sub(self.length_ms / 10)
    }

    /// When jobs with this grace are asked to end, if the lease is not extended by then.
    pub(crate) fn terminate_ms(self, grace_ms: u64) -> u64 {
        self.kill_ms().saturating_sub(grace_ms.min(self.length_ms / 5))
    }
}

/// The file with the lease: two numbers, and a third one as a check. The check is right only if both numbers are whole
/// and were written since this start of the machine.
pub(crate) struct LeaseFile {
    file: File,
    /// The number of this start of the machine.
    boot: u64,
}

impl LeaseFile {
    /// Makes the file, for the agent.
    pub(crate) fn create(path: &Path) -> io::Result<LeaseFile> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        Ok(LeaseFile { file, boot: number_of(&clock::boot_id()) })
    }

    /// Opens the file, for a supervisor.
    pub(crate) fn open(path: &Path) -> io::Result<LeaseFile> {
        Ok(LeaseFile { file: File::open(path)?, boot: number_of(&clock::boot_id()) })
    }

    /// The lease; `None` if none was given since the machine was started, or the file is being written.
    pub(crate) fn read(&self) -> Option<Lease> {
        let mut bytes = [0; 24];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (end_ms, length_ms) = (number(0)?, number(8)?);
        (number(16)? == end_ms ^ length_ms ^ self.boot).then_some(Lease { end_ms, length_ms })
    }

    /// Gives the jobs this lease.
    pub(crate) fn write(&self, lease: Lease) -> io::Result<()> {
        let Lease { end_ms, length_ms } = lease;
        let numbers = [end_ms, length_ms, end_ms ^ length_ms ^ self.boot];
        self.file.write_all_at(&numbers.map(u64::to_le_bytes).concat(), 0)
    }
}

/// The first 16 hexadecimal digits of a boot id, which is random.
fn number_of(boot_id: &str) -> u64 {
    let digits: String = boot_id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn supervisors_read_what_the_agent_has_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lease");
        let written = LeaseFile::create(&path).unwrap();
        let read = LeaseFile::open(&path).unwrap();
        assert_eq!(read.read(), None);
        for end_ms in [30_000, 40_000] {
            let lease = Lease { end_ms, length_ms: 20_000 };
            written.write(lease).unwrap();
            assert_eq!(read.read(), Some(lease));
        }
        written.file.write_all_at(&[1], 0).unwrap();
        assert_eq!(read.read(), None);
    }

    #[test]
    fn a_lease_does_not_outlive_a_restart_of_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lease");
        let written = LeaseFile::create(&path).unwrap();
        written.write(Lease { end_ms: 30_000, length_ms: 20_000 }).unwrap();
        let later = number_of("5f0e1d2c-aaaa-4bbb-8ccc-0123456789ab");
        assert_eq!(later, 0x5f0e_1d2c_aaaa_4bbb);
        assert_ne!(written.boot, 0);
        assert_eq!(LeaseFile { boot: later, ..LeaseFile::open(&path).unwrap() }.read(), None);
        assert!(LeaseFile::open(&path).unwrap().read().is_some());
    }

    #[test]
    fn a_job_is_asked_and_killed_before_the_lease_lapses() {
        let lease = Lease { end_ms: 100_000, length_ms: 30_000 };
        assert!(lease.is_held(99_999) && !lease.is_held(100_000));
        assert_eq!(lease.kill_ms(), 97_000);
        assert_eq!(lease.terminate_ms(1_000), 96_000);
        assert_eq!(lease.terminate_ms(60_000), 91_000);
    }
}

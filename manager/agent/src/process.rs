//! Processes of this machine, by names that are never used again, and the end of whole trees of them.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// A process, named uniquely as long as the machine runs: its id can be used again, but not with the same start time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    /// The process id in this process's pid namespace.
    pub(crate) pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    start_time: u64,
}

struct Stat {
    state: u8,
    parent: i32,
    start_time: u64,
}

impl ProcessId {
    /// The process that has this id now.
    pub(crate) fn of(pid: i32) -> Option<ProcessId> {
        let stat = stat(pid)?;
        Some(ProcessId { pid, start_time: stat.start_time })
    }

    /// Whether the process can still do something. A process that has ended but was not waited for cannot.
    pub(crate) fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.start_time == self.start_time && !matches!(stat.state, b'Z' | b'X'))
    }

    /// Sends the process a signal. Does nothing if it has ended.
    pub(crate) fn signal(self, signal: Signal) {
        // SAFETY: the call takes two numbers and no pointer.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        let Some(descriptor) = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0) else { return };
        // SAFETY: the kernel has just returned this descriptor, so nothing else owns it.
        let pidfd = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // The descriptor stays with one process, so a reuse of the id is noticed.
        if self.is_alive() {
            let no_info = std::ptr::null::<libc::siginfo_t>();
            // SAFETY: the descriptor is open, and the kernel takes a null pointer as "no information".
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal as i32, no_info, 0) };
        }
    }
}

fn stat(pid: i32) -> Option<Stat> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the file. The name of the program is in parentheses, and may itself contain any byte.
fn parse(stat: &[u8]) -> Option<Stat> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(name_end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let parent = fields.next()?.parse().ok()?;
    // Field 22; field 5 comes next.
    let start_time = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, start_time })
}

/// Kills all descendants of this process, which must be their reaper, and returns when none is left.
///
/// Processes that they fork meanwhile are killed in the next round. Each round removes parents that could fork.
pub fn kill_descendants() {
    loop {
        for pid in descendants(std::process::id().cast_signed()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        // Waits until one descendant has ended, and then takes all that have.
        match waitpid(None, None) {
            Ok(_) => while !matches!(waitpid(None, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(_)) {},
            Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

fn descendants(of: i32) -> Vec<i32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parents: Vec<(i32, i32)> = pids.filter_map(|pid| Some((pid, stat(pid)?.parent))).collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        found.extend(parents.iter().filter(|(pid, of)| *of == parent && *pid != parent).map(|(pid, _)| *pid));
    }
    found.remove(0);
    found
}

/// A path to the program of this process, valid even after its file was replaced.
pub(crate) fn own_program() -> &'static str {
    "/proc/self/exe"
}

/// The last error of the C library.
pub(crate) fn from_errno(errno: nix::errno::Errno) -> io::Error {
    io::Error::from_raw_os_error(errno as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_program_does_not_confuse() {
        let line = b"7 (a) b) R 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let stat = parse(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.start_time), (b'R', 3, 4711));
        assert!(parse(b"").is_none() && parse(b"7 (a) R").is_none());
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let id = ProcessId::of(child.id().cast_signed()).unwrap();
        assert!(id.is_alive());
        assert!(!ProcessId { start_time: id.start_time + 1, ..id }.is_alive());
        ProcessId { start_time: id.start_time + 1, ..id }.signal(Signal::SIGKILL);
        assert!(id.is_alive());
        id.signal(Signal::SIGKILL);
        child.wait().unwrap();
        assert!(!id.is_alive());
    }
}

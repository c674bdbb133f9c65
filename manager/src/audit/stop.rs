//! Stops a process, and never another one that got its pid in the meantime.

use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::attribution::ProcessId;
use crate::procfs::Stat;

/// Ends `process` with SIGKILL if `is_guilty` still confirms it. Returns whether it did; `false` if it has ended by
/// itself.
///
/// # Errors
/// The kernel refuses.
pub(super) fn stop(process: ProcessId, is_guilty: impl FnOnce() -> bool) -> io::Result<bool> {
    let Some(pid) = Pid::from_raw(process.pid.cast_signed()) else { return Ok(false) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    // From here on the descriptor names one process for good; now check that it is the intended one.
    let is_it = Stat::of(process.pid).is_some_and(|stat| stat.start_time == process.start_time && !stat.has_ended());
    if !is_it || !is_guilty() {
        return Ok(false);
    }
    match pidfd_send_signal(&pidfd, Signal::KILL) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> (Child, ProcessId) {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let start_time = Stat::of(child.id()).unwrap().start_time;
        let pid = child.id();
        (child, ProcessId { pid, start_time })
    }

    #[test]
    fn only_the_same_process_is_stopped_and_only_while_the_finding_holds() {
        let (mut child, process) = sleeper();
        let other = ProcessId { start_time: process.start_time + 1, ..process };
        assert!(!stop(other, || true).unwrap());
        assert!(!stop(process, || false).unwrap());
        assert!(child.try_wait().unwrap().is_none());
        assert!(stop(process, || true).unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(!stop(process, || true).unwrap());
    }
}

//! Processes that the check starts: each ends with the check, and can be ended with all that it has started.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Time until a killed process is given up. One that the driver keeps in the kernel does not end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Starts `command` in a process group of its own. It gets SIGTERM if the check ends before it, for example because
/// the time for which the machine is lent is over.
pub(crate) fn start(command: &mut Command) -> anyhow::Result<Child> {
    command.process_group(0);
    // SAFETY: between fork and exec the closure only makes a system call. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGTERM)?)) };
    command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// Asks `child` to end, so that it can end what it has started, and kills its group after `grace`.
pub(crate) fn end(child: &mut Child, grace: Duration) {
    let pid = Pid::from_raw(child.id() as i32);
    if !ends_within(child, Duration::ZERO) {
        // Fails if it has just ended.
        let _ = kill(pid, Signal::SIGTERM);
        ends_within(child, grace);
    }
    // Fails if nothing of the group is left.
    let _ = killpg(pid, Signal::SIGKILL);
    ends_within(child, KILL_TIMEOUT);
}

/// Whether `child` ends in this time.
fn ends_within(child: &mut Child, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    loop {
        // An error means that it has been waited for.
        if !child.try_wait().is_ok_and(|status| status.is_none()) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

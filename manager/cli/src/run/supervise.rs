//! The parent of a command: hands signals on, follows its stops, waits for its end.
//!
//! The command stays in this process's group, as with `nice` or `env`: so job control, pipelines and the terminal's
//! foreground group are as if the shell had started it itself. What the terminal sends goes to the whole group, and the
//! command has it already; what somebody sends to this process alone is handed on.
//!
//! What the command leaves behind becomes a child of this process, as it otherwise would of the machine's first one: so
//! that daemons stay descendants of the slice's owner, by which the manager knows whose they are.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, raise, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use super::status;
use crate::error::{Failure, Result, exit};

/// Signals that are handed on.
const FORWARDED: [Signal; 9] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// Receives this process's signals on behalf of a command. Of all threads that start later, too.
pub(crate) struct Supervisor {
    signals: SignalFd,
    /// What was blocked before, and is again for the command.
    inherited_mask: SigSet,
    /// The limit on open files, which a manager in this process raises. Programs that use `select` break with a high one.
    inherited_files: (rlim_t, rlim_t),
}

impl Supervisor {
    /// Begins to hold signals back, so that none ends this process while it has something to clean up.
    pub(crate) fn new() -> Result<Supervisor> {
        let failed = |error: Errno| Failure::new(format!("cannot receive signals: {error}"));
        let mut mask: SigSet = FORWARDED.into_iter().collect();
        mask.add(Signal::SIGCHLD);
        let mut inherited_mask = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), Some(&mut inherited_mask)).map_err(failed)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(failed)?;
        let inherited_files = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
        Ok(Supervisor { signals, inherited_mask, inherited_files })
    }

    /// A signal that has asked this process to end before there was a command to hand it on to.
    pub(crate) fn end_asked_for(&self) -> Result<Option<Signal>> {
        while let Some(info) = self.next()? {
            match signal_of(&info) {
                Some(end @ (Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT)) => {
                    return Ok(Some(end));
                }
                _ => continue,
            }
        }
        Ok(None)
    }

    /// Starts `command`, with the signals blocked and the limit on open files that this program was started with.
    pub(crate) fn spawn(&self, mut command: Command) -> Result<Child> {
        let (mask, (soft, hard)) = (self.inherited_mask, self.inherited_files);
        let prepare = move || {
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?)
        };
        // SAFETY: between fork and exec the closure only makes the system calls setrlimit and sigprocmask, which are
        // async-signal-safe; it allocates nothing and takes no lock.
        unsafe { command.pre_exec(prepare) };
        command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy();
            let code = status::of_start_error(&error);
            let hint = match code {
                exit::NOT_FOUND => "write the path of a program, or the name of one on the PATH",
                _ => "it must be a program for this machine that this user may execute",
            };
            Failure::new(format!("cannot run {program:?}: {error}")).hint(hint).exit(code)
        })
    }

    /// Runs `command` to its end.
    pub(crate) fn run(&self, command: Command) -> Result<ExitCode> {
        // Kernels without it leave daemons to the first process, and the manager to what it finds out without
        // ancestors.
        let _ = set_child_subreaper(true);
        let child = self.spawn(command)?;
        let pid = Pid::from_raw(child.id() as i32);
        loop {
            self.wait_readable()?;
            while let Some(info) = self.next()? {
                match signal_of(&info) {
                    Some(Signal::SIGCHLD) => {
                        if let Some(code) = follow(pid)? {
                            return Ok(code);
                        }
                        reap_adopted(pid);
                    }
                    // From the terminal, so to the whole group. A window's size may be asked for at any time: that is
                    // harmless.
                    Some(_) if info.ssi_code == libc::SI_KERNEL => {}
                    // It may have just ended: then there is nobody to hand it to, and SIGCHLD is on its way.
                    Some(signal) => drop(kill(pid, signal)),
                    None => {}
                }
            }
        }
    }

    fn wait_readable(&self) -> Result<()> {
        match poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            // A stop and its end interrupt the call.
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(Failure::new(format!("cannot wait for signals: {error}"))),
        }
    }

    fn next(&self) -> Result<Option<siginfo>> {
        self.signals.read_signal().map_err(|error| Failure::new(format!("cannot receive signals: {error}")))
    }
}

fn signal_of(info: &siginfo) -> Option<Signal> {
    Signal::try_from(info.ssi_signo as i32).ok()
}

/// Takes the entries of adopted children that have ended. It stops at the first one that it cannot take, which may be
/// the command itself: that one is left to [`follow`], to which the next signal leads.
fn reap_adopted(command: Pid) {
    while let Ok(Some(ended)) =
        waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT).map(|status| status.pid())
        && ended != command
        && waitpid(ended, Some(WaitPidFlag::WNOHANG)).is_ok()
    {}
}

/// Takes note of all that has happened to the command: its exit code if it has ended, a stop of this process if job
/// control has stopped it, so that the shell sees the job stopped.
fn follow(pid: Pid) -> Result<Option<ExitCode>> {
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::StillAlive) => return Ok(None),
            Ok(WaitStatus::Stopped(_, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)) => {
                let stopped = raise(Signal::SIGSTOP).and_then(|()| kill(pid, Signal::SIGCONT));
                // It may have been ended while it was stopped: the next turn of the loop tells.
                if let Err(error) = stopped
                    && error != Errno::ESRCH
                {
                    return Err(Failure::new(format!("cannot stop and continue with the command: {error}")));
                }
            }
            Ok(other) => {
                if let Some(code) = status::of_wait(other) {
                    return Ok(Some(code));
                }
            }
            Err(Errno::EINTR) => {}
            Err(error) => return Err(Failure::new(format!("cannot wait for the command: {}", io::Error::from(error)))),
        }
    }
}

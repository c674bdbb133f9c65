//! The parent of a command: forwards signals, follows its stops, and waits for its end.
//!
//! The command stays in this process's group, as with `nice` or `env`. So job control, pipelines and the terminal's
//! foreground group work as if the shell had started the command itself. Signals from the terminal go to the whole
//! group, so the command gets them anyway. Signals to this process alone are forwarded.
//!
//! Orphans of the command become children of this process, and not of the machine's process 1. So daemons stay
//! descendants of the slice's owner, and the manager knows that they belong to the slice.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::resource::{Resource, getrlimit, rlim_t, setrlimit};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, raise, signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd, siginfo};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use super::status;
use crate::error::{Failure, Result, exit};

/// Signals that are forwarded.
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

/// Receives this process's signals on behalf of a command, also for all threads that start later.
pub(crate) struct Supervisor {
    signals: SignalFd,
    /// The signal mask of this process before; the command gets it.
    inherited_mask: SigSet,
    /// The limit on open files before, which an embedded manager raises. The command gets it, because programs that use
    /// `select` break with a high limit.
    inherited_files: (rlim_t, rlim_t),
}

impl Supervisor {
    /// Blocks the signals, so that none ends this process before it has cleaned up.
    pub(crate) fn new() -> Result<Supervisor> {
        let failed = |error: Errno| Failure::new(format!("cannot receive signals: {error}"));
        let mut mask: SigSet = FORWARDED.into_iter().collect();
        mask.add(Signal::SIGCHLD);
        // As timeout(1) does. Where the parent ignored the signal, so would this process, and never hear of its child's
        // end.
        // SAFETY: no handler is installed, and none is replaced: no thread has started that could have one.
        unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }.map_err(failed)?;
        let mut inherited_mask = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&mask), Some(&mut inherited_mask)).map_err(failed)?;
        let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map_err(failed)?;
        let inherited_files = getrlimit(Resource::RLIMIT_NOFILE).map_err(failed)?;
        Ok(Supervisor { signals, inherited_mask, inherited_files })
    }

    /// A signal that asked this process to end before there was a command to forward it to.
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

    /// Waits for the next signal.
    pub(crate) fn wait(&self) -> Result<Signal> {
        loop {
            if let Some(signal) = self.next()?.as_ref().and_then(signal_of) {
                return Ok(signal);
            }
            self.wait_readable()?;
        }
    }

    /// Starts `command` with the signal mask and the limit on open files that this program was started with.
    pub(crate) fn spawn(&self, mut command: Command) -> Result<Child> {
        let (mask, (soft, hard)) = (self.inherited_mask, self.inherited_files);
        let prepare = move || {
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard)?;
            Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&mask), None)?)
        };
        // SAFETY: between fork and exec the closure only makes the system calls setrlimit and sigprocmask, which are
        // async-signal-safe. It allocates nothing and takes no lock.
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
        // If the kernel lacks this, daemons become children of process 1, and the manager must attribute them without
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
                        reap_adopted(&[pid]);
                    }
                    // The signal comes from the terminal, so the whole group has got it. A change of the window size
                    // may also come from another process; it does no harm to lose that one.
                    Some(_) if info.ssi_code == libc::SI_KERNEL => {}
                    // If the command has just ended, the signal goes nowhere, and SIGCHLD follows.
                    Some(signal) => drop(kill(pid, signal)),
                    None => {}
                }
            }
        }
    }

    fn wait_readable(&self) -> Result<()> {
        match poll(&mut [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            // A stop, and the continuation after it, interrupt the call.
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

/// Reaps adopted children that have ended. It stops at the first one that it cannot reap, which may be one of its
/// `own`: the code that follows that child reaps it, at the next signal.
pub(crate) fn reap_adopted(own: &[Pid]) {
    while let Ok(Some(ended)) =
        waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT).map(|status| status.pid())
        && !own.contains(&ended)
        && waitpid(ended, Some(WaitPidFlag::WNOHANG)).is_ok()
    {}
}

/// Handles all state changes of the command. Returns its exit code if it has ended. If job control has stopped it,
/// stops this process too, so that the shell sees the job stopped.
fn follow(pid: Pid) -> Result<Option<ExitCode>> {
    loop {
        match waitpid(pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
            Ok(WaitStatus::StillAlive) => return Ok(None),
            Ok(WaitStatus::Stopped(_, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU)) => {
                let stopped = raise(Signal::SIGSTOP).and_then(|()| kill(pid, Signal::SIGCONT));
                // It may have been ended while it was stopped; the next iteration finds that out.
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

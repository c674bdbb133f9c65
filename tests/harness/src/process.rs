//! Processes that cannot hang a test.

use std::fmt;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open};

use crate::wait;

/// A process started by a test, in its own process group. Dropping it kills the group.
pub struct Process {
    child: Child,
    /// Readable once the process has ended.
    end: OwnedFd,
    command: String,
    stdout: File,
    stderr: File,
}

/// A process's exit status and output.
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The command line, for messages.
    pub command: String,
    /// The exit status, or the signal that ended it.
    pub status: ExitStatus,
    /// The process's standard output.
    pub stdout: String,
    /// The process's standard error.
    pub stderr: String,
}

/// Stops a process as SIGSTOP does, and returns once none of its threads runs. The signal alone only asks for that: a
/// thread that still runs can answer a request which the test sends meanwhile.
#[track_caller]
pub fn freeze(pid: u32) {
    signal_to(pid, Signal::STOP);
    let is_stopped = |thread: std::io::Result<fs::DirEntry>| {
        // A thread that is gone does not run either.
        let stat = thread.and_then(|thread| fs::read_to_string(thread.path().join("stat"))).ok();
        stat.is_none_or(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
    };
    wait::until_true("all threads are stopped", || {
        fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there").all(is_stopped)
    });
}

/// Lets a [frozen](freeze) process continue.
#[track_caller]
pub fn resume(pid: u32) {
    signal_to(pid, Signal::CONT);
}

#[track_caller]
fn signal_to(pid: u32, signal: Signal) {
    let of = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(of, signal).unwrap_or_else(|error| panic!("cannot signal process {pid}: {error}"));
}

/// Runs `command` to its end. Fails the test if it has not ended by the [deadline](wait::DEADLINE).
#[track_caller]
pub fn run(command: &mut Command) -> Outcome {
    Process::start(command).wait()
}

impl Process {
    /// Starts `command` with an empty standard input, and keeps its output.
    #[track_caller]
    pub fn start(command: &mut Command) -> Process {
        // Files rather than pipes, so the process never blocks on a test that does not read.
        let (stdout, stderr) = (tempfile::tempfile().expect("a file"), tempfile::tempfile().expect("a file"));
        let handed_on = |file: &File| Stdio::from(file.try_clone().expect("another descriptor"));
        command.stdin(Stdio::null()).stdout(handed_on(&stdout)).stderr(handed_on(&stderr)).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        // The child has not been reaped yet, so its process id cannot have been reused.
        let end = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("a child has a pidfd");
        Process { child, end, command: format!("{command:?}"), stdout, stderr }
    }

    /// The process id on this machine.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.command));
    }

    /// Kills the process with SIGKILL and waits for its end.
    #[track_caller]
    pub fn kill(self) -> Outcome {
        self.signal(Signal::KILL);
        self.wait()
    }

    /// Whether the process has ended.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// The process's standard output so far.
    #[must_use]
    pub fn output(&self) -> String {
        contents(&self.stdout)
    }

    /// The process's standard error so far.
    #[must_use]
    pub fn errors(&self) -> String {
        contents(&self.stderr)
    }

    /// Waits until the process has written `text` to its standard output. Fails the test if the process ends first.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        wait::until_true(&format!("{} says {text:?}", self.command), || {
            // Checks for the end before it reads the output, so text written just before the end is found.
            let ended = self.has_ended();
            let output = self.output();
            let said = output.contains(text);
            assert!(said || !ended, "{} ended without saying {text:?}:\n{output}{}", self.command, self.errors());
            said
        });
    }

    /// Waits for the process's end. Fails the test if it has not ended by the [deadline](wait::DEADLINE).
    #[track_caller]
    pub fn wait(mut self) -> Outcome {
        let timeout = Timespec { tv_sec: wait::DEADLINE.as_secs() as i64, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&self.end, PollFlags::IN)], Some(&timeout));
        assert_eq!(
            ready,
            Ok(1),
            "{} has not ended after {:?}:\n{}{}",
            self.command,
            wait::DEADLINE,
            self.output(),
            self.errors()
        );
        let status = self.child.wait().expect("a child can be waited for");
        Outcome { command: self.command.clone(), status, stdout: self.output(), stderr: self.errors() }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Also kills descendants that the process has left behind.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

fn contents(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().expect("an open file has a size").len() as usize];
    // Reads at a position: the process shares the file's offset.
    let length = file.read_at(&mut bytes, 0).expect("a file can be read");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

impl Outcome {
    /// Returns this outcome if the process ended with status 0. Otherwise fails the test and prints the process's
    /// output.
    #[track_caller]
    #[must_use]
    pub fn success(self) -> Outcome {
        assert!(self.status.success(), "{self:?}");
        self
    }

    /// Fails the test unless `other` has the same exit status and the same output.
    #[track_caller]
    pub fn assert_same(&self, other: &Outcome) {
        let what = |outcome: &Outcome| (outcome.status, outcome.stdout.clone(), outcome.stderr.clone());
        assert!(what(self) == what(other), "these two differ:\n{self:?}\n{other:?}");
    }

    /// Fails the test unless the process's standard output is exactly `text`.
    #[track_caller]
    pub fn assert_said(&self, text: &str) {
        assert_eq!(self.stdout, text, "{self:?}");
    }

    /// The signal that ended the process, if one did.
    #[must_use]
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.command, self.status)?;
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            writeln!(f, "--- {name}\n{text}")?;
        }
        Ok(())
    }
}

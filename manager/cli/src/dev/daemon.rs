//! A daemon of the cluster: a process that is started anew when it ends.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::error::{Failure, Result};
use crate::output;
use crate::run::Supervisor;

/// A daemon that ends sooner than this after its start cannot work, and is not started again.
const LIFE_MIN: Duration = Duration::from_secs(1);
/// Number of last lines of the log that are shown when a daemon ends.
const LINES_SHOWN: usize = 5;

/// A program, with its arguments, environment and log.
pub(super) struct Start {
    /// The daemon's name in messages, for example node-1.
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) environment: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    /// The file to which its output is appended.
    pub(super) log: PathBuf,
}

/// A daemon that runs.
pub(super) struct Daemon {
    start: Start,
    child: Child,
    begun: Instant,
}

impl Daemon {
    pub(super) fn start(supervisor: &Supervisor, start: Start) -> Result<Daemon> {
        let child = spawn(supervisor, &start)?;
        Ok(Daemon { start, child, begun: Instant::now() })
    }

    /// Starts the daemon again if it has ended.
    ///
    /// # Errors
    /// The daemon has ended at once, or cannot be started.
    pub(super) fn restart_ended(&mut self, supervisor: &Supervisor) -> Result<()> {
        let Some(status) = self.ended()? else { return Ok(()) };
        if self.begun.elapsed() < LIFE_MIN {
            return Err(self.failed(status));
        }
        output::say(format_args!("{} has ended ({status}), and is started again.", self.start.name));
        (self.child, self.begun) = (spawn(supervisor, &self.start)?, Instant::now());
        Ok(())
    }

    /// Fails if the daemon has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.ended()?.map_or(Ok(()), |status| Err(self.failed(status)))
    }

    /// The daemon's status if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let name = &self.start.name;
        self.child.try_wait().map_err(|error| Failure::new(format!("cannot find out whether {name} runs: {error}")))
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Asks the daemon to end.
    pub(super) fn terminate(&self) {
        // The daemon may have ended already.
        let _ = kill(self.pid(), Signal::SIGTERM);
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.start.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("{} has said: {}", self.start.name, lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n"))
    }

    fn failed(&self, status: ExitStatus) -> Failure {
        Failure::new(format!("{} has ended at once ({status})", self.start.name)).hint(self.last_words())
    }
}

fn spawn(supervisor: &Supervisor, start: &Start) -> Result<Child> {
    let failed = |error: io::Error| Failure::new(format!("cannot write {}: {error}", start.log.display()));
    let (output, errors) = log(&start.log).and_then(|log| Ok((log.try_clone()?, log))).map_err(failed)?;
    let mut command = Command::new(&start.program);
    command.args(&start.arguments).envs(start.environment.iter().map(|(name, value)| (name, value)));
    // Signals of the terminal are for this process, which ends the daemons in order.
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    // SAFETY: between fork and exec the closure only makes the system call prctl, which is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGTERM)?)) };
    supervisor.spawn(command)
}

fn log(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

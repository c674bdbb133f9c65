//! Starts workers, without or in a slice, and reads their output.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;

use crate::children;
use crate::way::{Limits, Share};

/// A worker that has not ended by then counts as hanging, unless it is given another time.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Time that `aliquot run` and its program get to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The most lines of output that are kept.
const LINES_MAX: usize = 10_000;
/// Time until the last output of a worker that has ended is read.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// When a part of the check must have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    end: Instant,
    /// The part's whole time.
    pub(crate) limit: Duration,
}

impl Deadline {
    /// The deadline of a part that begins now.
    pub(crate) fn after(limit: Duration) -> Deadline {
        Deadline { end: Instant::now() + limit, limit }
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        Instant::now() >= self.end
    }

    /// The time that is left.
    pub(crate) fn left(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

/// Everything needed to start a worker.
#[derive(Clone)]
pub(crate) struct Launcher {
    /// The command line of Aliquot.
    pub(crate) aliquot: PathBuf,
    /// The node manager's socket; `None`: `aliquot run` embeds one.
    pub(crate) socket: Option<PathBuf>,
    /// The limits of the limited slice.
    pub(crate) limits: Limits,
    /// The UUID of the device that is checked.
    pub(crate) device_uuid: String,
    /// The name of the slices; `None`: each gets a generated one.
    pub(crate) slice_name: Option<String>,
    /// Additional environment variables of all started programs.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// All workers are ended then.
    pub(crate) deadline: Deadline,
}

impl Launcher {
    /// The command that runs `program` in a slice of `share`, or without a slice.
    pub(crate) fn command(&self, share: Option<&Share>, program: &Path, args: &[&str]) -> Command {
        let Some(Share { core_percent, core_limit_percent, memory }) = share else {
            let mut command = Command::new(program);
            command.args(args).env("CUDA_VISIBLE_DEVICES", &self.device_uuid).envs(self.environment.iter().cloned());
            return command;
        };
        let mut command = Command::new(&self.aliquot);
        command.envs(self.environment.iter().cloned());
        if let Some(socket) = &self.socket {
            command.arg("--socket").arg(socket);
        }
        command.args(["run", "--gpu-core", &core_percent.to_string()]);
        command.args(["--gpu-core-limit", &core_limit_percent.to_string(), "--gpu-memory", memory]);
        if let Some(name) = &self.slice_name {
            command.args(["--name", name]);
        }
        command.args(["--device", &self.device_uuid, "--"]).arg(program).args(args);
        command
    }

    /// Starts a worker of this program.
    pub(crate) fn start(&self, share: Option<&Share>, args: &[&str]) -> anyhow::Result<Running> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let args: Vec<&str> = [&["worker"], args].concat();
        self.start_command(self.command(share, &program, &args))
    }

    /// Starts `command` as a worker.
    pub(crate) fn start_command(&self, command: Command) -> anyhow::Result<Running> {
        Running::start(command, self.deadline)
    }

    /// Starts `command` as a worker whose standard input ends with [`Running::let_go`].
    pub(crate) fn start_held(&self, command: Command) -> anyhow::Result<Running> {
        Running::start_with(command, Stdio::piped(), self.deadline)
    }

    /// Starts `command`; `None` if its program is not installed.
    pub(crate) fn start_if_installed(&self, command: Command) -> anyhow::Result<Option<Running>> {
        let is_missing = |error: &anyhow::Error| {
            let cause = error.root_cause().downcast_ref::<io::Error>();
            cause.is_some_and(|cause| cause.kind() == io::ErrorKind::NotFound)
        };
        match self.start_command(command) {
            Ok(running) => Ok(Some(running)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs a worker of this program to its end, and returns its output.
    pub(crate) fn run<T: DeserializeOwned>(&self, share: Option<&Share>, args: &[&str]) -> anyhow::Result<T> {
        self.start(share, args)?.answer()
    }
}

/// A running worker. Dropping this kills it and everything that it has started.
pub(crate) struct Running {
    child: Child,
    started: Instant,
    /// When it counts as hanging.
    timeout: Duration,
    deadline: Deadline,
    /// Its standard output and its standard error.
    output: [Output; 2],
}

/// A worker that has ended.
pub(crate) struct Ended {
    /// How it has ended.
    pub(crate) status: ExitStatus,
    /// The last line of its standard output.
    pub(crate) said: String,
    /// The last [`LINES_MAX`] lines of it.
    pub(crate) lines: String,
    /// The last lines of its standard error.
    pub(crate) complained: String,
}

impl Running {
    /// Starts `command` with an empty standard input. It is ended at `deadline`.
    pub(crate) fn start(command: Command, deadline: Deadline) -> anyhow::Result<Running> {
        Running::start_with(command, Stdio::null(), deadline)
    }

    fn start_with(mut command: Command, stdin: Stdio, deadline: Deadline) -> anyhow::Result<Running> {
        if deadline.has_passed() {
            bail!("not begun: the part had taken its {} s", deadline.limit.as_secs());
        }
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = children::start(&mut command)?;
        let (stdout, stderr) = (child.stdout.take().context("no pipe")?, child.stderr.take().context("no pipe")?);
        let output = [Output::read(stdout, LINES_MAX), Output::read(stderr, 5)];
        Ok(Running { child, started: Instant::now(), timeout: TIMEOUT, deadline, output })
    }

    /// Gives the worker another time after which it counts as hanging.
    pub(crate) fn within(mut self, timeout: Duration) -> Running {
        self.timeout = timeout;
        self
    }

    /// Whether the worker has not ended yet.
    pub(crate) fn is_running(&mut self) -> anyhow::Result<bool> {
        Ok(self.child.try_wait()?.is_none() && self.started.elapsed() <= self.timeout && !self.deadline.has_passed())
    }

    /// The last line of its standard output so far, if that is JSON for a `T`.
    pub(crate) fn said<T: DeserializeOwned>(&self) -> Option<T> {
        let [output, _] = &self.output;
        serde_json::from_str(output.lines().back()?).ok()
    }

    /// Ends the standard input of a worker from [`Launcher::start_held`].
    pub(crate) fn let_go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits until the worker ends. Ends one that hangs, which is an error.
    pub(crate) fn ended(mut self) -> anyhow::Result<Ended> {
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break Some(status),
                None if self.started.elapsed() > self.timeout || self.deadline.has_passed() => break None,
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        };
        let took = self.started.elapsed();
        // Also if it has ended: something that it has started may hold its output open.
        children::end(&mut self.child, END_TIMEOUT);
        let [lines, complained] = self.output.each_ref().map(Output::to_its_end);
        match status {
            Some(status) => {
                let said = lines.lines().next_back().unwrap_or_default().to_owned();
                Ok(Ended { status, said, lines, complained })
            }
            None if took > self.timeout => bail!("it hangs: ended after {} s; it says: {complained}", took.as_secs()),
            None => bail!(
                "ended after {} s, when the part had taken its {} s; it says: {complained}",
                took.as_secs(),
                self.deadline.limit.as_secs()
            ),
        }
    }

    /// Waits until the worker ends. A failure of the worker is an error.
    pub(crate) fn succeeded(self) -> anyhow::Result<Ended> {
        let ended = self.ended()?;
        if !ended.status.success() {
            bail!("{}; it says: {}", ended.status, ended.complained);
        }
        Ok(ended)
    }

    /// Waits until the worker ends, and returns the last line of its output. A failure of the worker is an error.
    pub(crate) fn last_line(self) -> anyhow::Result<String> {
        Ok(self.succeeded()?.said)
    }

    /// Like [`Running::last_line`], for output that is JSON.
    pub(crate) fn answer<T: DeserializeOwned>(self) -> anyhow::Result<T> {
        let said = self.last_line()?;
        serde_json::from_str(&said).with_context(|| format!("it says {said:?}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        children::end(&mut self.child, END_TIMEOUT);
    }
}

/// An output that is read as it comes.
struct Output {
    /// The last lines so far.
    lines: Arc<Mutex<VecDeque<String>>>,
    /// Hangs up when all of it has been read.
    end: mpsc::Receiver<()>,
}

impl Output {
    /// Reads `from` to its end, and keeps the last `count` lines.
    fn read(from: impl io::Read + Send + 'static, count: usize) -> Output {
        let (reading, end) = mpsc::channel();
        let output = Output { lines: Arc::default(), end };
        let lines = Arc::clone(&output.lines);
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
                let mut lines = locked(&lines);
                if lines.len() == count {
                    lines.pop_front();
                }
                lines.push_back(line);
            }
            drop(reading);
        });
        output
    }

    fn lines(&self) -> MutexGuard<'_, VecDeque<String>> {
        locked(&self.lines)
    }

    /// The last lines, when all of it has been read.
    fn to_its_end(&self) -> String {
        // If something holds the output open, what has been read until then is all.
        let _ = self.end.recv_timeout(OUTPUT_TIMEOUT);
        Vec::from(self.lines().clone()).join("\n")
    }
}

fn locked(lines: &Mutex<VecDeque<String>>) -> MutexGuard<'_, VecDeque<String>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

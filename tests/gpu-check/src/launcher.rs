//! Starts workers, without or in a slice, and reads their output.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;

use crate::way::{Limits, Share};

/// A worker that has not ended by then counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Time that `aliquot run` and its program get to end after SIGTERM.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Everything needed to start a worker.
pub(crate) struct Launcher {
    /// The command line of Aliquot.
    pub(crate) aliquot: PathBuf,
    /// The node manager's socket; `None`: `aliquot run` embeds one.
    pub(crate) socket: Option<PathBuf>,
    /// The limits of the limited slice.
    pub(crate) limits: Limits,
    /// The UUID of the device that is checked.
    pub(crate) device_uuid: String,
    /// Additional environment variables of all started programs.
    pub(crate) environment: Vec<(OsString, OsString)>,
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
        command.args(["--device", &self.device_uuid, "--"]).arg(program).args(args);
        command
    }

    /// Starts a worker of this program.
    pub(crate) fn start(&self, share: Option<&Share>, args: &[&str]) -> anyhow::Result<Running> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        let args: Vec<&str> = [&["worker"], args].concat();
        Running::start(self.command(share, &program, &args))
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
    /// Its standard output and standard error; taken when it is waited for.
    output: Option<JoinHandle<(String, String)>>,
}

impl Running {
    /// Starts `command`.
    pub(crate) fn start(mut command: Command) -> anyhow::Result<Running> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let (stdout, stderr) = (child.stdout.take().context("no pipe")?, child.stderr.take().context("no pipe")?);
        let output = std::thread::spawn(move || {
            let errors = std::thread::spawn(move || last_lines(stderr, 5));
            (last_lines(stdout, 1), errors.join().unwrap_or_default())
        });
        Ok(Running { child, started: Instant::now(), output: Some(output) })
    }

    /// Waits until the worker ends, and returns the last line of its output.
    pub(crate) fn answer<T: DeserializeOwned>(mut self) -> anyhow::Result<T> {
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break Some(status),
                None if self.started.elapsed() > TIMEOUT => break None,
                None => std::thread::sleep(LOOK_INTERVAL),
            }
        };
        if status.is_none() {
            self.end();
        }
        let (said, complained) = self.output.take().and_then(|output| output.join().ok()).unwrap_or_default();
        let Some(status) = status else {
            bail!("it hangs: ended after {} s; it says: {complained}", TIMEOUT.as_secs())
        };
        if !status.success() {
            bail!("{status}; it says: {complained}");
        }
        serde_json::from_str(&said).with_context(|| format!("it says {said:?}"))
    }

    /// Asks the worker to end, so that `aliquot run` can end its program. Kills the worker if it does not end.
    fn end(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_some()) {
            return;
        }
        // Fails if the worker has just ended; it is waited for below.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let deadline = Instant::now() + END_TIMEOUT;
        while Instant::now() < deadline && self.child.try_wait().is_ok_and(|status| status.is_none()) {
            std::thread::sleep(LOOK_INTERVAL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// The last `count` lines.
fn last_lines(from: impl std::io::Read, count: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in BufReader::new(from).lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
        if lines.len() == count {
            lines.remove(0);
        }
        lines.push(line);
    }
    lines.join("\n")
}

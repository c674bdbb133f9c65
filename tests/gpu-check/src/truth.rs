//! The driver's own figures of the device, read by a process outside of all slices, so that no result of the check
//! relies on figures shown by the shim.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use aliquot_abi::nvml::nvmlProcessInfo_t;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::children;
use crate::launcher::{Deadline, Launcher};
use crate::nvml::Nvml;
use crate::workers::Other;

/// Tolerance for memory that the driver takes for a process but lists for none, and for memory that it takes and
/// releases within a call.
pub(crate) const SLACK_BYTES: u64 = 64 << 20;
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// The longest time until a watch answers, and the longest after the part's deadline.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const LATE_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const READY: &str = "watching";
/// `NVML_VALUE_NOT_AVAILABLE`, as the memory of a process.
const MEMORY_NOT_AVAILABLE: u64 = u64::MAX;

/// The results of watching a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Bytes in use when the watch began.
    pub(crate) before_bytes: u64,
    /// The largest number of bytes in use at any reading.
    pub(crate) most_bytes: u64,
}

impl Seen {
    /// The largest increase since the watch began.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.most_bytes.saturating_sub(self.before_bytes)
    }
}

/// A process that watches the device's memory. Dropping this kills it.
pub(crate) struct Watch {
    child: Child,
    lines: mpsc::Receiver<String>,
    deadline: Deadline,
}

impl Watch {
    /// Starts to watch the device of `launcher`.
    pub(crate) fn begin(launcher: &Launcher) -> anyhow::Result<Watch> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", "watch", &launcher.device_uuid]).envs(launcher.environment.iter().cloned());
        let mut child = children::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let output = BufReader::new(child.stdout.take().context("no pipe")?);
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            // Sending fails when the watch has been dropped.
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let watch = Watch { child, lines, deadline: launcher.deadline };
        match watch.answer() {
            Ok(line) if line == READY => Ok(watch),
            said => bail!("the watch over the device's memory does not begin: {said:?}"),
        }
    }

    /// Ends the watch, and returns its observations.
    pub(crate) fn end(mut self) -> anyhow::Result<Seen> {
        drop(self.child.stdin.take());
        let line = self.answer().context("the watch over the device's memory hangs")?;
        Ok(serde_json::from_str(&line)?)
    }

    /// The next line that the watch's process says.
    fn answer(&self) -> Result<String, mpsc::RecvTimeoutError> {
        self.lines.recv_timeout(self.deadline.left().clamp(LATE_ANSWER_TIMEOUT, ANSWER_TIMEOUT))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        children::end(&mut self.child, Duration::ZERO);
    }
}

/// What NVML lists for process `pid` on the device with `uuid`. Asked in a process without the shim, also in a slice.
pub(crate) fn listed_bytes(uuid: &str, pid: u32) -> anyhow::Result<u64> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "listed", uuid, &pid.to_string()]).env_remove("LD_PRELOAD").stdin(Stdio::null());
    let output = command.output().context("cannot start a process that asks NVML")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The processes on the device with `uuid`.
pub(crate) fn others(uuid: &str) -> anyhow::Result<Vec<Other>> {
    let other = |process: nvmlProcessInfo_t| Other {
        pid: process.pid,
        memory_bytes: Some(process.used_gpu_memory).filter(|bytes| *bytes != MEMORY_NOT_AVAILABLE),
    };
    Ok(Nvml::open()?.processes(uuid)?.into_iter().map(other).collect())
}

/// The process that [`listed_bytes`] starts.
pub(crate) fn listed(uuid: &str, pid: u32) -> anyhow::Result<u64> {
    let processes = Nvml::open()?.processes(uuid)?;
    let its: Vec<u64> =
        processes.iter().filter(|process| process.pid == pid).map(|process| process.used_gpu_memory).collect();
    // In a process id namespace of its own it may not be found, and of an instance NVML may not know the memory.
    if its.is_empty() || its.contains(&MEMORY_NOT_AVAILABLE) {
        bail!("NVML does not list the memory of this process");
    }
    Ok(its.iter().sum())
}

/// The watch's process: reads the figures until its standard input ends.
pub(crate) fn watch(uuid: &str) -> anyhow::Result<()> {
    let nvml = Nvml::open()?;
    let before_bytes = nvml.used_bytes(uuid)?;
    let (ended, end) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        // An error ends the watch as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(ended);
    });
    let mut output = std::io::stdout();
    writeln!(output, "{READY}")?;
    output.flush()?;
    let mut most_bytes = before_bytes;
    while end.recv_timeout(LOOK_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
        most_bytes = most_bytes.max(nvml.used_bytes(uuid)?);
    }
    writeln!(output, "{}", serde_json::to_string(&Seen { before_bytes, most_bytes })?)?;
    Ok(())
}

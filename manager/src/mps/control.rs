//! Sends commands to the MPS control daemon, through NVIDIA's program for it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::config::MpsSettings;

/// Time limit for an answer. The daemon has the answer in memory, but the program must be started, possibly on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two checks whether the program has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum length of an answer: a server's pid has at most ten digits, and each user of the machine has one server.
const ANSWER_BYTES_MAX: u64 = 16 * 1024;
/// Maximum characters of an answer that are quoted in a message.
const QUOTED_CHARS_MAX: usize = 200;

/// Why a command to the control daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// Its program cannot be run.
    #[error("cannot run {}, the client of the MPS control daemon: {source}; set sharing.mps.control", program.display())]
    Run {
        /// The path of the program.
        program: PathBuf,
        /// The error that the system gave as the reason.
        source: io::Error,
    },
    /// The daemon does not answer.
    #[error(
        "the MPS control daemon at {} does not answer within {} s; restart it: echo quit | nvidia-cuda-mps-control, then \
         nvidia-cuda-mps-control -d",
        pipe_directory.display(), PATIENCE.as_secs()
    )]
    Silent {
        /// The daemon's pipe directory.
        pipe_directory: PathBuf,
    },
    /// The daemon refuses, or does not run.
    #[error(
        "the MPS control daemon at {} does not execute {command:?} ({status}{}); start it: \
         CUDA_MPS_PIPE_DIRECTORY={} nvidia-cuda-mps-control -d",
        pipe_directory.display(), said(answer), pipe_directory.display()
    )]
    Refused {
        /// The daemon's pipe directory.
        pipe_directory: PathBuf,
        /// The command that was sent.
        command: String,
        /// The exit status of the program.
        status: ExitStatus,
        /// The daemon's answer to it.
        answer: String,
    },
    /// The answer cannot be parsed.
    #[error(
        "the MPS control daemon answers {answer:?} to {command:?}; its version may be too old: use a driver of R515 or later"
    )]
    Unclear {
        /// The command that was sent.
        command: String,
        /// The daemon's answer to it.
        answer: String,
    },
}

fn said(answer: &str) -> String {
    if answer.is_empty() { String::new() } else { format!(": {answer}") }
}

fn unclear(command: String, answer: &str) -> MpsError {
    MpsError::Unclear { command, answer: beginning(answer) }
}

fn beginning(answer: &str) -> String {
    answer.chars().take(QUOTED_CHARS_MAX).collect()
}

/// A client of the MPS control daemon.
#[derive(Debug)]
pub(super) struct Control {
    settings: MpsSettings,
}

impl Control {
    pub(super) fn new(settings: MpsSettings) -> Control {
        Control { settings }
    }

    /// The maximum percentage of a device's threads for each client of servers that start later.
    pub(super) fn default_percentage(&self) -> Result<u32, MpsError> {
        self.percentage("get_default_active_thread_percentage".into())
    }

    /// The maximum percentage for new clients of the given server.
    pub(super) fn percentage_of(&self, server: u32) -> Result<u32, MpsError> {
        self.percentage(format!("get_active_thread_percentage {server}"))
    }

    pub(super) fn set_default_percentage(&self, percent: u32) -> Result<(), MpsError> {
        let command = format!("set_default_active_thread_percentage {percent}");
        let answer = self.tell(&command)?;
        // A refusal stands in the answer's text; the program's status may still be 0. So the value is read back.
        if self.default_percentage()? == percent { Ok(()) } else { Err(unclear(command, &answer)) }
    }

    pub(super) fn set_percentage_of(&self, server: u32, percent: u32) -> Result<(), MpsError> {
        let command = format!("set_active_thread_percentage {server} {percent}");
        let answer = self.tell(&command)?;
        if self.percentage_of(server)? == percent { Ok(()) } else { Err(unclear(command, &answer)) }
    }

    /// The pids of the running servers.
    pub(super) fn servers(&self) -> Result<Vec<u32>, MpsError> {
        let command = "get_server_list";
        let answer = self.tell(command)?;
        let pids = answer.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        pids.map_err(|_| unclear(command.into(), &answer))
    }

    fn percentage(&self, command: String) -> Result<u32, MpsError> {
        let answer = self.tell(&command)?;
        // The answer has decimals, which are 0 for values set here.
        let percent = answer.trim().parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
        percent.map(|percent| percent.round() as u32).ok_or_else(|| unclear(command, &answer))
    }

    /// Sends `command`, and returns the answer.
    fn tell(&self, command: &str) -> Result<String, MpsError> {
        let MpsSettings { control, pipe_directory, .. } = &self.settings;
        let failed = |source| MpsError::Run { program: control.clone(), source };
        let mut output = answer_file().map_err(failed)?;
        let copy = || output.try_clone().map(Stdio::from).map_err(failed);
        let mut program = Command::new(control);
        program.env("CUDA_MPS_PIPE_DIRECTORY", pipe_directory).stdin(Stdio::piped()).stdout(copy()?).stderr(copy()?);
        let mut child = program.spawn().map_err(failed)?;
        if let Some(mut input) = child.stdin.take() {
            // If the program ends without reading, its status says why.
            let _ = writeln!(input, "{command}");
        }
        let Some(status) = wait(&mut child).map_err(failed)? else {
            return Err(MpsError::Silent { pipe_directory: pipe_directory.clone() });
        };
        let mut answer = Vec::new();
        // The program shares the file position, which is now at the end of its answer.
        let answer_bytes = output.stream_position().map_err(failed)?;
        output.rewind().and_then(|()| output.take(answer_bytes).read_to_end(&mut answer)).map_err(failed)?;
        let answer = String::from_utf8_lossy(&answer).trim().to_owned();
        if status.success() {
            Ok(answer)
        } else {
            let pipe_directory = pipe_directory.clone();
            Err(MpsError::Refused { pipe_directory, command: command.into(), status, answer: beginning(&answer) })
        }
    }
}

/// A file for an answer. Not a pipe, because a pipe ends only when no process holds it open. The file cannot grow, so a
/// program that never stops writing cannot fill the memory.
fn answer_file() -> io::Result<File> {
    let file = memfd_create("mps-control", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, ANSWER_BYTES_MAX)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(file.into())
}

/// Waits for the program's end; `None` if it took too long and was killed.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begun.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

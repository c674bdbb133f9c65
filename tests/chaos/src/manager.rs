//! A world's node manager, which faults kill, stop and start again.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_fake_machine::CONFIG_VARIABLE;
use aliquot_harness::{Client, Process, SimulatedGpu, artifacts};
use rustix::process::{Signal, kill_process};

use crate::roster::as_pid;
use crate::verdict::Stuck;
use crate::wait;

/// Number of log lines that are shown with a violation.
const LOG_LINES: usize = 12;

pub(crate) struct Manager {
    dir: PathBuf,
    gpu_config: PathBuf,
    /// `None` while no manager is meant to run.
    process: Option<Process>,
}

/// Special settings for a start of the manager.
#[derive(Clone, Default)]
pub(crate) struct Start {
    /// A command prefix: programs with arguments, each of which executes the rest of the command.
    pub(crate) wrapper: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

impl Manager {
    /// A manager that does not run yet, with all its directories below `dir`.
    pub(crate) fn prepare(dir: &Path, gpu: &SimulatedGpu) -> Manager {
        let manager = Manager { dir: dir.to_owned(), gpu_config: gpu.config_file(), process: None };
        let settings = format!(
            "runtime_dir = {:?}\nstate_dir = {:?}\ncdi_dir = {:?}\nnvml_library = {:?}\n",
            manager.runtime_dir(),
            manager.state_dir(),
            manager.cdi_dir(),
            gpu.nvml_library(),
        );
        fs::write(manager.config_file(), settings).expect("the manager's configuration");
        manager
    }

    pub(crate) fn runtime_dir(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub(crate) fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub(crate) fn cdi_dir(&self) -> PathBuf {
        self.dir.join("cdi")
    }

    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.state_dir().join("checkpoint.json")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.runtime_dir().join("manager.sock")
    }

    fn config_file(&self) -> PathBuf {
        self.dir.join("manager.toml")
    }

    /// Starts the manager and waits until it answers.
    pub(crate) fn start(&mut self) -> Result<(), Stuck> {
        self.try_start(&Start::default())?.map_err(|said| Stuck(format!("the manager does not start: {said}")))
    }

    /// Starts the manager and waits until it answers or ends. If it ends, the inner error is the end of its output.
    pub(crate) fn try_start(&mut self, start: &Start) -> Result<Result<(), String>, Stuck> {
        let mut words = start.wrapper.iter().map(OsString::as_os_str).chain([artifacts::manager().as_os_str()]);
        let mut command = Command::new(words.next().expect("the manager itself"));
        command.args(words).arg("--config").arg(self.config_file()).env(CONFIG_VARIABLE, &self.gpu_config);
        command.envs(start.environment.iter().map(|(name, value)| (name, value)));
        self.process = Some(Process::start(&mut command));
        let outcome = wait::until("the manager answers", || {
            if let Some(said) = self.end_by_itself() {
                return Ok(Some(Err(said)));
            }
            Ok(self.client().is_some_and(|mut client| client.node().is_ok()).then_some(Ok(())))
        })?;
        if outcome.is_err() {
            self.process = None;
        }
        Ok(outcome)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// The end of the manager's output, if the manager is meant to run and has ended.
    pub(crate) fn end_by_itself(&mut self) -> Option<String> {
        let process = self.process.as_mut()?;
        process.has_ended().then(|| last_lines(&(process.output() + &process.errors())))
    }

    pub(crate) fn id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            // The process may have ended by itself, which was then reported where it was noticed.
            drop(process);
        }
    }

    /// Sends a signal to the manager, if it runs.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = self.id().and_then(as_pid) {
            let _ = kill_process(pid, signal);
        }
    }

    pub(crate) fn client(&self) -> Option<Client> {
        Client::connect(&self.socket())
    }

    /// The end of the manager's log.
    pub(crate) fn log(&self) -> String {
        self.process.as_ref().map(|process| last_lines(&(process.output() + &process.errors()))).unwrap_or_default()
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

//! Real containers, run by podman.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Condvar, Mutex, PoisonError};

use aliquot_harness::container;
use tempfile::TempDir;

use super::{ContainerRuntime, ContainerSpec, ContainerState};

/// The most containers that are made or removed at the same time: more would not be faster.
const AT_ONCE: usize = 4;

/// The runtime podman. It needs no process that watches the containers.
#[derive(Debug)]
pub struct Podman {
    /// A directory with a file for each container, which contains the process id.
    pids: TempDir,
    busy: Mutex<usize>,
    less_busy: Condvar,
}

impl Default for Podman {
    fn default() -> Podman {
        let pids = tempfile::tempdir().expect("a temporary directory");
        Podman { pids, busy: Mutex::new(0), less_busy: Condvar::new() }
    }
}

impl Podman {
    /// Runs podman, once not too many copies of it run.
    fn run(&self, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Output {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.less_busy.wait_while(busy, |busy| *busy >= AT_ONCE);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        let mut command = container::podman();
        arguments(&mut command);
        let output = command.output();
        *self.busy.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.less_busy.notify_one();
        output.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
    }

    fn pid_file(&self, id: &str) -> PathBuf {
        self.pids.path().join(id)
    }
}

impl ContainerRuntime for Podman {
    fn start(&self, container: &ContainerSpec) -> Result<(), String> {
        let pid_file = self.pid_file(&container.id);
        let started = self.run(|podman| {
            podman.args(["run", "--detach", "--replace", "--pull", "never", "--log-driver", "k8s-file"]);
            podman.args(["--name", &container.id, "--pidfile"]).arg(&pid_file);
            podman.args(container::RUN_OPTIONS);
            for device in &container.cdi_devices {
                podman.args(["--device", device]);
            }
            for (name, value) in &container.environment {
                podman.args(["--env", &format!("{name}={value}")]);
            }
            for (inside, outside, read_only) in &container.mounts {
                let mode = if *read_only { "ro" } else { "rw" };
                podman.args(["--volume", &format!("{outside}:{inside}:{mode}")]);
            }
            podman.arg(&container.image).args(&container.command)
        });
        if started.status.success() {
            return Ok(());
        }
        // A container that was made but did not start still exists.
        let _ = self.run(|podman| podman.args(["rm", "--force", "--ignore", "--time", "0", &container.id]));
        Err(String::from_utf8_lossy(&started.stderr).trim().to_owned())
    }

    fn state(&self, id: &str) -> ContainerState {
        let Ok(pid) = fs::read_to_string(self.pid_file(id)) else { return ContainerState::Absent };
        // A call of podman takes a tenth of a second of processor time, so it is only called when the process is gone.
        if Path::new("/proc").join(pid.trim()).exists() {
            return ContainerState::Running;
        }
        let format = "{{.State.Running}} {{.State.ExitCode}}";
        let inspected = self.run(|podman| podman.args(["container", "inspect", "--format", format, id]));
        let text = String::from_utf8_lossy(&inspected.stdout);
        match text.trim().split_once(' ') {
            Some(("true", _)) => ContainerState::Running,
            Some((_, code)) => ContainerState::Exited(code.parse().unwrap_or(-1)),
            None => ContainerState::Absent,
        }
    }

    fn remove(&self, id: &str) {
        if fs::remove_file(self.pid_file(id)).is_err() {
            return;
        }
        let _ = self.run(|podman| podman.args(["rm", "--force", "--ignore", "--time", "0", id]));
    }

    fn output(&self, id: &str) -> String {
        let output = self.run(|podman| podman.args(["logs", id]));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

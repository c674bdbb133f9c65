//! Podman's command lines for a container that runs.

use crate::supervise::ContainerAccess;

impl ContainerAccess {
    /// Podman's command line that runs `command` in the container, as the job's user and in the job's directory. Podman
    /// passes on the words after the container's name unchanged.
    pub(crate) fn exec(&self, command: &[String], terminal: Option<&str>) -> Vec<String> {
        let mut words = self.podman.clone();
        words.extend(["exec", "--interactive"].map(str::to_owned));
        if let Some(kind) = terminal {
            words.extend(["--tty".to_owned(), "--env".to_owned(), format!("TERM={kind}")]);
        }
        words.push(self.name.clone());
        words.extend(command.iter().cloned());
        words
    }

    /// Podman's command line that prints the process id of the container's first process.
    pub(crate) fn inspect(&self) -> Vec<String> {
        let words = ["container", "inspect", "--format", "{{.State.Pid}}", &self.name];
        self.podman.iter().cloned().chain(words.map(str::to_owned)).collect()
    }
}

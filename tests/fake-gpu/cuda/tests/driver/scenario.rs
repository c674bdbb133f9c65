//! Runs a test's body in its own process, on its own machine.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use aliquot_fake_machine::{CONFIG_VARIABLE, Config, Machine};
use aliquot_harness::{artifacts, wait};
use tempfile::TempDir;

use crate::library::LIBRARY_VARIABLE;

/// Configuration with which a device's used memory is exactly what a test has allocated.
const EXACT: &[&str] =
    &["context_memory = 0\n", "allocation_block = 512\n", "pool_chunk = '2MiB'\n", "reserved_memory = 0\n"];
const ROLE_VARIABLE: &str = "FAKE_GPU_TEST_ROLE";

/// A machine for one test.
pub(crate) struct World {
    folder: TempDir,
    test: String,
}

/// A process of a test.
pub(crate) struct Player {
    pub(crate) child: Child,
    /// What it prints, line by line.
    lines: mpsc::Receiver<String>,
}

/// The role of this process, if a test has started it with one.
fn role() -> Option<String> {
    std::env::var(ROLE_VARIABLE).ok()
}

impl World {
    /// Makes a machine with the keys `configuration`, and exact memory for the keys that it does not set. `test` is the
    /// calling test's path.
    pub(crate) fn new(test: &str, configuration: &str) -> World {
        let folder = tempfile::tempdir().expect("a folder for the machine");
        let state = folder.path().join("state");
        let missing = |line: &&&str| !configuration.contains(line.split(' ').next().unwrap_or_default());
        let exact = EXACT.iter().filter(missing).copied().collect::<String>();
        let text = format!("state = {:?}\n{exact}{configuration}", state.to_str().expect("a path in UTF-8"));
        std::fs::write(folder.path().join("machine.toml"), text).expect("the configuration can be written");
        World { folder, test: test.to_owned() }
    }

    fn config_path(&self) -> std::path::PathBuf {
        self.folder.path().join("machine.toml")
    }

    /// The machine, to read its state.
    pub(crate) fn machine(&self) -> Machine {
        Machine::open(Config::load(&self.config_path()).expect("a valid configuration")).expect("a machine")
    }

    /// Starts this test in another process with the role `role`.
    pub(crate) fn start(&self, role: &str) -> Player {
        self.start_with(role, &[])
    }

    pub(crate) fn start_with(&self, role: &str, environment: &[(&str, &str)]) -> Player {
        let mut command = Command::new(std::env::current_exe().expect("the test program has a path"));
        command.args(["--exact", &self.test, "--nocapture", "--test-threads=1"]);
        command.env(ROLE_VARIABLE, role).env(CONFIG_VARIABLE, self.config_path());
        command.env(LIBRARY_VARIABLE, artifacts::fake_cuda()).envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test program starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        // Sending fails when nobody listens any more.
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Player { child, lines }
    }
}

impl Player {
    /// Waits until the process has printed `word` with [`say`], and returns the rest of that line.
    #[track_caller]
    pub(crate) fn hear(&mut self, word: &str) -> String {
        let deadline = Instant::now() + wait::DEADLINE;
        loop {
            let line = self.line(deadline);
            let line = line.unwrap_or_else(|| panic!("the process ended before it said {word:?}"));
            if let Some(place) = line.find(&format!("[{word}]")) {
                return line[place + word.len() + 2..].trim().to_owned();
            }
        }
    }

    /// The next line that the process prints; `None`: it prints no more.
    #[track_caller]
    fn line(&self, deadline: Instant) -> Option<String> {
        match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the process neither says more nor ends"),
        }
    }

    /// Lets the process end, waits for it, and checks that it has succeeded.
    pub(crate) fn finish(mut self) {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + wait::DEADLINE;
        while self.line(deadline).is_some() {}
        assert!(self.child.wait().expect("the process ends").success());
    }

    /// Ends the process without warning.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Player {
    /// Kills the process, so that it does not outlive a failed test.
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints a word for the test that started this process.
pub(crate) fn say(word: &str, more: impl std::fmt::Display) {
    println!("[{word}] {more}");
}

/// Waits until the test that started this process closes its standard input.
pub(crate) fn wait_for_end() {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("the pipe can be read");
}

/// Runs `body` in a new process on a machine with this configuration.
pub(crate) fn alone(test: &str, configuration: &str, body: impl FnOnce()) {
    together(test, &[configuration], |world| world.start("alone").finish(), |_| body());
}

/// Runs `direct` in the test itself, once for each configuration, and `act` in each process that `direct` starts.
pub(crate) fn together(test: &str, configurations: &[&str], direct: impl Fn(&World), act: impl FnOnce(&str)) {
    match role() {
        None => configurations.iter().for_each(|configuration| direct(&World::new(test, configuration))),
        Some(role) => act(&role),
    }
}

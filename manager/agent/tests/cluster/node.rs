//! A node: an agent in a process of its own, with its own directories.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use tempfile::TempDir;

use crate::{FakeManager, Scheduler};

const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Node {
    dir: TempDir,
    pub(crate) manager: FakeManager,
    agent: Option<Child>,
}

impl Node {
    pub(crate) fn start(scheduler: &Scheduler) -> Node {
        Node::with(&scheduler.settings())
    }

    /// A node with its directories in memory.
    pub(crate) fn in_memory(scheduler: &Scheduler) -> Node {
        Node::at(tempfile::tempdir_in("/dev/shm").expect("a directory"), &scheduler.settings())
    }

    pub(crate) fn with(settings: &str) -> Node {
        Node::at(tempfile::tempdir().expect("a directory"), settings)
    }

    fn at(dir: TempDir, settings: &str) -> Node {
        fs::write(dir.path().join("settings.toml"), settings).expect("settings");
        let manager = FakeManager::start(dir.path());
        let mut node = Node { dir, manager, agent: None };
        node.start_agent();
        node
    }

    /// Starts an agent after the one before was killed.
    pub(crate) fn start_agent(&mut self) {
        self.start_by(|program| Command::new(program));
    }

    /// Starts an agent whose parent ignores the ends of children, which the agent inherits.
    pub(crate) fn start_agent_that_ignores_children(&mut self) {
        self.start_by(|program| {
            let mut ignoring = Command::new("env");
            ignoring.arg("--ignore-signal=CHLD").arg(program);
            ignoring
        });
    }

    fn start_by(&mut self, command: impl FnOnce(&Path) -> Command) {
        let test = std::env::current_exe().expect("this program");
        let program = test.parent().and_then(Path::parent).expect("a target directory").join("examples/agent_alone");
        let log = OpenOptions::new().append(true).create(true).open(self.path("agent.log")).expect("a log");
        let mut command = command(&program);
        command.arg(self.path("settings.toml")).arg(self.dir.path()).arg(self.manager.socket());
        let agent = command.stdin(Stdio::null()).stderr(log).spawn();
        let hint = "it is built by: cargo test -p aliquot-agent (without --test)";
        self.agent = Some(agent.unwrap_or_else(|error| panic!("cannot run {}: {error}; {hint}", program.display())));
    }

    /// Kills the agent with SIGKILL.
    pub(crate) fn kill_agent(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn agent_log(&self) -> String {
        fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }

    /// Waits until this holds.
    #[track_caller]
    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&Node) -> bool) {
        let until = Instant::now() + DEADLINE;
        while !holds(self) {
            assert!(Instant::now() < until, "not yet: {what}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process that supervises this instance.
    pub(crate) fn supervisor(&self, number: u64) -> Pid {
        let file = self.path(&format!("state/cluster/instances/1-{number}/supervisor"));
        supervisor_in(&file).expect("a supervisor")
    }

    /// A pipe that shows when the last process of a job has ended.
    pub(crate) fn pipe(&self, name: &str) -> Pipe {
        let path = self.path(name);
        mkfifo(&path, Mode::S_IRWXU).expect("a named pipe");
        let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&path).expect("a pipe");
        Pipe { path, file, seen: String::new() }
    }
}

fn supervisor_in(file: &Path) -> Option<Pid> {
    let text = fs::read_to_string(file).ok()?;
    let pid = text.split("\"pid\":").nth(1)?.split(',').next()?.trim().parse().ok()?;
    Some(Pid::from_raw(pid))
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill_agent();
        for entry in fs::read_dir(self.path("state/cluster/instances")).into_iter().flatten().flatten() {
            let has_ended = entry.path().join("end").exists();
            if let Some(supervisor) = supervisor_in(&entry.path().join("supervisor")).filter(|_| !has_ended) {
                let _ = kill(supervisor, Signal::SIGKILL);
            }
        }
        if thread::panicking() {
            eprintln!("the agent's log:\n{}", self.agent_log());
        }
    }
}

/// The end of a named pipe from which a test reads.
pub(crate) struct Pipe {
    path: PathBuf,
    file: File,
    seen: String,
}

impl Pipe {
    /// Its path, for a script.
    pub(crate) fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&mut self) -> Option<usize> {
        let mut bytes = [0; 4096];
        match self.file.read(&mut bytes) {
            Ok(count) => {
                self.seen += &String::from_utf8_lossy(&bytes[..count]);
                Some(count)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Waits until a job has written `text`.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, text: &str) {
        let until = Instant::now() + DEADLINE;
        while !self.seen.contains(text) {
            assert!(Instant::now() < until, "the job never wrote {text:?}, only {:?}", self.seen);
            self.read();
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until no process has the pipe open any more. Some process must have written to it before.
    #[track_caller]
    pub(crate) fn wait_for_end(&mut self) {
        assert!(!self.seen.is_empty(), "wait for something that the job writes first");
        let until = Instant::now() + DEADLINE;
        while self.read() != Some(0) {
            assert!(Instant::now() < until, "some process of the job lives on");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether some process still has the pipe open.
    pub(crate) fn is_open(&mut self) -> bool {
        loop {
            match self.read() {
                None => return true,
                Some(0) => return false,
                Some(_) => {}
            }
        }
    }
}

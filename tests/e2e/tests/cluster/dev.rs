//! `aliquot dev`: a whole cluster on one machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use aliquot_harness::{Jobs, Outcome, Process, artifacts, run, wait};
use aliquot_proto::scheduler::v1::NodeState;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A cluster that `aliquot dev` runs.
struct Dev {
    process: Process,
    dir: TempDir,
    socket: String,
}

impl Dev {
    /// Starts a cluster of two nodes, and waits until it is up.
    fn start() -> Dev {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let mut command = Command::new(artifacts::cli());
        command.args(["dev", "--nodes", "2", "--devices", "1"]).env("XDG_RUNTIME_DIR", dir.path());
        let mut process = Process::start(&mut command);
        let socket = wait::until("the cluster is up", || {
            assert!(!process.has_ended(), "it has ended:\n{}{}", process.output(), process.errors());
            let said = process.output();
            let (_, after) = said.split_once("export ALIQUOT_SCHEDULER=")?;
            after.split_once('\n').map(|(socket, _)| socket.to_owned())
        });
        Dev { process, dir, socket }
    }

    fn aliquot(&self, arguments: &[&str]) -> Outcome {
        run(Command::new(artifacts::cli()).args(arguments).env("ALIQUOT_SCHEDULER", &self.socket)).success()
    }

    /// The running daemons of this program. A job's supervisor is the same program without a configuration; it becomes
    /// a child of `aliquot dev` when its node manager is killed.
    fn daemons(&self, program: &Path) -> Vec<i32> {
        let own = self.process.id();
        let children = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).expect("the kernel lists them");
        let runs = |pid: &i32| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|found| found == program)
                && has_argument(&fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default(), "--config")
        };
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(runs).collect()
    }
}

/// Whether a process was started with this argument.
fn runs_with(argument: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("the kernel lists processes").flatten();
    let mut command_lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    command_lines.any(|words| has_argument(&words, argument))
}

/// Whether a command line, as the kernel shows it, has this argument.
fn has_argument(command_line: &[u8], argument: &str) -> bool {
    command_line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
}

#[test]
fn a_cluster_on_one_machine_runs_jobs_and_leaves_nothing() {
    let dev = Dev::start();
    let aliquot = artifacts::cli().to_str().expect("a path of this workspace");
    let load = [
        "submit",
        "--gpu-core",
        "50",
        "--gpu-memory",
        "8GiB",
        "--wait",
        "--follow",
        "--",
        aliquot,
        "load",
        "--seconds",
        "1",
    ];
    let loaded = dev.aliquot(&load);
    assert!(loaded.stdout.contains("It was busy"), "{loaded:?}");

    // No other process of this machine sleeps for the same time.
    let seconds = format!("1000000.{}", std::process::id());
    dev.aliquot(&["submit", "--gpu-core", "30", "--", "sleep", &seconds]);
    wait::until_true("the job runs", || runs_with(&seconds));

    for program in [artifacts::manager(), artifacts::scheduler()] {
        let before = dev.daemons(program);
        let first = Pid::from_raw(before[0]).expect("a process");
        kill_process(first, Signal::KILL).expect("it can be killed");
        wait::until_true("it is started again", || {
            let now = dev.daemons(program);
            now.len() == before.len() && now != before
        });
    }
    wait::until_true("both nodes are up", || {
        let nodes = Jobs::connect(dev.socket.as_ref()).and_then(|mut jobs| jobs.nodes().ok()).unwrap_or_default();
        nodes.iter().filter(|node| node.state() == NodeState::Up).count() == 2
    });
    assert!(runs_with(&seconds), "the job runs on");

    let Dev { process, dir, .. } = dev;
    process.signal(Signal::INT);
    let ended = process.wait().success();
    assert!(!runs_with(&seconds), "{ended:?}");
    let left: Vec<_> = fs::read_dir(dir.path()).expect("readable").flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

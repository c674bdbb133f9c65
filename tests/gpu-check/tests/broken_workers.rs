//! Workers that die or hang cost the check only what they were to measure: it reports the failure and its reason, goes
//! on, and loses none of its results, also if the check itself is killed.

mod common;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use aliquot_harness::{SimulatedGpu, wait};
use common::{list, texts, with_each_slice};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The check of a device with programs of which workers are broken.
struct Broken {
    gpu: SimulatedGpu,
    programs: tempfile::TempDir,
    /// The directory for files of the test.
    dir: tempfile::TempDir,
}

impl Broken {
    /// A check whose workers in slices run `script` first, a shell script that sees the worker's arguments. `$dir` is
    /// the directory of [`Broken`].
    fn by(script: &str) -> Broken {
        // On a memory file system, and with a short path: it holds the node manager's sockets.
        let dir = tempfile::Builder::new().prefix("b-").tempdir_in("/dev/shm").unwrap();
        let script = script.replace("$dir", &dir.path().display().to_string());
        Broken { gpu: SimulatedGpu::new(), programs: with_each_slice(&script), dir }
    }

    fn check(&self, args: &[&str]) -> Command {
        let mut check = Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check"));
        check.args(["--quick", "--programs"]).arg(self.programs.path()).arg("--json").arg(self.json()).args(args);
        // The node manager's directory is removed with the test's, also if the check is killed.
        self.gpu.show_to(&mut check).env("XDG_RUNTIME_DIR", self.dir.path());
        check
    }

    /// The socket of the check's node manager.
    fn manager_socket(&self) -> PathBuf {
        let dirs = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut sockets = dirs.map(|dir| dir.join("manager.sock")).filter(|socket| socket.exists());
        sockets.next().expect("a node manager has a socket")
    }

    fn json(&self) -> PathBuf {
        self.dir.path().join("results.json")
    }

    fn results(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.json()).unwrap()).unwrap()
    }

    /// The process that a worker's script has written into the file `pid`, when it has.
    fn pid(&self) -> Pid {
        let file = self.dir.path().join("pid");
        let line = || fs::read_to_string(&file).ok().filter(|line| line.ends_with('\n'));
        Pid::from_raw(wait::until("a worker hangs", line).trim().parse().unwrap())
    }
}

/// A worker that measures costs hangs, and does not end when it is asked to. A process that it has started hangs too,
/// and holds the worker's output open.
const HANGS: &str = r#"case "$*" in *"worker overhead"*)
    trap '' TERM
    sleep 1000000 &
    echo $! > $dir/new; mv $dir/new $dir/pid
    wait; exit 1;;
esac"#;

/// A process of a test that is killed when the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has_ended(pid: Pid) -> bool {
    kill(pid, None) == Err(Errno::ESRCH)
}

#[test]
fn a_worker_that_dies_costs_what_it_was_to_measure() {
    let broken = Broken::by(r#"case "$*" in *"worker overhead"*|*"worker load"*) kill -KILL $$;; esac"#);
    let parts = "conformance,overhead,shares,neighbours,runtime";
    let outcome = broken.check(&["--only", parts, "--case", "cap"]).output().unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");

    let results = broken.results();
    assert_eq!(texts(&results["parts_left"]), Vec::<String>::new());
    assert_eq!(list(&results["conformance"]).count(), 3);
    assert!(list(&results["parts"]).any(|part| part["part"] == "runtime"), "{results}");
    // What could be measured is there: the calls without a slice.
    let costs: Vec<&Value> = list(&results["overhead"]).collect();
    assert!(!costs.is_empty() && costs.iter().all(|call| call["bare_ns"].is_f64()), "{costs:?}");
    let failures = texts(&results["failures"]);
    for what in ["overhead: costs of calls, limited: ", "shares: 30 % kernels of 1 ms: ", "neighbours: arithmetic of"] {
        let reason = failures.iter().find(|failure| failure.starts_with(what));
        assert!(reason.is_some_and(|reason| reason.contains("it says")), "{what}: {failures:?}");
    }
}

#[test]
fn a_share_that_is_off_is_measured_once_more() {
    // A machine that runs tests can be too busy for a right share.
    wait::in_one_of_a_few(|| {
        // The first load in a slice is not limited.
        let broken = Broken::by(
            r#"case "$*" in *"worker load"*) if mkdir $dir/once 2>/dev/null; then unset LD_PRELOAD; fi;; esac"#,
        );
        broken.check(&["--only", "shares", "--share-tolerance", "20"]).output().unwrap();
        let results = broken.results();
        let share = &results["shares"][0];
        assert_eq!(share["wanted_percent"], 30.0);
        let (first, measured) = (share["first_percent"].as_f64().unwrap(), share["measured_percent"].as_f64().unwrap());
        let is_forgotten = texts(&results["failures"]).iter().all(|failure| !failure.contains("100."));
        match first > 60.0 && measured < 60.0 && is_forgotten {
            true => Ok(format!("{first} %, then {measured} %")),
            false => Err(results.to_string()),
        }
    });
}

#[test]
fn a_worker_that_hangs_is_ended_with_its_part() {
    let broken = Broken::by(HANGS);
    let check = ["--only", "overhead,runtime", "--part-seconds", "40"];
    let outcome = broken.check(&check).output().unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");

    let results = broken.results();
    assert_eq!(texts(&results["parts_left"]), Vec::<String>::new());
    let failures = texts(&results["failures"]);
    let said =
        |what: &str, why: &str| failures.iter().any(|failure| failure.starts_with(what) && failure.contains(why));
    assert!(said("overhead: costs of calls, unlimited: ", "when the part had taken its 40 s"), "{failures:?}");
    assert!(said("overhead: it ends within 40 s: ", "no time was left for round 1 of 1, limited"), "{failures:?}");
    assert!(list(&results["parts"]).any(|part| part["part"] == "runtime"), "{results}");
    wait::until_true("the processes of the worker that hung have ended", || has_ended(broken.pid()));
}

#[test]
fn a_check_that_is_killed_has_written_its_results() {
    let broken = Broken::by(&HANGS.replace("worker overhead", "worker load"));
    let mut check = broken.check(&["--only", "conformance,shares,overhead", "--case", "cap"]);
    let mut check = Killed(check.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let hung = broken.pid();
    let before = broken.results();
    let manager = broken.manager_socket();
    UnixStream::connect(&manager).unwrap();
    check.0.kill().unwrap();
    check.0.wait().unwrap();
    kill(hung, Signal::SIGKILL).unwrap();

    assert_eq!(list(&before["conformance"]).count(), 3);
    assert_eq!(texts(&before["parts_left"]), ["shares", "overhead"]);
    assert_eq!(before["holds"], false);
    assert_eq!(broken.results(), before);
    wait::until_true("the node manager has ended with the check", || UnixStream::connect(&manager).is_err());
}

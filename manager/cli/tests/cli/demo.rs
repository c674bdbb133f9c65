//! `aliquot demo` from beginning to end on the simulated GPU, and its messages when something goes wrong.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{aliquot, entries, output, stderr, stdout};

/// Runs one demonstration at a time, because they measure time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// If a busy machine has delayed one process, the others have had its time. Over a longer measurement that matters
/// less.
#[test]
fn it_shares_limits_and_leaves_nothing_behind() {
    let _alone = alone();
    assert!(
        ["5", "10", "20", "40", "80"].into_iter().any(shares_hold),
        "the shares are wrong however long they are measured"
    );
}

/// Runs a demonstration of this length. Returns whether the shares are right, as far as they can be judged. All other
/// checks must hold.
fn shares_hold(seconds: &str) -> bool {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = aliquot(["demo", "--simulated", "--seconds", seconds, "--json"]);
    let ended = output(command.env("XDG_RUNTIME_DIR", dir.path()));
    let text = stdout(&ended);
    let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(&ended)));
    assert_eq!(value["device"]["simulated"], true);
    // The program's memory and its context together take the whole limit, except for less than one piece of the
    // driver's rounding.
    for program in value["sharers"].as_array().unwrap().iter().chain([&value["third"]]) {
        let bytes = |key: &str| program[key].as_u64().unwrap_or_else(|| panic!("{key}: {text}"));
        assert!(bytes("memory_given_bytes") < bytes("memory_limit_bytes"), "{text}");
        assert!(bytes("memory_used_bytes").abs_diff(bytes("memory_limit_bytes")) < 2 << 20, "{text}");
    }
    assert_eq!(value["third"]["memory_refusal"], "CUDA_ERROR_OUT_OF_MEMORY");
    assert!(value["fourth_slice_refusal"].is_string());
    assert!(stderr(&ended).contains("demo-large ▕"), "{}", stderr(&ended));
    assert_eq!(entries(dir.path(), ""), Vec::<String>::new());
    // If the machine is busy with other tests, the device may not be kept busy; then shares prove nothing. The exit
    // code must agree with the text.
    let checks = value["checks"].as_array().unwrap();
    assert_eq!(value["holds"], checks.iter().all(|check| check["holds"] == true), "{text}");
    assert_eq!(ended.status.code(), Some(if value["holds"] == true { 0 } else { 1 }), "{text}");
    assert_eq!(value["kept_device_busy"], checks[0]["holds"], "{text}");
    let (shares, others) = checks[1..].split_at(4);
    assert!(others.len() >= 6 && others.iter().all(|check| check["holds"] == true), "{text}");
    println!("{text}");
    value["kept_device_busy"] == false || shares.iter().all(|check| check["holds"] == true)
}

#[test]
fn the_verdict_and_all_before_it_are_one_screen() {
    let _alone = alone();
    let ended = output(&mut aliquot(["demo", "--simulated", "--seconds", "3"]));
    let text = stdout(&ended);
    let failed = text.lines().filter(|line| line.starts_with("FAIL")).count();
    assert!(text.lines().count() <= 24 + failed, "{text}");
    assert!(text.contains("\nok   room: ") && !text.contains('\x1b') && !text.contains('\r'), "{text}");
    let verdict = text.lines().last().unwrap();
    assert!(verdict.starts_with("It holds: ") || failed > 0, "{text}");
}

/// A demonstration that has begun to measure.
struct Measuring {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    dir: TempDir,
}

fn measuring() -> Measuring {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = aliquot(["demo", "--simulated", "--seconds", "60"]);
    command.env("XDG_RUNTIME_DIR", dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("Measuring") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ends before it measures");
    }
    Measuring { child, lines, dir }
}

impl Measuring {
    fn workers(&self) -> Vec<Pid> {
        let pid = self.child.id();
        let children = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().flat_map(|thread| {
            let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            children.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap())).collect::<Vec<_>>()
        });
        children.collect()
    }

    /// The exit code, and the text on standard error. Checks that nothing is left behind.
    fn end(mut self) -> (Option<i32>, String) {
        std::io::copy(&mut self.lines, &mut std::io::sink()).unwrap();
        let ended = self.child.wait_with_output().unwrap();
        assert_eq!(entries(self.dir.path(), ""), Vec::<String>::new());
        (ended.status.code(), stderr(&ended))
    }
}

#[test]
fn it_can_be_ended() {
    let _alone = alone();
    let demo = measuring();
    let workers = demo.workers();
    assert_eq!(workers.len(), 2);
    kill(Pid::from_raw(demo.child.id() as i32), Signal::SIGINT).unwrap();
    let (code, text) = demo.end();
    assert_eq!(code, Some(130), "{text}");
    for worker in workers {
        assert_eq!(kill(worker, None), Err(nix::errno::Errno::ESRCH));
    }
}

#[test]
fn a_worker_that_dies_is_named() {
    let _alone = alone();
    let demo = measuring();
    kill(demo.workers()[0], Signal::SIGKILL).unwrap();
    let (code, text) = demo.end();
    assert_eq!(code, Some(1));
    assert!(text.contains("error: the worker in slice demo-") && text.contains("signal: 9"), "{text}");
}

#[test]
fn a_driver_that_cannot_be_loaded_is_named() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    std::fs::write(dir.path().join("libcuda.so.1"), "").unwrap();
    let mut command = aliquot(["demo-worker", "--kernel-ns", "1000"]);
    let ended = output(command.env("LD_LIBRARY_PATH", dir.path()));
    assert_eq!(ended.status.code(), Some(1));
    let event: Value = serde_json::from_str(&stdout(&ended)).unwrap();
    assert_eq!(event["event"], "failed");
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("libcuda.so.1") && message.contains("file too short"), "{message}");
}

//! What the check does on machines that are not as it would like them.

use std::process::{Command, Output};

use aliquot_harness::{HostProgram, MIB, Process, SimulatedGpu, artifacts, tool};
use serde_json::Value;
use tempfile::TempDir;

/// A check of `gpu`, and the directory for its results.
fn check(gpu: &SimulatedGpu, mut command: Command, args: &[&str]) -> (Output, Value) {
    let results = TempDir::new().unwrap();
    let json = results.path().join("results.json");
    command
        .arg("--quick")
        .arg("--programs")
        .arg(artifacts::cli().parent().unwrap())
        .arg("--json")
        .arg(&json)
        .args(args);
    let outcome = gpu.show_to(&mut command).output().unwrap();
    let text = std::fs::read_to_string(&json).unwrap_or_default();
    (outcome, serde_json::from_str(&text).unwrap_or_default())
}

/// The elements of a list in the results.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

#[test]
fn a_device_that_programs_cannot_share_is_named() {
    for (configuration, why) in [
        ("compute_mode = 3\n", "EXCLUSIVE_PROCESS"),
        ("[[device]]\nmig = [{ profile = '1g.10gb', memory = '10GiB', sm_count = 16 }]\n", "is a MIG instance"),
    ] {
        let gpu = SimulatedGpu::with(configuration);
        let (outcome, _) = check(&gpu, Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check")), &[]);
        assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
        let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
        assert!(said.starts_with("There is nothing to check here: ") && said.contains(why), "{said}");
    }
}

#[test]
fn processes_of_others_are_listed() {
    let gpu = SimulatedGpu::new();
    let mut other = Process::start(HostProgram::linked(&gpu, "hold").on(&gpu).arg((64 * MIB).to_string()));
    other.wait_for("held");
    let own = Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check"));
    let (outcome, results) = check(&gpu, own, &["--only", "conformance", "--case", "errors"]);
    assert_eq!(outcome.status.code(), Some(0), "{outcome:?}");
    for when in ["others_before", "others_after"] {
        let listed: Vec<&Value> = list(&results[when]).map(|process| &process["pid"]).collect();
        assert_eq!(listed, [other.id()], "{when}: {}", results[when]);
        assert!(results[when][0]["memory_bytes"].as_u64() > Some(64 * MIB), "{}", results[when]);
    }
    let said = format!("process {} of another has", other.id());
    assert_eq!(String::from_utf8_lossy(&outcome.stdout).matches(&said).count(), 2, "{outcome:?}");
}

/// In containers of Docker and of Kubernetes, the memory file systems are mounted `noexec`. So regions lie on a disk.
///
/// The disk is mounted at `/mnt`: the check's directory holds sockets, and the path of a socket has at most 107 bytes,
/// which a checkout at a long path would use up.
#[test]
fn where_regions_lie_on_a_disk_events_take_the_place_of_markers() {
    let gpu = SimulatedGpu::new();
    let script = r#"set -e
        mount --bind /dev/shm /dev/shm
        mount -o remount,bind,noexec /dev/shm
        mount -t tmpfs -o noexec tmpfs /run
        mount --bind "$DISK" /mnt
        exec "$0" "$@""#;
    let mut container = Command::new(tool("unshare", "util-linux"));
    container.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    container.arg(env!("CARGO_BIN_EXE_aliquot-gpu-check"));
    container.env_remove("XDG_RUNTIME_DIR").env("DISK", env!("CARGO_TARGET_TMPDIR")).env("TMPDIR", "/mnt");
    let (outcome, results) = check(&gpu, container, &["--only", "conformance", "--case", "markers"]);
    assert_eq!(outcome.status.code(), Some(0), "{outcome:?}");
    let findings: Vec<&Value> = list(&results["conformance"]).flat_map(|case| list(&case["findings"])).collect();
    let by_events = |finding: &&&Value| finding["saw"] == "by the process, from events";
    assert_eq!(findings.iter().filter(by_events).count(), 1, "{findings:?}");
    assert!(list(&results["unseen"]).any(|unseen| unseen["what"] == "markers that the device writes"), "{results}");
}

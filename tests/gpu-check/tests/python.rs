//! Programs of others that the check runs by Python, with a stand-in for Python.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use aliquot_harness::SimulatedGpu;
use common::{list, texts, with_each_slice};
use serde_json::Value;
use tempfile::TempDir;

/// What the stand-in says as the script for PyTorch: in each way `$findings`, and as rates `$sweeps` and `$graphs`.
const PYTHON: &str = r#"#!/bin/sh
case "$1" in
--version) echo Python 3 ;;
-c) echo '""' ;;
*)
    findings= sweeps=100 graphs=100
    [ "$2" = limited ] && sweeps=50 graphs=70
    WAY
    echo "{\"findings\":[$findings],\"answers\":[],\"steps_per_second\":1,\"graph_steps_per_second\":$graphs,\
\"sweeps_per_second\":$sweeps,\"shared_blocks_per_second\":1}" ;;
esac
"#;
/// A finding that holds and one that does not.
const GOOD: &str = r#"findings='{"what":"it trains","verdict":"holds","saw":""}'"#;
const NO_COMPILER: &str = r#"findings="$findings"',{"what":"it compiles","verdict":"fails","saw":"no compiler"}'"#;

/// The results of a check of PyTorch where the stand-in does this in each way, which is in `$2`.
fn check(way: &str) -> Value {
    let gpu = SimulatedGpu::new();
    let programs = with_each_slice("");
    fs::write(programs.path().join("check_torch.py"), "").unwrap();
    let dir = TempDir::new().unwrap();
    let text = PYTHON.replace("WAY", way);
    // Written by another process: see `programs`.
    let mut write = Command::new("sh");
    write.args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", &text]).arg(dir.path().join("python3"));
    assert!(write.status().unwrap().success());
    let json = dir.path().join("results.json");
    let mut check = Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check"));
    check.args(["--quick", "--only", "torch", "--programs"]).arg(programs.path()).arg("--json").arg(&json);
    check.env("PATH", format!("{}:/usr/bin:/bin", dir.path().display()));
    let outcome = gpu.show_to(&mut check).output().unwrap();
    let text = fs::read_to_string(&json).unwrap_or_else(|error| panic!("no results: {error}\n{outcome:?}"));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn what_fails_without_a_slice_too_is_skipped() {
    // Steps as graphs get more than their share: a card at its power limit does that.
    let results = check(&format!("{GOOD}\n{NO_COMPILER}"));
    assert_eq!(texts(&results["failures"]), Vec::<String>::new());
    assert_eq!(results["holds"], true);
    for (way, run) in results["torch"]["ways"].as_object().unwrap() {
        let compiles = list(&run["findings"]).find(|finding| finding["what"] == "it compiles").unwrap();
        assert_eq!(compiles["verdict"], "skipped", "{way}: {compiles}");
        assert_eq!(compiles["saw"], "it does not hold here without a slice either: no compiler", "{way}");
    }
    assert!(list(&results["unseen"]).any(|unseen| unseen["what"] == "it compiles"), "{results}");
}

#[test]
fn what_fails_only_in_a_slice_is_a_failure() {
    let results = check(&format!("{GOOD}\n[ $2 = limited ] && {NO_COMPILER}"));
    assert_eq!(texts(&results["failures"]), ["PyTorch, limited: it compiles: no compiler"]);
}

#[test]
fn a_script_that_does_not_run_is_not_tried_in_a_slice() {
    let results = check("exit 1");
    assert_eq!(results["torch"]["ways"].as_object().unwrap().len(), 1);
    assert_eq!(texts(&results["failures"]), ["torch: something of it can be looked at: nothing was"]);
}

#[test]
fn ncu_is_not_tried_and_the_reason_is_named() {
    let dir = TempDir::new().unwrap();
    std::os::unix::fs::symlink("/bin/true", dir.path().join("ncu")).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("folder/check_frameworks.py");
    let mut python = Command::new("python3");
    python.arg(script).args(["ncu", "0", "/bin/true"]);
    python.env("PATH", format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap()));
    let said: Value = serde_json::from_slice(&python.output().unwrap().stdout).unwrap();
    assert!(said["missing"].as_str().unwrap().contains("does not run in a slice"), "{said}");
    assert_eq!(list(&said["findings"]).count(), 0);
}

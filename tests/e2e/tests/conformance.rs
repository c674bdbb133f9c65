//! The GPU check's conformance cases on the simulated GPU: without a slice, in a slice of the whole device, and in a
//! limited slice. The cases that the check may skip are listed here, so that no other is skipped unnoticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use aliquot_harness::{SimulatedGpu, artifacts};
use serde_json::Value;

/// The cases that the check may skip on the simulated GPU: a device has multicast objects only if it has a link to
/// another one, and a slice of one device shows one device.
const SKIPPED: [&str; 1] = ["multicast objects"];
/// The number of checks that run at once, each with a device and a manager of its own. A case spends most of its time
/// waiting until the manager looks at the device.
const CHECKS: usize = 4;

/// A list in the check's results.
fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

/// The names of all cases.
fn case_names() -> Vec<String> {
    let listed = Command::new(artifacts::gpu_check()).arg("--list-cases").output().unwrap();
    String::from_utf8(listed.stdout).unwrap().lines().map(ToOwned::to_owned).collect()
}

/// The results of a check of `cases`, each in each of the three ways.
fn check<'a>(programs: &Path, cases: impl Iterator<Item = &'a String>) -> Value {
    // Kernels of several streams run beside each other, as on a GPU.
    let gpu = SimulatedGpu::with("concurrent_kernels = 8\n");
    let results = tempfile::tempdir().unwrap();
    let json = results.path().join("results.json");
    let mut check = Command::new(artifacts::gpu_check());
    check.args(["--only", "conformance", "--programs"]).arg(programs).arg("--json").arg(&json);
    check.args(cases.flat_map(|case| ["--case", case]));
    // No time limit is needed: the check itself ends a case that hangs, and counts it as failed.
    let outcome = gpu.show_to(&mut check).output().unwrap();
    let text = fs::read_to_string(&json).unwrap_or_else(|error| panic!("no results: {error}\n{outcome:?}"));
    let results: Value = serde_json::from_str(&text).unwrap();
    let failed: Vec<String> = list(&results, "conformance")
        .flat_map(|case| list(case, "findings").map(move |finding| (case, finding)))
        .filter(|(_, finding)| !["holds", "skipped"].contains(&finding["verdict"].as_str().unwrap()))
        .map(|(case, finding)| format!("{}, {}: {finding}", case["case"], case["way"]))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(outcome.status.success(), "{outcome:?}");
    results
}

#[test]
fn every_case_holds_in_each_of_the_three_ways() {
    let programs = artifacts::cli().parent().unwrap();
    assert_eq!(artifacts::manager().parent(), Some(programs));
    let names = case_names();
    let results: Vec<Value> = thread::scope(|scope| {
        let part = |first| names.iter().skip(first).step_by(CHECKS);
        let checks: Vec<_> = (0..CHECKS).map(|first| scope.spawn(move || check(programs, part(first)))).collect();
        checks.into_iter().map(|check| check.join().unwrap()).collect()
    });

    let cases: Vec<&Value> = results.iter().flat_map(|results| list(results, "conformance")).collect();
    for name in &names {
        let ways: BTreeSet<&str> =
            cases.iter().filter(|case| case["case"] == **name).map(|case| case["way"].as_str().unwrap()).collect();
        assert_eq!(ways.len(), 3, "{name}: {ways:?}");
    }
    let findings = cases.iter().flat_map(|case| list(case, "findings"));
    let skipped: BTreeSet<&str> = findings
        .filter(|finding| finding["verdict"] == "skipped")
        .map(|finding| finding["what"].as_str().unwrap())
        .collect();
    assert_eq!(skipped, BTreeSet::from(SKIPPED));
}

//! The GPU check's conformance cases on the simulated GPU: without a slice, in a slice of the whole device, and in a
//! limited slice. The cases that the check may skip are listed here, so that no other is skipped unnoticed.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use aliquot_harness::{SimulatedGpu, artifacts};
use serde_json::Value;

/// What the check may skip on the simulated GPU: a device has multicast objects where it has a link to another, and a
/// slice of one device shows one.
const SKIPPED: [&str; 1] = ["multicast objects"];

/// A list in the check's results.
fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default().iter()
}

#[test]
fn every_case_holds_in_each_of_the_three_ways() {
    let gpu = SimulatedGpu::new();
    let results = tempfile::tempdir().unwrap();
    let json = results.path().join("results.json");
    let programs = artifacts::cli().parent().unwrap();
    assert_eq!(artifacts::manager().parent(), Some(programs));
    let mut check = Command::new(artifacts::gpu_check());
    check.args(["--only", "conformance", "--programs"]).arg(programs).arg("--json").arg(&json);
    // No time limit is needed: the check itself ends a case that hangs, and counts it as failed.
    let outcome = gpu.show_to(&mut check).output().unwrap();

    let text = fs::read_to_string(&json).unwrap_or_else(|error| panic!("no results: {error}\n{outcome:?}"));
    let results: Value = serde_json::from_str(&text).unwrap();
    let (mut failed, mut skipped, mut ways) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for case in list(&results, "conformance") {
        ways.insert(case["way"].as_str().unwrap());
        for finding in list(case, "findings") {
            match finding["verdict"].as_str().unwrap() {
                "holds" => {}
                "skipped" => drop(skipped.insert(finding["what"].as_str().unwrap())),
                _ => failed.push(format!("{}, {}: {finding}", case["case"], case["way"])),
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(skipped, BTreeSet::from(SKIPPED));
    assert_eq!(ways.len(), 3);
    assert!(outcome.status.success(), "{outcome:?}");
}

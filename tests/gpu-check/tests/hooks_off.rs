//! The check must fail where slices are not enforced: without the shim, and with a shim whose hooks do not limit
//! launches or memory.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use aliquot_harness::{HostProgram, SimulatedGpu, artifacts, wait};
use common::{programs, texts, with_each_slice};
use serde_json::Value;
use tempfile::TempDir;

/// Allowed error of shares in percentage points. It is large because machines that run tests are busy. Without a launch
/// hook the error is 50 and more.
const SHARE_TOLERANCE: &str = "20";

/// Runs the check with these arguments. Returns whether all expectations hold, and the failures.
fn check(gpu: &SimulatedGpu, programs: &Path, args: &[&str]) -> (bool, Vec<String>) {
    let results = tempfile::tempdir().unwrap();
    let json = results.path().join("results.json");
    let mut check = Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check"));
    check.args(["--quick", "--share-tolerance", SHARE_TOLERANCE, "--programs"]).arg(programs);
    check.arg("--json").arg(&json).args(args);
    let outcome = gpu.show_to(&mut check).output().unwrap();
    let text = fs::read_to_string(&json).unwrap_or_else(|error| panic!("no results: {error}\n{outcome:?}"));
    let results: Value = serde_json::from_str(&text).unwrap();
    let holds = results["holds"].as_bool().unwrap();
    assert_eq!(outcome.status.code(), Some(if holds { 0 } else { 1 }), "{outcome:?}");
    (holds, texts(&results["failures"]))
}

const CAP: [&str; 4] = ["--only", "conformance", "--case", "cap"];
const SHARES: [&str; 2] = ["--only", "shares"];
const HOOKS: [&str; 2] = ["--only", "hooks"];

const LAUNCHES: [&str; 5] = ["launch", "launch-per-thread", "launch-ex", "launch-cooperative", "graph"];
const MALLOCS: [&str; 2] = ["malloc", "malloc-async"];
const BY_PROC_ADDRESS: &str = " by cuGetProcAddress";

/// Fails unless exactly these ways to use the device are not noticed.
#[track_caller]
fn assert_unnoticed<T: AsRef<str>>(gpu: &SimulatedGpu, programs: &Path, unnoticed: &[T]) {
    let (_, failures) = check(gpu, programs, &HOOKS);
    assert!(!failures.iter().any(|failure| failure.contains("to its end")), "{failures:?}");
    for function in LAUNCHES.iter().chain(&MALLOCS) {
        for way in [(*function).to_owned(), format!("{function}{BY_PROC_ADDRESS}")] {
            let fails = failures.iter().any(|failure| failure.contains(&format!("limited: {way}: its")));
            assert_eq!(fails, unnoticed.iter().any(|unnoticed| unnoticed.as_ref() == way), "{way}: {failures:?}");
        }
    }
}

/// The real command line, with a library before the shim that passes functions whose names begin with `passes` directly
/// to the driver.
fn with_hooks_that_pass(variant: &str, passes: &str) -> TempDir {
    let passes = format!("-DPASSES={passes}");
    let library = HostProgram::variant("passes_by", variant, &["-shared", "-fPIC", &passes]);
    with_each_slice(&format!(r#"export LD_PRELOAD="{}:$LD_PRELOAD""#, library.path().display()))
}

#[test]
fn with_every_hook_in_force_the_cap_holds() {
    let gpu = SimulatedGpu::new();
    let real = programs(r#"exec "$real" "$@""#);
    assert_eq!(check(&gpu, real.path(), &CAP), (true, Vec::new()));
    assert_unnoticed::<&str>(&gpu, real.path(), &[]);
}

#[test]
fn with_every_hook_in_force_the_shares_hold() {
    let gpu = SimulatedGpu::new();
    let real = programs(r#"exec "$real" "$@""#);
    // A machine that runs tests can be too busy for a right share.
    wait::in_one_of_a_few(|| match check(&gpu, real.path(), &SHARES) {
        (true, _) => Ok("all shares hold".to_owned()),
        (false, failures) => Err(format!("{failures:?}")),
    });
}

#[test]
fn with_no_shim_at_all_it_fails() {
    let gpu = SimulatedGpu::new();
    let bare = programs(r#"while [ "$1" != -- ]; do shift; done; shift; exec "$@""#);
    for (part, fails) in [
        (&CAP[..], "by the driver the slice took no more"),
        (&SHARES[..], "kernels of 1 ms beside nothing"),
        // This part by itself only measures.
        (&["--only", "overhead"], "hooks: before the other parts, limited: "),
    ] {
        let (holds, failures) = check(&gpu, bare.path(), part);
        assert!(!holds && failures.iter().any(|failure| failure.contains(fails)), "{fails}: {failures:?}");
    }
}

#[test]
fn with_a_launch_hook_that_passes_it_fails() {
    let gpu = SimulatedGpu::new();
    let programs = with_hooks_that_pass("launches.so", r#""cuLaunch","cuGraphLaunch""#);
    let (holds, failures) = check(&gpu, programs.path(), &CAP);
    let is_of_launches = |failure: &String| failure.starts_with("hooks: before the other parts, limited: launch: its");
    assert!(!holds && failures.iter().all(is_of_launches), "{failures:?}");
    let (holds, failures) = check(&gpu, programs.path(), &SHARES);
    assert!(
        !holds && failures.iter().any(|failure| failure.contains("kernels of 1 ms beside nothing")),
        "{failures:?}"
    );
    assert_unnoticed(&gpu, programs.path(), &LAUNCHES);
}

#[test]
fn with_some_forms_that_pass_it_names_just_these() {
    let gpu = SimulatedGpu::new();
    let passes = r#""cuLaunchKernelEx","cuLaunchCooperative","cuLaunchKernel_ptsz","cuGraphLaunch","cuMemAllocAsync""#;
    let unnoticed = ["launch-ex", "launch-cooperative", "launch-per-thread", "graph", "malloc-async"];
    assert_unnoticed(&gpu, with_hooks_that_pass("forms.so", passes).path(), &unnoticed);
}

#[test]
fn with_a_look_up_that_passes_it_fails() {
    let gpu = SimulatedGpu::new();
    let programs = with_hooks_that_pass("look_up.so", r#""cuGetProcAddress""#);
    let unnoticed: Vec<String> = LAUNCHES.iter().chain(&MALLOCS).map(|way| format!("{way}{BY_PROC_ADDRESS}")).collect();
    assert_unnoticed(&gpu, programs.path(), &unnoticed);
}

#[test]
fn with_a_memory_hook_that_passes_it_fails() {
    let gpu = SimulatedGpu::new();
    let programs = with_hooks_that_pass("memory.so", r#""cuMemAlloc","cuMemCreate","cuArray","cuMipmapped""#);
    let (holds, failures) = check(&gpu, programs.path(), &CAP);
    let said = |text: &str| failures.iter().any(|failure| failure.contains(text));
    assert!(!holds && said("comes to an end") && said("by the driver the slice took no more"), "{failures:?}");
    assert_unnoticed(&gpu, programs.path(), &MALLOCS);
}

#[test]
fn with_only_a_pool_hook_that_passes_it_fails() {
    let gpu = SimulatedGpu::new();
    let programs =
        with_hooks_that_pass("pools.so", r#""cuMemAllocAsync","cuMemAllocFromPool","cuMemFreeAsync","cuMemPool""#);
    let (holds, failures) = check(&gpu, programs.path(), &CAP);
    let said = |text: &str| failures.iter().any(|failure| failure.contains(text));
    assert!(!holds && said("by the driver the slice took no more"), "{failures:?}");
    for function in ["cuMemAllocAsync", "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync"] {
        assert!(said(&format!("{function}: the slice's memory comes to an end")), "{function}: {failures:?}");
    }
    assert!(!said("cuMemAlloc: "), "{failures:?}");
}

#[test]
fn in_a_slice_itself_it_refuses_to_judge() {
    let gpu = SimulatedGpu::new();
    let mut inside = Command::new(artifacts::cli());
    inside.args(["run", "--gpu-core", "50", "--gpu-memory", "4GiB", "--"]).arg(env!("CARGO_BIN_EXE_aliquot-gpu-check"));
    let outcome = gpu.show_to(&mut inside).output().unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    assert!(String::from_utf8_lossy(&outcome.stderr).contains("run the check outside of one"), "{outcome:?}");
}

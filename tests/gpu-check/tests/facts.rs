//! Facts about the driver, on simulated GPUs of which they are known.

use std::process::Command;

use aliquot_harness::SimulatedGpu;
use serde_json::Value;

/// The findings of one fact.
fn fact(gpu: &SimulatedGpu, name: &str) -> Value {
    let mut worker = Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check"));
    let outcome = gpu.show_to(worker.args(["worker", "fact", name])).output().unwrap();
    assert!(outcome.status.success(), "{outcome:?}");
    serde_json::from_slice(&outcome.stdout).unwrap()
}

/// A figure by its name.
#[track_caller]
fn figure(findings: &Value, what: &str) -> f64 {
    let figures = findings["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["what"] == what);
    found.and_then(|figure| figure["value"].as_f64()).unwrap_or_else(|| panic!("{what}: {figures:?}"))
}

#[test]
fn addresses_that_differ_are_named() {
    let answer = |findings: &Value| findings["answers"][0]["answer"].as_str().unwrap().to_owned();
    let (same, differ) =
        ("functions with one address, by dlsym and by cuGetProcAddress", "functions with two addresses");
    let exports = fact(&SimulatedGpu::new(), "addresses");
    assert!(figure(&exports, same) > 500.0);
    assert!(!answer(&exports).split(' ').any(|name| name == "cuMemAlloc_v2"), "{exports}");
    let others = fact(&SimulatedGpu::with("proc_address = 'other'\n"), "addresses");
    assert_eq!(figure(&others, same), 0.0);
    assert_eq!(figure(&others, differ), figure(&exports, same) + figure(&exports, differ));
    assert!(answer(&others).split(' ').any(|name| name == "cuMemAlloc_v2"), "{others}");
}

#[test]
fn a_second_process_has_a_context_of_its_own() {
    for entries in ["", "long_process_entries = true\n"] {
        let contexts = fact(&SimulatedGpu::with(&format!("context_memory = '300MiB'\n{entries}")), "contexts");
        assert_eq!(figure(&contexts, "the context of a second process: more of the device in use"), 300.0);
        assert_eq!(figure(&contexts, "listed for the second process"), 300.0);
    }
}

#[test]
fn markers_are_timed_behind_graphs_and_in_streams() {
    let costs = fact(&SimulatedGpu::with("write_ns = 20000\n"), "marker-cost");
    let behind =
        |mark: &str| figure(&costs, &format!("graphs of 10 kernels of 3 us, own stream, {mark} behind each: device"));
    assert!(behind("no marker") >= 30.0);
    assert!(behind("a write") >= 50.0);
    for setting in ["", ", CUDA_DEVICE_MAX_CONNECTIONS=1", ", CUDA_DEVICE_MAX_CONNECTIONS=8"] {
        for streams in [2, 8] {
            let all_us = figure(&costs, &format!("{streams} streams, each 100 kernels of 50 us, no markers{setting}"));
            // One stream's kernels run one after the other.
            assert!(all_us >= 5000.0, "{streams}{setting}: {all_us}");
        }
    }
}

#[test]
fn markers_are_timed_between_kernels_that_overlap() {
    let costs = fact(&SimulatedGpu::with("write_ns = 20000\n"), "next-launches");
    for order in ["one after the other", "begun early"] {
        let behind = |mark: &str| figure(&costs, &format!("kernels of 30 us, {order}, {mark} behind each: device"));
        // On the simulated GPU kernels of one stream never overlap.
        assert!(behind("no marker") >= 30.0, "{costs}");
        assert!(behind("a write") >= 50.0, "{costs}");
    }
    let old = fact(&SimulatedGpu::with("[[device]]\ncompute_capability = '8.0'\n"), "next-launches");
    assert_eq!(old["findings"][0]["verdict"], "skipped", "{old}");
}

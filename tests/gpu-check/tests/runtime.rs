//! Programs of the CUDA runtime, built by NVIDIA's compiler. NVIDIA's runtime library does not run on the simulated GPU,
//! so a stand-in for it takes its place where the program is to run.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use aliquot_harness::{HostProgram, SimulatedGpu, nvidia_compiler, wait};
use common::{list, texts, with_each_slice};
use serde_json::Value;
use tempfile::TempDir;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/folder/check_runtime.cu");

/// Allowed error of shares in percentage points: see `hooks_off.rs`.
const SHARE_TOLERANCE: &str = "20";

/// The part's results on `gpu`, where `nvcc` is this shell script, and each program in a slice begins with the shell
/// script `first`.
fn check(gpu: &SimulatedGpu, nvcc: &str, first: &str) -> Value {
    let (programs, dir) = (with_each_slice(first), TempDir::new().unwrap());
    fs::copy(SOURCE, programs.path().join("check_runtime.cu")).unwrap();
    // Written by another process: see `programs`.
    let mut write = Command::new("sh");
    write.args(["-c", "printf '#!/bin/sh\n%s\n' \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", nvcc]);
    assert!(write.arg(dir.path().join("nvcc")).status().unwrap().success());
    let json = dir.path().join("results.json");
    let mut check = Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check"));
    check.args(["--quick", "--only", "runtime", "--share-tolerance", SHARE_TOLERANCE, "--programs"]);
    check.arg(programs.path()).arg("--json").arg(&json);
    check.env("PATH", format!("{}:/usr/bin:/bin", dir.path().display()));
    let outcome = gpu.show_to(&mut check).output().unwrap();
    let text = fs::read_to_string(&json).unwrap_or_else(|error| panic!("no results: {error}\n{outcome:?}"));
    serde_json::from_str(&text).unwrap()
}

/// NVIDIA's compiler.
fn compiler() -> String {
    format!("exec '{}' \"$@\"", nvidia_compiler().join("bin/nvcc").display())
}

/// NVIDIA's compiler, which links the stand-in in place of either kind of the runtime library.
fn compiler_with_stand_in(gpu: &SimulatedGpu) -> String {
    let stand_in = HostProgram::linked_library(gpu, "runtime_stand_in");
    let nvcc = nvidia_compiler().join("bin/nvcc");
    format!(
        r#"case "$*" in *check_runtime.cu*) ;; *) exec '{nvcc}' "$@";; esac
for argument; do
    case "$argument" in static|shared) argument=none;; esac
    set -- "$@" "$argument"
    shift
done
exec '{nvcc}' "$@" -Xlinker '{stand_in}' -Xlinker --allow-shlib-undefined"#,
        nvcc = nvcc.display(),
        stand_in = stand_in.path().display()
    )
}

/// Why programs of the runtime could not be looked at.
fn reasons(results: &Value) -> Vec<&str> {
    let unseen = list(&results["unseen"]).filter(|unseen| unseen["what"] == "a program of the CUDA runtime");
    unseen.map(|unseen| unseen["why"].as_str().unwrap()).collect()
}

/// The failures, but for those of the hooks, at which the check looks before this part.
fn failures(results: &Value) -> Vec<String> {
    let mut failures = texts(&results["failures"]);
    failures.retain(|failure| !failure.starts_with("hooks: "));
    failures
}

/// Fails unless nothing could be looked at for `reason`, and the check says so.
#[track_caller]
fn assert_unseen(results: &Value, reason: &str) {
    let reasons = reasons(results);
    assert!(!reasons.is_empty() && reasons.iter().all(|why| why.contains(reason)), "{reason}: {results}");
    assert_eq!(failures(results), ["runtime: something of it can be looked at: nothing was"]);
    assert_eq!(results["holds"], false);
}

#[test]
fn programs_of_the_runtime_get_their_slice() {
    let gpu = SimulatedGpu::new();
    let nvcc = compiler_with_stand_in(&gpu);
    // A machine that runs tests can be too busy for a right share.
    wait::in_one_of_a_few(|| {
        let results = check(&gpu, &nvcc, "");
        let cases: Vec<&Value> = list(&results["parts"]).filter(|part| part["part"] == "runtime").collect();
        let findings = cases.iter().flat_map(|part| list(&part["cases"])).map(|case| list(&case["findings"]).count());
        assert_eq!(reasons(&results), Vec::<&str>::new(), "{results}");
        let findings: Vec<usize> = findings.collect();
        assert!(findings.len() == 2 && findings.iter().all(|&count| count > 20), "{findings:?}");
        match failures(&results).is_empty() && results["holds"] == true {
            true => Ok("everything holds".to_owned()),
            false => Err(format!("{:?}", results["failures"])),
        }
    });
}

#[test]
fn without_the_shim_they_fail() {
    let gpu = SimulatedGpu::new();
    let failures = failures(&check(&gpu, &compiler_with_stand_in(&gpu), "unset LD_PRELOAD"));
    for library in ["static", "shared"] {
        for what in [
            "launches get the slice's share",
            "graphs get the slice's share",
            "malloc: its memory is charged",
            "malloc-async: its memory is charged",
            "launch: its launches are counted",
            "graph: its launches are counted",
            "limited: cudaMemGetInfo shows the slice",
            "limited: cudaGetDeviceProperties shows the slice",
            "limited: cudaMallocAsync refuses more than the slice has",
            "limited: cudaMalloc gives no more than the slice has",
        ] {
            let begins = format!("the {library} runtime library, limited: {what}");
            assert!(failures.iter().any(|failure| failure.contains(&begins)), "{begins}: {failures:#?}");
        }
    }
}

/// So it is with a compiler that is too new for the driver. The error shows that the library was found and asked.
#[test]
fn a_program_that_runs_nowhere_is_unseen() {
    let results = check(&SimulatedGpu::new(), &compiler(), "");
    assert_unseen(&results, "it does not run here without a slice either: cudaStreamCreate: cudaErrorSymbolNotFound");
    assert_eq!(list(&results["parts"]).flat_map(|part| list(&part["cases"])).count(), 3);
}

#[test]
fn a_compiler_that_cannot_compile_is_unseen() {
    let too_old = "[ $1 = --version ] && exit; echo 'error: -- unsupported GNU version!' >&2; exit 1";
    assert_unseen(&check(&SimulatedGpu::new(), too_old, ""), "unsupported GNU version");
}

#[test]
fn the_device_s_own_code_is_tried_first() {
    let dir = TempDir::new().unwrap();
    let tried = dir.path().join("tried");
    let nvcc = format!(
        "case \"$*\" in *check_runtime.cu*) echo \"$1\" >> '{}'; exit 1;; *) echo '#$ LIBRARIES=  \"-L/none\"';; esac",
        tried.display()
    );
    assert_unseen(&check(&SimulatedGpu::new(), &nvcc, ""), "nvcc cannot build it");
    let tried = fs::read_to_string(Path::new(&tried)).unwrap();
    assert_eq!(tried.lines().collect::<Vec<_>>(), ["-arch=native", "-O1", "-arch=native", "-O1"]);
}

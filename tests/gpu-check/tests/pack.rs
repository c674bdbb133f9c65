//! Packs the folder for a machine with a GPU, and runs it on the simulated GPU.

use std::fs;
use std::process::{Command, Output};

use aliquot_harness::SimulatedGpu;
use serde_json::Value;

/// The most bytes that the folder may hold here. Programs that are not optimised are larger than those that are
/// shipped.
const BYTES_MAX: &str = "134217728";

const TOLERANCE_POINTS: f64 = 5.0;
/// All parts of the check.
const PARTS: &str = "facts,conformance,overhead,shares,simulated,neighbours,deaths,runtime,torch,frameworks";
/// Number of runs. A share is wrong if it is wrong in each of them. In a single run, other load may have slowed down
/// the rate to which the share is compared.
const RUNS: usize = 4;

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

#[track_caller]
fn assert_success(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
}

/// The shares for which too much or nothing was measured, on either device. Shares that are too small are ignored,
/// because the machine that runs the tests may be busy.
fn shares_beyond(results: &Value) -> Vec<Value> {
    let is_beyond = |share: &&Value| {
        let percent = |field: &str| share[field].as_f64().unwrap_or_else(|| panic!("{field}: {share}"));
        let most = percent("wanted_percent") + TOLERANCE_POINTS;
        ["measured_percent", "simulated_percent"].iter().any(|field| !(0.0 < percent(field) && percent(field) <= most))
    };
    results["shares"].as_array().unwrap().iter().filter(is_beyond).cloned().collect()
}

#[test]
fn the_packed_folder_checks_a_simulated_gpu() {
    let gpu = SimulatedGpu::new();
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("gpu-check");
    let mut pack = Command::new(env!("CARGO_BIN_EXE_pack-gpu-check"));
    // Costs are not judged here, and optimisation takes most of the build time.
    pack.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").args(["--bytes-max", BYTES_MAX]).arg(&folder);
    // The packer itself fails if a program needs a newer C library than the floor.
    assert_success(&run(&mut pack));

    let json = parent.path().join("results.json");
    let check = |only: &[&str]| {
        let mut check = Command::new(folder.join("run.sh"));
        // With an empty environment: everything needed must be in the folder.
        check
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .args(["--quick", "--share-tolerance", "60", "--json"])
            .arg(&json)
            .args(only);
        assert_success(&run(gpu.show_to(&mut check)));
        serde_json::from_slice::<Value>(&fs::read(&json).unwrap()).unwrap()
    };
    // Another suite runs all conformance cases. Here it counts that cases run from the folder, in each of the three
    // ways.
    let results = check(&["--only", PARTS, "--case", "views", "--case", "cap"]);
    assert_eq!(results["failures"].as_array().unwrap(), &Vec::<Value>::new());
    assert_eq!(results["holds"], true);
    assert_eq!(results["schema"], "aliquot-gpu-check/2");
    // One of the two runs once more, without a manager.
    assert_eq!(results["conformance"].as_array().unwrap().len(), 2 * 3 + 1);
    let parts = results["parts"].as_array().unwrap().iter();
    let parts: Vec<&str> = parts.map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(parts, ["facts", "neighbours", "deaths", "runtime", "frameworks"]);
    // The report names what this machine lacks: PyTorch, and the compiler for programs of the CUDA runtime.
    for lacks in ["PyTorch", "a program of the CUDA runtime"] {
        assert!(results["unseen"].as_array().unwrap().iter().any(|unseen| unseen["what"] == lacks), "{lacks}");
    }
    let mut beyond = shares_beyond(&results);
    for _ in 1..RUNS {
        if !beyond.is_empty() {
            println!("once more, because of {beyond:?}");
            beyond = shares_beyond(&check(&["--only", "shares,simulated"]));
        }
    }
    assert!(beyond.is_empty(), "{beyond:?}");

    let again = run(Command::new(env!("CARGO_BIN_EXE_pack-gpu-check")).arg(&folder));
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"));
}

#[test]
fn without_a_gpu_it_says_so() {
    let output = run(Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check")).env_remove("LD_LIBRARY_PATH"));
    if output.status.code() == Some(1) {
        // This machine has a device, so only the programs that this test has not built are missing.
        assert!(String::from_utf8_lossy(&output.stderr).contains("--programs"));
        return;
    }
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stdout).contains("nothing to check here"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("libcuda.so.1"));
}

#[test]
fn a_part_that_does_not_exist_is_named() {
    let output = run(Command::new(env!("CARGO_BIN_EXE_aliquot-gpu-check")).args(["--only", "colour"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("colour"));
}

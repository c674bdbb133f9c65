//! Packs the folder for a machine with a GPU, and runs it on the simulated GPU.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use aliquot_harness::{SimulatedGpu, Sysroot, artifacts, wait};
use object::read::archive::ArchiveFile;
use object::{Object as _, ObjectSymbol as _};
use serde_json::Value;
use tempfile::TempDir;

/// The most bytes that the folder may hold here. Programs for tests are larger than those that are shipped.
const BYTES_MAX: &str = "1073741824";

const TOLERANCE_POINTS: f64 = 5.0;
/// All parts of the check that measure no shares.
const PARTS: &str = "facts,conformance,overhead,hooks,runtime,torch,frameworks";
/// Those of them for which machines that run tests lack the software.
const LACKING: [&str; 3] = ["runtime", "torch", "frameworks"];

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

#[track_caller]
fn assert_success(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
}

/// The packer, given the programs that tests use. To build them all for an old C library would take as long as to build
/// all tests. The packer's own tests build one of them.
fn pack(bytes_max: &str) -> Command {
    let mut pack = Command::new(env!("CARGO_BIN_EXE_pack-gpu-check"));
    let programs = artifacts::cli().parent().expect("a program lies in a directory");
    pack.args(["--bytes-max", bytes_max, "--programs"]).arg(programs);
    pack
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
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

/// A packed folder, and a simulated GPU that it checks.
struct Packed {
    gpu: SimulatedGpu,
    dir: TempDir,
}

impl Packed {
    fn new() -> Packed {
        let packed = Packed { gpu: SimulatedGpu::new(), dir: tempfile::tempdir().unwrap() };
        assert_success(&run(pack(BYTES_MAX).arg(packed.folder())));
        packed
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("gpu-check")
    }

    /// Runs the check of the folder with these arguments. Returns its exit code and its results.
    fn check(&self, args: &[&str]) -> (Option<i32>, Value) {
        let json = self.dir.path().join("results.json");
        let mut check = Command::new(self.folder().join("run.sh"));
        // With an empty environment: everything needed must be in the folder.
        check.env_clear().env("PATH", "/usr/bin:/bin").args(["--quick", "--share-tolerance", "60", "--json"]);
        let status = run(self.gpu.show_to(check.arg(&json).args(args))).status;
        (status.code(), serde_json::from_slice(&fs::read(&json).unwrap()).unwrap())
    }
}

#[test]
fn the_packed_folder_checks_a_simulated_gpu() {
    let packed = Packed::new();
    // A machine that runs tests can be too busy to notice everything in the time that a part has.
    wait::in_one_of_a_few(|| {
        // Another suite runs all conformance cases. Here it counts that cases run from the folder, in each of the three
        // ways.
        let (code, results) = packed.check(&["--only", PARTS, "--case", "views", "--case", "cap"]);
        let failures = texts(&results["failures"]);
        // What was asked for by name and could not be looked at is a failure.
        let expected = LACKING.map(|part| format!("{part}: something of it can be looked at: nothing was"));
        if failures != expected {
            return Err(format!("{failures:?}"));
        }
        assert_eq!(
            (code, &results["holds"], &results["parts_left"]),
            (Some(1), &false.into(), &Value::Array(Vec::new()))
        );
        assert_eq!(results["schema"], "aliquot-gpu-check/2");
        // One of the two runs once more, without a manager.
        assert_eq!(results["conformance"].as_array().unwrap().len(), 2 * 3 + 1);
        let parts = results["parts"].as_array().unwrap().iter();
        let parts: Vec<&str> = parts.map(|part| part["part"].as_str().unwrap()).collect();
        assert_eq!(parts, ["hooks", "runtime", "facts", "frameworks"]);
        // The report names the software that this machine lacks: PyTorch, and the compiler for programs of the CUDA
        // runtime.
        for lacks in ["PyTorch", "a program of the CUDA runtime"] {
            assert!(results["unseen"].as_array().unwrap().iter().any(|unseen| unseen["what"] == lacks), "{lacks}");
        }
        Ok("it finds what is there".to_owned())
    });

    let again = run(Command::new(env!("CARGO_BIN_EXE_pack-gpu-check")).arg(packed.folder()));
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"));
}

#[test]
fn the_packed_folder_measures_shares_and_deaths() {
    let packed = Packed::new();
    wait::in_one_of_a_few(|| {
        let (code, results) = packed.check(&["--only", "shares,simulated,neighbours,deaths"]);
        let parts = results["parts"].as_array().unwrap().iter();
        let parts: Vec<&str> = parts.map(|part| part["part"].as_str().unwrap()).collect();
        assert_eq!(parts, ["hooks", "deaths", "neighbours"]);
        let neighbours = results["parts"][2]["cases"].as_array().unwrap();
        for lease_ms in [2, 5, 20] {
            let name = format!("leases of at most {lease_ms} ms");
            let case = neighbours.iter().find(|case| case["case"] == *name);
            let case = case.unwrap_or_else(|| panic!("{name} is not in {neighbours:?}"));
            let done_percent = case["figures"][0]["value"].as_f64();
            assert!(done_percent.is_some_and(|percent| percent > 0.0), "{case}");
        }
        let (failures, beyond) = (texts(&results["failures"]), shares_beyond(&results));
        match failures.is_empty() && beyond.is_empty() && code == Some(0) {
            true => Ok("no share is too large".to_owned()),
            false => Err(format!("{failures:?}, {beyond:?}")),
        }
    });
}

#[test]
fn a_folder_that_is_too_large_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let output = run(pack("1000").arg(parent.path().join("gpu-check")));
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("at most 1000 are allowed"), "{output:?}");
}

/// The symbols that a program cannot do without, by their names.
fn needed_symbols(program: &Path) -> BTreeSet<String> {
    let data = fs::read(program).unwrap();
    let file = object::File::parse(&*data).unwrap();
    let needed = file.dynamic_symbols().filter(|symbol| symbol.is_undefined() && !symbol.is_weak());
    needed.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

/// The symbols that a shared library or an archive defines, by their names.
fn offered_symbols(library: &Path) -> BTreeSet<String> {
    let data = fs::read(library).unwrap();
    if let Ok(archive) = ArchiveFile::parse(&*data) {
        let symbols = archive.symbols().unwrap().expect("an archive to link to has a table of its symbols");
        return symbols.map(|symbol| String::from_utf8(symbol.unwrap().name().to_vec()).unwrap()).collect();
    }
    let file = object::File::parse(&*data).unwrap();
    let offered = file.dynamic_symbols().filter(|symbol| !symbol.is_undefined());
    offered.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

#[test]
fn programs_use_no_function_that_old_c_libraries_lack() {
    let libraries = Sysroot::debian_11().libraries();
    let offered: BTreeSet<String> = libraries.iter().flat_map(|library| offered_symbols(library)).collect();
    assert!(!offered.contains("close_range"), "glibc has it since 2.34");
    for program in [artifacts::cli(), artifacts::manager(), artifacts::gpu_check(), artifacts::fake_cuda()] {
        let needed = needed_symbols(program);
        assert!(needed.contains("write"), "{}: {needed:?}", program.display());
        let lacking: Vec<&String> = needed.difference(&offered).collect();
        assert!(lacking.is_empty(), "{} needs {lacking:?}", program.display());
    }
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

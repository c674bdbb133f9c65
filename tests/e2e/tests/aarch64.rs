//! The shim for aarch64, the other architecture of GPU hosts: it is built, compared with the shim for x86-64, and run
//! in an emulator.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use aliquot_harness::{HostProgram, MIB, Region, SimulatedGpu, artifacts, run, tool};
use object::{Object, ObjectSymbol};

const LIMIT_BYTES: u64 = 64 * MIB;

/// The names of the functions that `library` exports.
fn exports(library: &Path) -> BTreeSet<String> {
    let bytes = fs::read(library).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let symbols = file.dynamic_symbols().filter(|symbol| symbol.is_definition());
    symbols.map(|symbol| symbol.name().unwrap().to_owned()).collect()
}

/// Whether the environment says that this machine has no Rust library for aarch64.
fn is_skipped() -> bool {
    let skipped = env::var_os("ALIQUOT_SKIP_AARCH64").is_some();
    if skipped {
        eprintln!("SKIPPED: ALIQUOT_SKIP_AARCH64 is set");
    }
    skipped
}

#[test]
fn both_libraries_stand_for_the_same_functions() {
    if is_skipped() {
        return;
    }
    assert_eq!(exports(artifacts::shim_for_aarch64()), exports(artifacts::shim()));
}

/// With a small driver written in C: a program finds it in every way, and is refused one byte more than the limit.
#[test]
fn a_program_on_aarch64_is_limited_and_otherwise_unchanged() {
    if is_skipped() {
        return;
    }
    let gpu = SimulatedGpu::exact();
    let driver = tempfile::tempdir().unwrap();
    let library = HostProgram::for_aarch64("driver_of_11_3", &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
    symlink(library.path(), driver.path().join("libcuda.so.1")).unwrap();
    let program = HostProgram::for_aarch64("get_proc_address", &[]);
    let region = Region::new(&gpu, LIMIT_BYTES);
    fs::copy(artifacts::shim_for_aarch64(), region.shim()).unwrap();
    let command = |preloaded: Option<&Path>, bytes: Option<u64>| {
        let mut command = Command::new(tool("qemu-aarch64", "qemu-user"));
        command.args(["-L", "/usr/aarch64-linux-gnu", "-E"]);
        command.arg(format!("LD_LIBRARY_PATH={}", driver.path().display()));
        if let Some(library) = preloaded {
            command.arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
        }
        command.arg(program.path()).args(bytes.map(|bytes| bytes.to_string()));
        command.env("DEVICE_UUID", gpu.uuid(0));
        command
    };
    let answers = run(&mut command(None, None)).success();
    run(&mut command(Some(&region.shim()), None)).success().assert_said(&answers.stdout);

    let bare = run(&mut command(None, Some(LIMIT_BYTES))).success();
    assert_eq!(bare.stdout.matches("one byte more: 0, in order of a stream: 0\n").count(), 3, "{bare:?}");
    let limited = run(&mut command(Some(&region.shim()), Some(LIMIT_BYTES))).success();
    assert_eq!(limited.stdout, bare.stdout.replace(": 0", ": 2"), "{limited:?}");
    assert_eq!((region.used_bytes(0), region.peak_bytes(0)), (0, LIMIT_BYTES));
}

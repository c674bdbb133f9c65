//! NVIDIA's headers, from NVIDIA's Python packages.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use crate::python::PythonEnvironment;
use crate::{artifacts, run};

/// Unpacks the headers of the wheel in the directory `argv[1]` into the directory `argv[2]`.
const UNPACK: &str = r#"
import pathlib, sys, zipfile
(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
target = pathlib.Path(sys.argv[2])
with zipfile.ZipFile(wheel) as files:
    for name in files.namelist():
        place, _, header = name.rpartition("include/")
        if place and "/" not in header and header.endswith(".h"):
            (target / header).write_bytes(files.read(name))
"#;

/// The directory with the headers of the Python package `package` in version `version`, such as `nvidia-cuda-runtime`
/// 13.0.96.
///
/// The first call downloads them, which needs the network or a package cache. They are kept in the target directory.
#[must_use]
pub fn nvidia_headers(package: &str, version: &str) -> PathBuf {
    let python = PythonEnvironment::get();
    let base = artifacts::scratch_dir("headers");
    let lock = File::create(base.join("lock")).expect("a lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    let dir = base.join(format!("{package}-{version}"));
    if dir.is_dir() {
        return dir;
    }
    let wheel = tempfile::tempdir_in(&base).expect("a temporary directory");
    let mut download = python.module("pip");
    download.args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]);
    download.args(["--platform", "manylinux2014_x86_64", "--dest"]).arg(wheel.path());
    let _ = run(download.arg(format!("{package}=={version}"))).success();
    let unpacked = tempfile::tempdir_in(&base).expect("a temporary directory");
    let _ =
        run(Command::new(python.interpreter()).args(["-c", UNPACK]).arg(wheel.path()).arg(unpacked.path())).success();
    // Renamed last, so a directory of this name is complete.
    fs::rename(unpacked.keep(), &dir).expect("the headers get their name");
    dir
}

//! NVIDIA's headers and libraries, from NVIDIA's Python packages.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

use crate::python::PythonEnvironment;
use crate::{artifacts, run};

/// Unpacks the files of the wheel in the directory `argv[1]` that lie in a directory `argv[3]` and match the pattern
/// `argv[4]` into the directory `argv[2]`.
const UNPACK: &str = r#"
import pathlib, sys, zipfile
(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
target = pathlib.Path(sys.argv[2])
with zipfile.ZipFile(wheel) as files:
    for name in files.namelist():
        path = pathlib.PurePosixPath(name)
        if path.parent.name == sys.argv[3] and path.match(sys.argv[4]):
            (target / path.name).write_bytes(files.read(name))
"#;

/// The directory with the headers of the Python package `package` in version `version`, such as `nvidia-cuda-runtime`
/// 13.0.96.
///
/// The first call downloads them, which needs the network or a package cache. They are kept in the target directory.
#[must_use]
pub fn nvidia_headers(package: &str, version: &str) -> PathBuf {
    unpacked(package, version, "headers", "include", "*.h")
}

/// The directory with NVIDIA's runtime library, shared and static, from the Python package `package` in version
/// `version`. Downloaded and kept as [`nvidia_headers`] are.
#[must_use]
pub fn nvidia_runtime(package: &str, version: &str) -> PathBuf {
    unpacked(package, version, "runtime", "lib", "lib*")
}

/// The directory `kept_in/<package>-<version>` with those files of the package that lie in its directory `place` and
/// match `pattern`.
fn unpacked(package: &str, version: &str, kept_in: &str, place: &str, pattern: &str) -> PathBuf {
    let python = PythonEnvironment::get();
    let base = artifacts::scratch_dir(kept_in);
    let lock = File::create(base.join("lock")).expect("a lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    let dir = base.join(format!("{package}-{version}"));
    if dir.is_dir() {
        return dir;
    }
    let wheel = tempfile::tempdir_in(&base).expect("a temporary directory");
    let mut download = python.module("pip");
    download.args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]);
    download.args(["--retries", "10", "--timeout", "60"]);
    download.args(["--no-cache-dir", "--platform", "manylinux2014_x86_64", "--dest"]).arg(wheel.path());
    let _ = run(download.arg(format!("{package}=={version}"))).success();
    let unpacked = tempfile::tempdir_in(&base).expect("a temporary directory");
    let mut unpack = Command::new(python.interpreter());
    unpack.args(["-c", UNPACK]).args([wheel.path(), unpacked.path()]).args([place, pattern]);
    let _ = run(&mut unpack).success();
    // Renamed last, so a directory of this name is complete.
    fs::rename(unpacked.keep(), &dir).expect("the files get their name");
    dir
}

//! NVIDIA's compiler for CUDA, from NVIDIA's Python packages.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, flock};

use crate::python::PythonEnvironment;
use crate::{artifacts, run};

/// The packages of which the compiler consists: 125 MB to download.
const PACKAGES: [&str; 4] =
    ["nvidia-cuda-nvcc==13.5.37", "nvidia-nvvm==13.5.37", "nvidia-cuda-crt==13.5.37", "nvidia-cuda-runtime==13.5.37"];

/// The directory of the CUDA toolkit that has `bin/nvcc`. It needs a C++ compiler beside it.
///
/// The first call downloads it, which needs the network or a package cache. It is kept in the target directory.
#[must_use]
pub fn nvidia_compiler() -> PathBuf {
    let base = artifacts::scratch_dir("compiler");
    let lock = File::create(base.join("lock")).expect("a lock file");
    flock(&lock, FlockOperation::LockExclusive).expect("the lock");
    let dir = base.join(PACKAGES[0]);
    let toolkit = dir.join("nvidia/cu13");
    if dir.is_dir() {
        return toolkit;
    }
    let fresh = tempfile::tempdir_in(&base).expect("a temporary directory");
    let mut install = PythonEnvironment::get().module("pip");
    install.args(["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]);
    install.args(["--retries", "10", "--timeout", "60", "--no-cache-dir", "--target"]).arg(fresh.path()).args(PACKAGES);
    let _ = run(&mut install).success();
    let libraries = fresh.path().join("nvidia/cu13/lib");
    // The name by which programs are linked to the shared runtime library. The packages lack it.
    symlink("libcudart.so.13", libraries.join("libcudart.so")).expect("a link to the runtime library");
    // The compiler as a library, which is large, and which nothing here uses.
    fs::remove_file(libraries.join("libnvvm.so.4")).expect("the compiler's library");
    // Renamed last, so a directory of this name is complete.
    fs::rename(fresh.keep(), &dir).expect("the compiler gets its name");
    toolkit
}

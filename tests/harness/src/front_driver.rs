//! A driver of a test's own in front of the simulated one.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::{HostProgram, SimulatedGpu};

/// A library in C that is found as `libcuda.so.1`, and does what it does through the simulated driver, whose file the
/// environment variable `DRIVER_BEHIND` names.
#[derive(Debug)]
pub struct FrontDriver {
    dir: TempDir,
}

impl FrontDriver {
    /// The library `source` of `tests/programs`, in front of the driver of `gpu`.
    #[must_use]
    #[track_caller]
    pub fn new(gpu: &SimulatedGpu, source: &str) -> FrontDriver {
        let dir = tempfile::tempdir().expect("a directory");
        // Under another name: the shim knows the driver by it.
        let (name, other_name) = (b"libcuda.so.1\0", b"libcuda.so.0\0");
        let mut behind = fs::read(gpu.library_dir().join("libcuda.so.1")).expect("the simulated driver");
        for place in 0..behind.len() - name.len() {
            if behind[place..].starts_with(name) {
                behind[place..place + name.len()].copy_from_slice(other_name);
            }
        }
        fs::write(dir.path().join("behind.so"), behind).expect("a copy of the driver");
        let options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
        let front = HostProgram::variant(source, "libcuda.so.1", &options);
        fs::copy(front.path(), dir.path().join("libcuda.so.1")).expect("a copy of the library");
        FrontDriver { dir }
    }

    /// Makes `command` use this driver.
    pub fn show_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_LIBRARY_PATH", self.dir.path()).env("DRIVER_BEHIND", self.dir.path().join("behind.so"))
    }
}

//! A test's own driver library in front of the simulated one.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::{HostProgram, SimulatedGpu};

/// A C library that programs load as `libcuda.so.1`. It calls the simulated driver, whose file is named by the
/// environment variable `DRIVER_BEHIND`.
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
        // The simulated driver gets another soname, because the shim recognises the driver by its soname.
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

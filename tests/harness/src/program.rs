//! C programs from `tests/programs`. Each does one hazardous thing that real host programs do.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{SimulatedGpu, artifacts, tool};

/// A compiled C program or library.
pub struct HostProgram {
    path: PathBuf,
}

impl HostProgram {
    /// The program `tests/programs/<name>.c`, not linked to the driver: if it uses the driver, it looks it up at run
    /// time.
    #[must_use]
    pub fn new(name: &str) -> HostProgram {
        HostProgram::compile(name, name, &[])
    }

    /// The program `tests/programs/<name>.c`, linked to the driver.
    #[must_use]
    pub fn linked(gpu: &SimulatedGpu, name: &str) -> HostProgram {
        let search = format!("-L{}", gpu.library_dir().display());
        HostProgram::compile(name, &format!("{name}-linked"), &[search.as_ref(), "-lcuda".as_ref()])
    }

    /// The program `tests/programs/<name>.c`, linked so that its own functions interpose those of libraries.
    #[must_use]
    pub fn interposing(name: &str) -> HostProgram {
        HostProgram::compile(name, name, &["-rdynamic".as_ref()])
    }

    /// The library `tests/programs/<name>.c`.
    #[must_use]
    pub fn library(name: &str) -> HostProgram {
        HostProgram::compile(name, &format!("{name}.so"), &["-shared".as_ref(), "-fPIC".as_ref()])
    }

    /// The library `tests/programs/<name>.c`, linked to the driver.
    #[must_use]
    pub fn linked_library(gpu: &SimulatedGpu, name: &str) -> HostProgram {
        let search = format!("-L{}", gpu.library_dir().display());
        let link = ["-shared".as_ref(), "-fPIC".as_ref(), search.as_ref(), "-lcuda".as_ref()];
        HostProgram::compile(name, &format!("{name}-linked.so"), &link)
    }

    /// The library `tests/programs/<name>.c` with the symbol versions of `<name>.map` and the soname `soname`.
    #[must_use]
    pub fn versioned_library(name: &str, soname: &str) -> HostProgram {
        let map = artifacts::workspace().join("tests/programs").join(name).with_extension("map");
        let link = format!("-Wl,-soname,{soname},--version-script,{}", map.display());
        HostProgram::compile(name, &format!("{name}.so"), &["-shared".as_ref(), "-fPIC".as_ref(), link.as_ref()])
    }

    /// The program or library `tests/programs/<name>.c`, compiled with additional `arguments` into `<name>-<variant>`.
    #[must_use]
    pub fn variant(name: &str, variant: &str, arguments: &[&str]) -> HostProgram {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        HostProgram::compile(name, &format!("{name}-{variant}"), &arguments)
    }

    /// The program or library `tests/programs/<name>.c` for aarch64, compiled with additional `arguments`.
    #[must_use]
    pub fn for_aarch64(name: &str, arguments: &[&str]) -> HostProgram {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let compiler = tool("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross");
        HostProgram::compile_with(&compiler, name, &format!("{name}-aarch64"), &arguments)
    }

    fn compile(name: &str, output: &str, arguments: &[&OsStr]) -> HostProgram {
        HostProgram::compile_with(&tool("cc", "gcc libc6-dev"), name, output, arguments)
    }

    fn compile_with(compiler: &Path, name: &str, output: &str, arguments: &[&OsStr]) -> HostProgram {
        let sources = artifacts::workspace().join("tests/programs");
        let source = sources.join(name).with_extension("c");
        let path = artifacts::scratch_dir("programs").join(output);
        let headers = ["cuda_subset.h", "program.h", "look_up_by_hand.h"].map(|header| sources.join(header));
        let inputs: Vec<&Path> = headers.iter().map(PathBuf::as_path).chain([source.as_path()]).collect();
        if !is_newer(&path, &inputs) {
            // Compiled elsewhere and renamed, because another test may be running the program of this name. A temporary
            // directory, not a temporary file: this process must not hold the file open (see `copy_program`).
            let fresh = tempfile::tempdir_in(artifacts::scratch_dir("programs")).expect("a temporary directory");
            let compiled_path = fresh.path().join(output);
            let compiled = Command::new(compiler)
                .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
                .arg(&compiled_path)
                .arg(&source)
                .args(arguments)
                .arg("-ldl")
                .output()
                .expect("the compiler runs");
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            fs::rename(&compiled_path, &path).expect("the program gets its name");
        }
        HostProgram { path }
    }

    /// The path of the compiled file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A command that runs the program on `gpu`.
    #[must_use]
    pub fn on(&self, gpu: &SimulatedGpu) -> Command {
        let mut command = Command::new(&self.path);
        gpu.show_to(&mut command);
        command
    }
}

/// Copies the program or library `from` to `to`, by another process. If this process opened the file for writing, a
/// child that another thread starts at that moment would inherit the descriptor, and the file could not be executed.
#[track_caller]
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new(tool("cp", "coreutils")).arg("--").args([from, to]).output().expect("cp runs");
    assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
}

/// Whether `output` was made after all of `sources` were last changed.
fn is_newer(output: &Path, sources: &[&Path]) -> bool {
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    changed(output).is_ok_and(|made| sources.iter().all(|source| changed(source).is_ok_and(|source| source < made)))
}

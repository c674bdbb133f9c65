//! Python with packages from the public index.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::{FlockOperation, flock};

use crate::{SimulatedGpu, artifacts, tool};

/// A virtual environment with the packages that a requirements file in `tests/e2e` pins. It is made once and kept in
/// the target directory.
pub struct PythonEnvironment {
    dir: PathBuf,
}

impl PythonEnvironment {
    /// The environment with NVIDIA's packages. The first call makes it, which needs the network or a package cache.
    #[must_use]
    pub fn get() -> &'static PythonEnvironment {
        static MADE: OnceLock<PythonEnvironment> = OnceLock::new();
        MADE.get_or_init(|| PythonEnvironment::make("python", "requirements.txt"))
    }

    /// The environment with gRPC's packages. The first call makes it, as for [`PythonEnvironment::get`].
    #[must_use]
    pub fn grpc() -> &'static PythonEnvironment {
        static MADE: OnceLock<PythonEnvironment> = OnceLock::new();
        MADE.get_or_init(|| PythonEnvironment::make("python-grpc", "requirements-grpc.txt"))
    }

    /// The environment with UCX. The first call makes it, as for [`PythonEnvironment::get`].
    #[must_use]
    pub fn ucx() -> &'static PythonEnvironment {
        static MADE: OnceLock<PythonEnvironment> = OnceLock::new();
        MADE.get_or_init(|| PythonEnvironment::make("python-ucx", "requirements-ucx.txt"))
    }

    /// The environment with PyTorch for CUDA. The first call makes it, as for [`PythonEnvironment::get`].
    #[must_use]
    pub fn pytorch() -> &'static PythonEnvironment {
        static MADE: OnceLock<PythonEnvironment> = OnceLock::new();
        MADE.get_or_init(|| PythonEnvironment::make("python-pytorch", "requirements-pytorch.txt"))
    }

    /// The directory of the package `name`.
    #[must_use]
    pub fn package(&self, name: &str) -> PathBuf {
        let versions = fs::read_dir(self.dir.join("lib")).expect("the environment's libraries");
        let found = versions.flatten().map(|version| version.path().join("site-packages").join(name));
        found.into_iter().find(|dir| dir.is_dir()).unwrap_or_else(|| panic!("no Python package {name}"))
    }

    fn make(name: &str, requirements: &str) -> PythonEnvironment {
        let requirements = artifacts::workspace().join("tests/e2e").join(requirements);
        let pinned = fs::read_to_string(&requirements).expect("the list of Python packages");
        let base = artifacts::scratch_dir(name);
        let lock = File::create(base.join("lock")).expect("a lock file");
        flock(&lock, FlockOperation::LockExclusive).expect("the lock");
        let dir = base.join("venv");
        // Written last: an environment without this file is incomplete.
        let made_of = dir.join("made-of");
        if fs::read_to_string(&made_of).is_ok_and(|text| text == pinned) {
            return PythonEnvironment { dir };
        }
        let made = Command::new(tool("python3", "python3")).args(["-m", "venv", "--clear"]).arg(&dir).output();
        let made = made.expect("python3 runs");
        let errors = String::from_utf8_lossy(&made.stderr);
        assert!(made.status.success(), "no virtual environment (apt-get install python3-venv): {errors}");
        let installed = Command::new(dir.join("bin/pip"))
            .args(["install", "--quiet", "--disable-pip-version-check", "--retries", "10", "--timeout", "60"])
            // The environment is kept, so copies of the packages would only take space.
            .args(["--no-cache-dir", "--requirement"])
            .arg(&requirements)
            .output()
            .expect("pip runs");
        assert!(installed.status.success(), "pip install failed: {}", String::from_utf8_lossy(&installed.stderr));
        fs::write(&made_of, pinned).expect("the mark of a finished environment");
        PythonEnvironment { dir }
    }

    /// A command that runs the Python program `source` on `gpu`.
    #[must_use]
    pub fn program(&self, gpu: &SimulatedGpu, source: &str) -> Command {
        let mut command = Command::new(self.interpreter());
        command.args(["-c", source]).env("PYTHONDONTWRITEBYTECODE", "1");
        gpu.show_to(&mut command);
        command
    }

    /// The path of the Python interpreter.
    #[must_use]
    pub fn interpreter(&self) -> PathBuf {
        self.dir.join("bin/python")
    }

    /// A command that runs the Python module `name` as a program.
    #[must_use]
    pub fn module(&self, name: &str) -> Command {
        let mut command = Command::new(self.interpreter());
        command.args(["-m", name]);
        command
    }
}

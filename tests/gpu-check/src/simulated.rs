//! The simulated GPU in the programs' directory. Measurements on the device can be repeated on it, on the same machine.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

/// The libraries in the programs' directory, and the names under which programs load them.
pub(crate) const LIBRARIES: [(&str, &str); 2] =
    [("libaliquot_fake_cuda.so", "libcuda.so.1"), ("libaliquot_fake_nvml.so", "libnvidia-ml.so.1")];
/// The device's UUID.
const UUID: &str = "GPU-a11c0070-0000-4000-8000-000000000001";

/// This check's own simulated GPU. Dropping this removes it.
pub(crate) struct SimulatedGpu {
    dir: TempDir,
}

impl SimulatedGpu {
    /// Sets the simulated GPU up with the libraries in `programs`. `None` if they do not exist.
    pub(crate) fn set_up(programs: &Path) -> anyhow::Result<Option<SimulatedGpu>> {
        if !LIBRARIES.iter().all(|(file, _)| programs.join(file).is_file()) {
            return Ok(None);
        }
        let programs = programs.canonicalize()?;
        let dir = tempfile::Builder::new().prefix("aliquot-simulated-").tempdir()?;
        for (file, name) in LIBRARIES {
            symlink(programs.join(file), dir.path().join(name)).context("cannot set up the simulated GPU")?;
        }
        let gpu = SimulatedGpu { dir };
        let text = format!("state = {:?}\n[[device]]\nuuid = {UUID:?}\n", gpu.dir.path().join("state"));
        fs::write(gpu.config(), text).context("cannot set up the simulated GPU")?;
        Ok(Some(gpu))
    }

    /// The environment variables that make programs use it instead of a real GPU.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![
            ("LD_LIBRARY_PATH".into(), self.dir.path().into()),
            ("ALIQUOT_FAKE_GPU".into(), self.config().into_os_string()),
        ]
    }

    /// The device's UUID.
    pub(crate) fn uuid(&self) -> String {
        UUID.to_owned()
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("machine.toml")
    }
}

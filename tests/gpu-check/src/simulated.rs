//! The simulated GPU that lies beside the programs: what is measured on the device is measured there, too, on the same
//! machine.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

/// The libraries beside the programs, and the name by which each is looked for.
pub(crate) const LIBRARIES: [(&str, &str); 2] =
    [("libaliquot_fake_cuda.so", "libcuda.so.1"), ("libaliquot_fake_nvml.so", "libnvidia-ml.so.1")];
/// The device's UUID.
const UUID: &str = "GPU-a11c0070-0000-4000-8000-000000000001";

/// A simulated GPU of this check's own; it is gone when this is dropped.
pub(crate) struct SimulatedGpu {
    dir: TempDir,
}

impl SimulatedGpu {
    /// Sets it up with the libraries in `programs`. `None` if they are not there.
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

    /// The variables with which programs find it in place of a real one.
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

//! Simulated GPUs for one run: our own CUDA driver and NVML in place of NVIDIA's.
//!
//! Kernels take their time, and memory is counted and limited as on a real device, but nothing is computed. The
//! simulated devices exist for one run of this program and for what it starts.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::checkout::Checkout;
use crate::embedded::runtime_base;
use crate::error::{Failure, Result};

const CUDA_LIBRARY: &str = "libaliquot_fake_cuda.so";
const NVML_LIBRARY: &str = "libaliquot_fake_nvml.so";
/// The packages that contain them.
const PACKAGES: [&str; 2] = ["aliquot-fake-cuda", "aliquot-fake-nvml"];
/// The variable by which the simulated libraries find their machine.
const CONFIG_VARIABLE: &str = "ALIQUOT_FAKE_GPU";
/// Names under which programs load the two libraries.
const CUDA_NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
const NVML_NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// A machine with simulated GPUs. It disappears when this is dropped.
pub(crate) struct SimulatedGpu {
    dir: TempDir,
}

impl SimulatedGpu {
    /// Sets up a machine with one GPU, so that this process sees it when it loads [`SimulatedGpu::nvml_library`].
    pub(crate) fn set_up() -> Result<SimulatedGpu> {
        let gpu = SimulatedGpu::make_in(&runtime_base()?, 1)?;
        set_own_variable(CONFIG_VARIABLE, &gpu.config())?;
        Ok(gpu)
    }

    /// Makes a machine with `devices` GPUs, for other processes. Its files are in `base`.
    pub(crate) fn make_in(base: &Path, devices: u8) -> Result<SimulatedGpu> {
        let libraries = libraries()?;
        let failed = |error: std::io::Error| {
            Failure::new(format!("cannot set up the simulated GPU in {}: {error}", base.display()))
        };
        let dir = tempfile::Builder::new().prefix("aliquot-gpu-").tempdir_in(base).map_err(failed)?;
        let gpu = SimulatedGpu { dir };
        fs::create_dir(gpu.library_dir()).map_err(failed)?;
        for (library, names) in [(CUDA_LIBRARY, CUDA_NAMES), (NVML_LIBRARY, NVML_NAMES)] {
            for name in names {
                symlink(libraries.join(library), gpu.library_dir().join(name)).map_err(failed)?;
            }
        }
        let state = gpu.dir.path().join("state");
        fs::write(gpu.config(), config(&state, devices)).map_err(failed)?;
        Ok(gpu)
    }

    /// The NVML library that shows the simulated GPU.
    pub(crate) fn nvml_library(&self) -> PathBuf {
        self.library_dir().join(NVML_NAMES[0])
    }

    /// The variables with which a program must be started to use the simulated GPU.
    pub(crate) fn environment(&self) -> [(OsString, OsString); 2] {
        let mut search = self.library_dir().into_os_string();
        if let Some(users) = env::var_os("LD_LIBRARY_PATH").filter(|users| !users.is_empty()) {
            search.push(":");
            search.push(users);
        }
        [(CONFIG_VARIABLE.into(), self.config().into()), ("LD_LIBRARY_PATH".into(), search)]
    }

    fn library_dir(&self) -> PathBuf {
        self.dir.path().join("lib")
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("machine.toml")
    }
}

fn config(state: &Path, devices: u8) -> String {
    let device = "\n[[device]]\nname = \"Simulated GPU\"\nmemory = \"80GiB\"\n";
    // Rust's quoting of a path is a valid TOML basic string for every path that runtime_base accepts.
    format!("state = {state:?}\n{}", device.repeat(devices.into()))
}

/// Whether this process sees a simulated GPU of an `aliquot` that started it.
pub(crate) fn is_shown() -> bool {
    env::var_os(CONFIG_VARIABLE).is_some_and(|config| !config.is_empty())
}

/// Sets a variable of this process.
fn set_own_variable(name: &str, value: &Path) -> Result<()> {
    let threads = fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    if threads != 1 {
        return Err(Failure::new("the simulated GPU must be set up before this process has threads"));
    }
    // SAFETY: this is the only thread, as checked above, so no other one reads or writes the environment at the same
    // time.
    unsafe { env::set_var(name, value) };
    Ok(())
}

/// Whether the two libraries are there or can be built.
pub(crate) fn is_to_be_had() -> bool {
    exe_dir().is_ok_and(|exe_dir| {
        candidates(&exe_dir).iter().any(|dir| is_complete(dir)) || Checkout::of(&exe_dir).is_some()
    })
}

fn exe_dir() -> Result<PathBuf> {
    let exe =
        env::current_exe().map_err(|error| Failure::new(format!("cannot find the path of this program: {error}")))?;
    Ok(exe.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Where the two libraries are looked for.
fn candidates(exe_dir: &Path) -> [PathBuf; 2] {
    [exe_dir.to_owned(), exe_dir.join("../lib/aliquot")]
}

fn is_complete(dir: &Path) -> bool {
    [CUDA_LIBRARY, NVML_LIBRARY].iter().all(|library| dir.join(library).is_file())
}

/// The directory of the two libraries. Builds them if possible.
fn libraries() -> Result<PathBuf> {
    let exe_dir = exe_dir()?;
    let candidates = candidates(&exe_dir);
    if let Some(found) = candidates.iter().find(|dir| is_complete(dir)) {
        return Ok(found.clone());
    }
    if let Some(checkout) = Checkout::of(&exe_dir) {
        checkout.build("the simulated GPU", &PACKAGES)?;
        if is_complete(&exe_dir) {
            return Ok(exe_dir);
        }
    }
    let places: Vec<_> = candidates.iter().map(|dir| dir.display().to_string()).collect();
    Err(Failure::new(format!("the simulated GPU's libraries are in none of {}", places.join(", "))).hint(format!(
        "build them in a checkout of aliquot: cargo build --release {}; then run its target/release/aliquot, or install \
         {CUDA_LIBRARY} and {NVML_LIBRARY} from there into {}",
        PACKAGES.map(|package| format!("-p {package}")).join(" "),
        candidates[1].display()
    )))
}

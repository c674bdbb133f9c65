//! A machine with simulated GPUs.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_fake_machine::{CONFIG_VARIABLE, Config, Machine};
use tempfile::TempDir;

use crate::artifacts;

/// For [`SimulatedGpu::with`]: an H100 in MIG mode that has no instances yet. Behind all GPUs come the devices that its
/// instances are once they are made.
pub const PARTITIONABLE_GPU: &str = include_str!("h100_mig_profiles.toml");

/// For [`SimulatedGpu::with`], before all devices: contexts take no memory, allocations what they ask for,
/// and NVML knows of no more than programs can use. For tests that judge accounts by exact figures, which a driver's own overhead
/// would hide.
pub const EXACT_MEMORY: &str = "context_memory = 0\nallocation_block = '512B'\nreserved_memory = 0\n";

/// A machine with simulated GPUs of its own: what programs on it do, programs on another one do not see. It is gone,
/// with all its state, when this is dropped.
pub struct SimulatedGpu {
    dir: TempDir,
    machine: Machine,
}

impl SimulatedGpu {
    /// One device of 80 GiB; kernels and copies take their time, contexts and allocations the memory that they take of an
    /// H100.
    #[must_use]
    pub fn new() -> SimulatedGpu {
        SimulatedGpu::with("")
    }

    /// One device of 80 GiB with [`EXACT_MEMORY`].
    #[must_use]
    pub fn exact() -> SimulatedGpu {
        SimulatedGpu::with(EXACT_MEMORY)
    }

    /// A machine with the keys `configuration`, which is everything that the simulated machine's configuration file can
    /// say but where its state is.
    #[must_use]
    pub fn with(configuration: &str) -> SimulatedGpu {
        // In memory: the state is mapped and written all the time.
        let dir = tempfile::Builder::new()
            .prefix("aliquot-gpu-")
            // Programs under test drop their privileges and must still reach it.
            .permissions(Permissions::from_mode(0o755))
            .tempdir_in("/dev/shm")
            .expect("a directory in /dev/shm");
        let libraries = dir.path().join("lib");
        fs::create_dir(&libraries).expect("a directory for the libraries");
        for (library, names) in [
            (artifacts::fake_cuda(), ["libcuda.so.1", "libcuda.so"]),
            (artifacts::fake_nvml(), ["libnvidia-ml.so.1", "libnvidia-ml.so"]),
        ] {
            for name in names {
                symlink(library, libraries.join(name)).expect("a link to a library");
            }
        }
        let file = dir.path().join("machine.toml");
        let state = dir.path().join("state");
        fs::write(&file, format!("state = {state:?}\n{configuration}\n")).expect("the machine's configuration");
        // This makes the state, which programs of every user can then use.
        let machine = Config::load(&file).and_then(Machine::open).unwrap_or_else(|error| panic!("{error}"));
        SimulatedGpu { dir, machine }
    }

    /// Makes `command` see this machine's devices, and no others.
    pub fn show_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LD_LIBRARY_PATH", self.library_dir()).env(CONFIG_VARIABLE, self.config_file())
    }

    /// The directory with `libcuda.so.1` and `libnvidia-ml.so.1`.
    #[must_use]
    pub fn library_dir(&self) -> PathBuf {
        self.dir.path().join("lib")
    }

    /// The configuration file, for the variable `ALIQUOT_FAKE_GPU`.
    #[must_use]
    pub fn config_file(&self) -> PathBuf {
        self.dir.path().join("machine.toml")
    }

    /// NVML as this machine has it.
    #[must_use]
    pub fn nvml_library(&self) -> PathBuf {
        self.library_dir().join("libnvidia-ml.so.1")
    }

    /// The directory that holds the machine: configuration, state, libraries.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The machine's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.machine.config()
    }

    /// The UUID of device `index`, as NVML gives it.
    #[must_use]
    pub fn uuid(&self, index: usize) -> String {
        self.config().devices[index].uuid_text()
    }

    /// The device that the instance of GPU `gpu` is which has this profile and begins at memory slice `start`, once it
    /// is made.
    ///
    /// # Panics
    /// If no such instance is possible.
    #[must_use]
    pub fn instance(&self, gpu: usize, profile: &str, start: u32) -> usize {
        let mut devices = self.config().devices.iter();
        let found = devices.position(|device| {
            let partition = device.partition.as_ref();
            device.gpu == Some(gpu) && partition.is_some_and(|of| of.profile.name == profile && of.start == start)
        });
        found.unwrap_or_else(|| panic!("GPU {gpu} has no place for {profile} at {start}"))
    }

    /// The machine itself: the truth about who holds how much memory and has used how much device time. Through it a
    /// device goes bad or well while programs run, for all of them: [`Machine::report_xid`], [`Machine::set_lost`].
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl Default for SimulatedGpu {
    fn default() -> SimulatedGpu {
        SimulatedGpu::new()
    }
}

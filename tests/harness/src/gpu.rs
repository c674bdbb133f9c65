//! A machine with simulated GPUs.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_fake_machine::{CONFIG_VARIABLE, Config, Machine};
use tempfile::TempDir;

use crate::artifacts;

/// For [`SimulatedGpu::with`]: an H100 in MIG mode without instances. The devices of its possible instances come after
/// all GPUs in the configuration's list of devices.
pub const PARTITIONABLE_GPU: &str = include_str!("h100_mig_profiles.toml");

/// For [`SimulatedGpu::with`], before all devices: contexts take no memory, an allocation takes exactly the size asked
/// for, and NVML reports no reserved memory. For tests that compare accounts with exact figures, which a driver's own
/// overhead would hide.
pub const EXACT_MEMORY: &str = "context_memory = 0\nallocation_block = '512B'\nreserved_memory = 0\n";

/// A machine with its own simulated GPUs. Programs on one machine do not see programs on another. The machine and all
/// its state are removed when this is dropped.
pub struct SimulatedGpu {
    dir: TempDir,
    machine: Machine,
}

impl SimulatedGpu {
    /// One device of 80 GiB. Kernels and copies take time; contexts and allocations take as much memory as on an H100.
    #[must_use]
    pub fn new() -> SimulatedGpu {
        SimulatedGpu::with("")
    }

    /// One device of 80 GiB with [`EXACT_MEMORY`].
    #[must_use]
    pub fn exact() -> SimulatedGpu {
        SimulatedGpu::with(EXACT_MEMORY)
    }

    /// A machine with the keys `configuration`: any key of the simulated machine's configuration file except `state`.
    #[must_use]
    pub fn with(configuration: &str) -> SimulatedGpu {
        // On a memory file system: the state is mapped and written all the time.
        let dir = tempfile::Builder::new()
            .prefix("aliquot-gpu-")
            // Programs under test that drop their privileges must still reach the directory.
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
        // Creates the state file, which programs of every user can then use.
        let machine = Config::load(&file).and_then(Machine::open).unwrap_or_else(|error| panic!("{error}"));
        SimulatedGpu { dir, machine }
    }

    /// Makes `command` see only this machine's devices.
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

    /// The path of this machine's NVML library.
    #[must_use]
    pub fn nvml_library(&self) -> PathBuf {
        self.library_dir().join("libnvidia-ml.so.1")
    }

    /// Replaces the machine's NVML by one that does not have the function `name`, as older drivers do not have it.
    ///
    /// # Panics
    /// If there is no such function.
    pub fn hide_nvml_function(&self, name: &str) {
        let mut library = fs::read(self.nvml_library()).expect("the library");
        let places: Vec<usize> =
            (0..library.len()).filter(|&place| library[place..].starts_with(name.as_bytes())).collect();
        assert!(!places.is_empty(), "there is no {name}");
        for place in places {
            library[place] = b'_';
        }
        fs::remove_file(self.nvml_library()).expect("the link to the library");
        fs::write(self.nvml_library(), library).expect("the other library");
    }

    /// The directory that holds the machine: configuration, state, libraries.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The configuration of the simulated machine.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.machine.config()
    }

    /// The UUID of device `index`, as NVML gives it.
    #[must_use]
    pub fn uuid(&self, index: usize) -> String {
        self.config().devices[index].uuid_text()
    }

    /// The index of the device for the MIG instance of GPU `gpu` with this profile that begins at memory slice `start`.
    /// The instance need not exist yet.
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

    /// The simulated machine: it knows exactly how much memory each process holds and how much device time it has used.
    /// It can also break and repair devices while programs run: [`Machine::report_xid`], [`Machine::set_lost`].
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

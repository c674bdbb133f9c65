//! Node managers that publish their slices to podman.

use std::fs;

use rustix::process::geteuid;

use crate::{Node, SimulatedGpu, libraries_of};

/// The simulated driver's directory in containers: the last directory that loaders search by default.
const DRIVER_DIR: &str = "/usr/lib";

impl Node {
    /// Starts a manager that publishes its slices as CDI devices in podman's directory and mounts the simulated driver
    /// into their containers. `keys` are further keys of the configuration table `cdi`.
    #[must_use]
    pub fn publishing(gpu: &SimulatedGpu, keys: &str) -> Node {
        assert!(geteuid().is_root(), "this test publishes in /var/run/cdi: run it as root");
        Node::with(gpu, &format!("cdi_dir = '/var/run/cdi'\n{}", gpu.for_containers(keys)))
    }
}

impl SimulatedGpu {
    /// The configuration table `cdi` of a manager that mounts the simulated driver into its slices' containers, with
    /// the further keys `keys`.
    #[must_use]
    pub fn for_containers(&self, keys: &str) -> String {
        let mut settings =
            format!("[cdi]\nextra_env = ['ALIQUOT_FAKE_GPU={}']\n{keys}\n", self.config_file().display());
        let driver = ["libcuda.so.1", "libnvidia-ml.so.1"].map(|library| self.library_dir().join(library));
        // The simulated driver needs libraries that NVIDIA's driver does not need. An image may lack them.
        let needed =
            libraries_of(&driver[0]).into_iter().filter(|library| !library.to_string_lossy().contains("libc.so"));
        for library in driver.iter().cloned().chain(needed) {
            // The file itself: a link's target does not exist in a container.
            let file = fs::canonicalize(&library).expect("a library that was found is there");
            let name = library.file_name().expect("a library has a name").to_string_lossy();
            settings +=
                &format!("[[cdi.extra_mounts]]\nhost_path = {file:?}\ncontainer_path = '{DRIVER_DIR}/{name}'\n");
        }
        for (name, writable) in [("machine.toml", false), ("state", true), ("state.lock", true)] {
            let file = self.dir().join(name);
            settings += &format!("[[cdi.extra_mounts]]\nhost_path = {file:?}\nwritable = {writable}\n");
        }
        settings
    }
}

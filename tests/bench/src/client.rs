//! The measured program, client.c.

use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_harness::{SimulatedGpu, Slice, run, tool};

/// The configuration of a simulated device whose work takes no time, whose calls cost almost nothing, and whose
/// contexts take no memory. So hundreds of processes fit on it, and almost all measured cost is Aliquot's.
pub(crate) const INSTANT: &str =
    "mode = 'instant'\ncontext_memory = 0\nallocation_block = '512B'\nreserved_memory = 0\n";

/// The compiled program.
pub(crate) struct Client {
    path: PathBuf,
}

impl Client {
    /// Compiles the program into this program's directory.
    pub(crate) fn build() -> Client {
        let gpu = SimulatedGpu::with(INSTANT);
        let own = std::env::current_exe().expect("a running program has a path");
        let path = own.with_file_name("aliquot-bench-client");
        let status = Command::new(tool("cc", "gcc libc6-dev"))
            // Calls go directly through the global offset table, like those of a program that stores function pointers.
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-plt", "-Wl,-z,now", "-o"])
            .arg(&path)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/client.c"))
            .arg(format!("-L{}", gpu.library_dir().display()))
            .arg("-lcuda")
            .status();
        assert!(status.expect("the compiler runs").success(), "client.c does not compile");
        Client { path }
    }

    /// The command for the program with `arguments`, without the shim or in a slice.
    pub(crate) fn command(&self, gpu: &SimulatedGpu, slice: Option<&Slice>, arguments: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments.split(' '));
        gpu.show_to(&mut command);
        if let Some(slice) = slice {
            slice.preload_into(&mut command);
        }
        command
    }

    /// Runs the program, and returns the number that it prints.
    pub(crate) fn measure(&self, gpu: &SimulatedGpu, slice: Option<&Slice>, arguments: &str) -> f64 {
        measure(&mut self.command(gpu, slice, arguments))
    }
}

/// Runs a command of the program, and returns the number that it prints.
pub(crate) fn measure(command: &mut Command) -> f64 {
    let said = run(command).success().stdout;
    // A driver in front of the simulated one may print something too, at the end.
    said.lines().next().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{command:?} says {said:?}"))
}

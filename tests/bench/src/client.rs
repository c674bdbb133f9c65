//! The program that is measured: client.c.

use std::path::{Path, PathBuf};
use std::process::Command;

use aliquot_harness::{SimulatedGpu, Slice, run, tool};

/// The configuration of a simulated device whose work takes no time, whose calls cost next to nothing, and whose contexts
/// take no memory: hundreds of processes fit on it, and what is measured is ours alone.
pub(crate) const INSTANT: &str =
    "mode = 'instant'\ncontext_memory = 0\nallocation_block = '512B'\nreserved_memory = 0\n";

/// The program, compiled.
pub(crate) struct Client {
    path: PathBuf,
}

impl Client {
    /// Compiles the program beside this one.
    pub(crate) fn build() -> Client {
        let gpu = SimulatedGpu::with(INSTANT);
        let own = std::env::current_exe().expect("a running program has a path");
        let path = own.with_file_name("aliquot-bench-client");
        let status = Command::new(tool("cc", "gcc libc6-dev"))
            // Calls go straight through the table of addresses, as those of a program that keeps pointers do.
            .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-plt", "-Wl,-z,now", "-o"])
            .arg(&path)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/client.c"))
            .arg(format!("-L{}", gpu.library_dir().display()))
            .arg("-lcuda")
            .status();
        assert!(status.expect("the compiler runs").success(), "client.c does not compile");
        Client { path }
    }

    /// The program with `arguments`, bare or in a slice.
    pub(crate) fn command(&self, gpu: &SimulatedGpu, slice: Option<&Slice>, arguments: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments.split(' '));
        gpu.show_to(&mut command);
        if let Some(slice) = slice {
            slice.preload_into(&mut command);
        }
        command
    }

    /// Runs it, and returns the number that it prints.
    pub(crate) fn measure(&self, gpu: &SimulatedGpu, slice: Option<&Slice>, arguments: &str) -> f64 {
        measure(&mut self.command(gpu, slice, arguments))
    }
}

/// Runs a command of the program, and returns the number that it prints.
pub(crate) fn measure(command: &mut Command) -> f64 {
    let said = run(command).success().stdout;
    // A driver in front of the simulated one may say something, too, at the end.
    said.lines().next().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{command:?} says {said:?}"))
}

//! The limit also holds for a driver loaded from another path or into a linker namespace of its own. A second copy in
//! one process works as it would without the shim.

use std::fs;
use std::process::Command;

use aliquot_harness::{HostProgram, MIB, Region, SimulatedGpu, artifacts, run, unchanged_in_a_slice};
use tempfile::TempDir;

const LIMIT_BYTES: u64 = 64 * MIB;

struct Copies {
    gpu: SimulatedGpu,
    program: HostProgram,
    elsewhere: TempDir,
}

impl Copies {
    fn new() -> Copies {
        let elsewhere = tempfile::tempdir().unwrap();
        fs::copy(artifacts::fake_cuda(), elsewhere.path().join("driver.so")).unwrap();
        Copies { gpu: SimulatedGpu::new(), program: HostProgram::new("copies"), elsewhere }
    }

    /// The command of the program `copies` for the scenario `what`.
    fn command(&self, what: &str) -> Command {
        let mut command = self.program.on(&self.gpu);
        command.arg(what).arg(self.elsewhere.path().join("driver.so")).arg(LIMIT_BYTES.to_string());
        command
    }

    /// The program's output for the scenario `what`, with the limit and without one.
    fn limited_and_bare(&self, what: &str) -> (String, String) {
        let bare = unchanged_in_a_slice(&self.gpu, || self.command(what)).success();
        let region = Region::new(&self.gpu, LIMIT_BYTES);
        let limited = run(region.preload_into(&mut self.command(what))).success();
        (limited.stdout, bare.stdout)
    }
}

#[test]
fn the_only_copy_of_the_driver_is_limited_wherever_it_is() {
    let copies = Copies::new();
    for what in ["file", "namespace", "plain+close+file", "file+close+file", "file+close+plain", "file+plain"] {
        let (limited, bare) = copies.limited_and_bare(what);
        assert!(bare.contains("one byte more: 0\nthe same function by both ways: yes\n"), "{what}: {bare}");
        assert_eq!(limited, bare.replace("more: 0", "more: 2"), "{what}");
    }
}

/// A context of one copy is unknown to the other, so the shim must pass each call to the copy that it was meant for.
#[test]
fn a_second_copy_at_the_same_time_works_as_without_the_shim() {
    let copies = Copies::new();
    for what in ["plain+file", "plain+namespace", "file+namespace", "namespace+namespace"] {
        let (limited, bare) = copies.limited_and_bare(what);
        assert_eq!(limited, bare.replacen("more: 0", "more: 2", 1), "{what}");
    }
}

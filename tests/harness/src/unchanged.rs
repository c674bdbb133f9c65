//! Compares a program's behaviour with and without the shim.

use std::process::Command;

use crate::gpu::EXACT_MEMORY;
use crate::{HostProgram, Outcome, Region, SimulatedGpu, run};

/// Runs `command` twice: without the shim, and in a slice that has all of `gpu`. Both runs must have the same exit
/// status and the same output. Returns the outcome.
#[track_caller]
pub fn unchanged_in_a_slice(gpu: &SimulatedGpu, command: impl Fn() -> Command) -> Outcome {
    let bare = run(&mut command());
    let region = Region::unlimited(gpu);
    let in_slice = run(region.preload_into(&mut command()));
    bare.assert_same(&in_slice);
    bare
}

/// Runs `tests/programs/<program>.c` without the shim on a device of `bytes`, and in a slice of `bytes` on a device of
/// 80 GiB. Both must print the same. Both machines have [`EXACT_MEMORY`] and the keys `configuration`. Returns the
/// output, and the region as the program left it.
#[track_caller]
pub fn like_a_device_of(bytes: u64, configuration: &str, program: &str, arguments: &[&str]) -> (String, Region) {
    let small = SimulatedGpu::with(&format!("{EXACT_MEMORY}{configuration}\n[[device]]\nmemory = {bytes}\n"));
    let large = SimulatedGpu::with(&format!("{EXACT_MEMORY}{configuration}"));
    let program = HostProgram::linked(&large, program);
    let on_small = run(program.on(&small).args(arguments)).success();
    let region = Region::new(&large, bytes);
    let in_slice = run(region.preload_into(program.on(&large).args(arguments))).success();
    let lines = |outcome: &Outcome| outcome.stdout.lines().map(str::to_owned).collect::<Vec<_>>();
    for (number, (bare, sliced)) in lines(&on_small).iter().zip(&lines(&in_slice)).enumerate() {
        assert_eq!(bare, sliced, "line {number}: on a device of {bytes} bytes, and in a slice of it");
    }
    assert_eq!(on_small.stdout, in_slice.stdout, "on a device of {bytes} bytes, and in a slice of it");
    assert!(region.peak_bytes(0) <= bytes, "{} bytes above the limit", region.peak_bytes(0) - bytes);
    (on_small.stdout, region)
}

//! The same with and without the shim.

use std::process::Command;

use crate::{Outcome, Region, SimulatedGpu, run};

/// Runs `command` twice, bare and in a slice that has all of `gpu`: both must end alike and say the same. Returns the
/// outcome.
#[track_caller]
pub fn unchanged_in_a_slice(gpu: &SimulatedGpu, command: impl Fn() -> Command) -> Outcome {
    let bare = run(&mut command());
    let region = Region::unlimited(gpu);
    let in_slice = run(region.preload_into(&mut command()));
    bare.assert_same(&in_slice);
    bare
}

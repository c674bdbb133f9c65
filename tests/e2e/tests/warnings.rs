//! The shim's warnings on standard error do no harm, whatever standard error is.

use std::fs;

use aliquot_abi::region::{LEDGER_FILE, LIMITS_FILE};
use aliquot_harness::{HostProgram, Region, SimulatedGpu, run};

/// The output of a program whose descriptor 2 is of this `kind`: without the shim, and with a shim without a region.
fn bare_and_warned(kind: &str) -> (String, String) {
    let gpu = SimulatedGpu::new();
    let program = HostProgram::linked(&gpu, "odd_standard_error");
    let bare = run(program.on(&gpu).arg(kind)).success();
    let region = Region::unlimited(&gpu);
    for file in [LIMITS_FILE, LEDGER_FILE] {
        fs::remove_file(region.dir().join(file)).unwrap();
    }
    let warned = run(region.preload_into(program.on(&gpu).arg(kind))).success();
    assert_eq!(bare.stderr, warned.stderr, "{kind}");
    (bare.stdout, warned.stdout)
}

#[test]
fn a_warning_is_written_to_a_pipe_once() {
    let (bare, warned) = bare_and_warned("pipe");
    let line = "came: aliquot: no region beside the library: the GPU is not limited in this process\n";
    assert_eq!(warned, bare.replace("came: nothing\n", line));
}

#[test]
fn a_pipe_that_is_full_or_has_no_reader_neither_blocks_nor_ends_the_program() {
    for kind in ["full", "closed"] {
        let (bare, warned) = bare_and_warned(kind);
        assert_eq!(bare, "cuMemAlloc: 0\nSIGPIPE: not pending, not blocked\n", "{kind}");
        assert_eq!(warned, bare, "{kind}");
    }
}

#[test]
fn a_file_opened_as_descriptor_2_is_not_written_to() {
    for kind in ["own", "file", "socket"] {
        let (bare, warned) = bare_and_warned(kind);
        assert_eq!(warned, bare, "{kind}");
    }
}

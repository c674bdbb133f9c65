//! Launches, streams, graphs and captures work as without the shim while leases come and go.

use aliquot_harness::{GIB, HostProgram, Node, SimulatedGpu, run};

use crate::busy;

/// Streams, events, host functions, graphs, captures in each mode, and short-lived threads. Contexts take no memory
/// here: the slice's figures show it up to a second late, and a program that compares free memory would fail.
#[test]
fn nothing_that_is_launched_is_disturbed() {
    let gpu = SimulatedGpu::exact();
    let node = Node::start(&gpu);
    let slices = [node.slice("tested", 30, 8 * GIB), node.slice("neighbour", 70, GIB)];
    let _neighbour = busy(&gpu, &slices[1], 500_000);
    for program in ["streams", "graph", "capture", "thread_storm"] {
        let program = HostProgram::linked(&gpu, program);
        let bare = run(&mut program.on(&SimulatedGpu::exact())).success();
        let limited = run(slices[0].preload_into(&mut program.on(&gpu))).success();
        bare.assert_same(&limited);
    }
}

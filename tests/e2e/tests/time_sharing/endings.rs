//! Programs that end, or execute another program, while they wait for the device.

use std::sync::atomic::Ordering;

use aliquot_abi::region::gate;
use aliquot_harness::{GIB, HostProgram, Node, Process, Region, SimulatedGpu, run, wait};
use rustix::process::Signal;

/// Markers take no device time, so only kernels keep the device busy.
const ONLY_KERNELS: &str = "write_ns = 0\n";

/// Threads that wait for the first part's gate, as the ledger says.
fn waiting(region: &Region) -> u32 {
    region.ledger().slots.iter().map(|slot| slot.devices[0].waiting.load(Ordering::Relaxed)).sum()
}

/// Starts a program of which one thread waits at a closed gate, and which then ends as `way` says.
fn leaves_waiting(gpu: &SimulatedGpu, region: &Region, way: &str) -> Process {
    region.close_gate(0);
    let mut command = HostProgram::linked(gpu, "leaves_waiting").on(gpu);
    let mut process = Process::start(region.preload_into(command.arg(way)));
    process.wait_for("launches\n");
    wait::until_true("the launch waits", || waiting(region) == 1);
    process.signal(Signal::USR1);
    process
}

fn open(region: &Region) {
    region.limits().devices[0].gate.store(gate::OPEN | gate::TICK, Ordering::SeqCst);
}

#[test]
fn a_program_ends_while_its_threads_wait_for_the_device() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slice = node.slice("ending", 5, 8 * GIB);
    for way in ["exit", "_exit", "return", "thread"] {
        let mut command = HostProgram::linked(&gpu, "exit_in_launch").on(&gpu);
        let outcome = run(slice.preload_into(command.arg(way)));
        assert_eq!(outcome.status.code(), Some(7), "{way}: {outcome:?}");
    }
    let outcome = leaves_waiting(&gpu, &Region::new(&gpu, GIB), "exit").wait();
    assert_eq!(outcome.status.code(), Some(7), "{outcome:?}");
}

#[test]
fn a_program_that_becomes_another_while_it_waits_waits_anew() {
    let gpu = SimulatedGpu::with(ONLY_KERNELS);
    let region = Region::new(&gpu, GIB);
    let mut process = leaves_waiting(&gpu, &region, "exec");
    process.wait_for("launches afresh\n");
    wait::until_true("only the new program waits", || waiting(&region) == 1);
    assert_eq!(gpu.machine().device_use(0).busy_ns, 0);
    open(&region);
    process.wait().success().assert_said("launches\nlaunches afresh\ndone afresh\n");
    assert_eq!(gpu.machine().device_use(0).busy_ns, 1_000_000);
}

#[test]
fn a_child_of_a_program_that_waits_waits_by_itself() {
    let gpu = SimulatedGpu::with(ONLY_KERNELS);
    let region = Region::new(&gpu, GIB);
    let mut process = leaves_waiting(&gpu, &region, "fork");
    process.wait_for("launches afresh\n");
    wait::until_true("both wait", || waiting(&region) == 2);
    assert_eq!(gpu.machine().device_use(0).busy_ns, 0);
    open(&region);
    process.wait().success().assert_said("launches\nlaunches afresh\ndone afresh\ndone\n");
    assert_eq!(gpu.machine().device_use(0).busy_ns, 2_000_000);
}

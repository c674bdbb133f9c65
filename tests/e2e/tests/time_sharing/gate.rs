//! A gate holds launches and nothing else.

use std::sync::atomic::Ordering;

use aliquot_abi::region::gate;
use aliquot_harness::{GIB, HostProgram, Process, Region, SimulatedGpu, run, wait};
use rustix::process::Signal;

#[test]
fn a_closed_gate_holds_launches_and_nothing_else() {
    let gpu = SimulatedGpu::new();
    let region = Region::new(&gpu, GIB);
    region.close_gate(0);
    let waiting = || region.ledger().slots.iter().any(|slot| slot.devices[0].waiting.load(Ordering::Relaxed) > 0);
    let mut command = HostProgram::linked(&gpu, "busy").on(&gpu);
    let mut process = Process::start(region.preload_into(command.args(["100000", "1"])));
    process.wait_for("busy\n");
    wait::until_true("the launch waits", waiting);
    assert_eq!(gpu.machine().device_use(0).busy_ns, 0);
    // Memory is not what the gate is about.
    let mut command = HostProgram::linked(&gpu, "exact").on(&gpu);
    let _ = run(region.preload_into(command.arg(GIB.to_string()))).success();
    // Nobody is woken here, as if the wake-up had been lost: who waits looks for itself now and then.
    region.limits().devices[0].gate.store(gate::OPEN | gate::TICK, Ordering::SeqCst);
    wait::until_true("the launch goes on", || gpu.machine().device_use(0).busy_ns > 1_000_000);
    region.close_gate(0);
    wait::until_true("the next launch waits", waiting);
    assert!(!process.has_ended());
    process.signal(Signal::TERM);
    assert_eq!(process.wait().signal(), Some(15));
}

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
    // The gate does not hold up allocations.
    let mut command = HostProgram::linked(&gpu, "exact").on(&gpu);
    let _ = run(region.preload_into(command.arg(GIB.to_string()))).success();
    // The test wakes no thread, as if the wake-up had been lost: a waiting thread looks at the gate from time to time.
    region.limits().devices[0].gate.store(gate::OPEN | gate::TICK, Ordering::SeqCst);
    wait::until_true("the launch goes on", || gpu.machine().device_use(0).busy_ns > 1_000_000);
    region.close_gate(0);
    wait::until_true("the next launch waits", waiting);
    assert!(!process.has_ended());
    process.signal(Signal::TERM);
    assert_eq!(process.wait().signal(), Some(15));
}

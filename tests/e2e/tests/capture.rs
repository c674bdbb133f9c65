//! A capture neither records the shim's own calls nor fails because of them: in each capture mode, from each thread,
//! with markers that the device writes and with events.

use std::sync::atomic::Ordering;

use aliquot_abi::region::{MARKERS_MAX, gate};
use aliquot_harness::{FrontDriver, GIB, HostProgram, Node, Process, Region, SimulatedGpu, run};

/// The three capture modes: global, thread-local, relaxed.
const MODES: [&str; 3] = ["0", "1", "2"];
const SAID: &str = "21 nodes\n21 nodes\n";

/// A region with a lease, so that launches are marked.
fn with_a_lease(gpu: &SimulatedGpu) -> Region {
    let region = Region::new(gpu, GIB);
    region.limits().devices[0].gate.store(gate::OPEN | gate::TICK, Ordering::SeqCst);
    region
}

/// The number of markers submitted to streams of the first device.
fn markers(region: &Region) -> u64 {
    let slots = &region.ledger().slots;
    slots.iter().map(|slot| slot.devices[0].marker_submitted.load(Ordering::Relaxed)).sum()
}

#[test]
fn a_capture_does_not_notice_the_setup_of_the_first_launch() {
    for mode in MODES {
        let gpu = SimulatedGpu::new();
        let program = HostProgram::linked(&gpu, "capture_threads");
        run(program.on(&gpu).arg(mode)).success().assert_said(SAID);
        let region = with_a_lease(&gpu);
        run(region.preload_into(program.on(&gpu).arg(mode))).success().assert_said(SAID);
        assert!(markers(&region) > 0, "no marker was put into a stream: nothing was tested");
    }
}

#[test]
fn leases_that_come_and_go_are_not_noticed_by_a_capture() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("captures", 30, 8 * GIB), node.slice("neighbour", 70, GIB)];
    let mut command = HostProgram::linked(&gpu, "busy").on(&gpu);
    command.args(["500000", "0"]);
    let mut neighbour = Process::start(slices[1].preload_into(&mut command));
    neighbour.wait_for("busy\n");
    let program = HostProgram::linked(&gpu, "capture_threads");
    for mode in MODES {
        run(slices[0].preload_into(program.on(&gpu).arg(mode))).success().assert_said(SAID);
    }
}

/// A driver that cannot let the device write markers.
fn driver_with_events(gpu: &SimulatedGpu) -> FrontDriver {
    FrontDriver::new(gpu, "driver_with_events")
}

#[test]
fn events_in_place_of_markers_are_not_noticed_by_a_capture() {
    for mode in MODES {
        let gpu = SimulatedGpu::new();
        let driver = driver_with_events(&gpu);
        let program = HostProgram::linked(&gpu, "capture_threads");
        let mut command = program.on(&gpu);
        run(driver.show_to(command.arg(mode))).success().assert_said(&format!("{SAID}0 events\n"));
        let region = with_a_lease(&gpu);
        let mut command = program.on(&gpu);
        let outcome = run(region.preload_into(driver.show_to(command.arg(mode)))).success();
        assert!(outcome.stdout.starts_with(SAID), "{outcome:?}");
        assert!(markers(&region) > 0 && !outcome.stdout.contains("\n0 events\n"), "{outcome:?}");
    }
}

#[test]
fn contexts_that_take_turns_do_not_leave_events_behind() {
    let gpu = SimulatedGpu::new();
    let driver = driver_with_events(&gpu);
    let region = with_a_lease(&gpu);
    let mut command = HostProgram::linked(&gpu, "contexts_in_turn").on(&gpu);
    let outcome = run(region.preload_into(driver.show_to(&mut command))).success();
    let events = outcome.stdout.strip_suffix(" events\n").and_then(|events| events.parse::<usize>().ok());
    assert!(markers(&region) > 2 * MARKERS_MAX as u64, "{outcome:?}");
    assert!(events.is_some_and(|events| (1..=MARKERS_MAX).contains(&events)), "{outcome:?}");
}

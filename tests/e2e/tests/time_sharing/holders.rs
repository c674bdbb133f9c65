//! A container or a manager that dies or is stopped during a lease does not hold up the others.

use std::sync::atomic::Ordering;

use aliquot_abi::region::{HEARTBEAT_STALE_NS, gate};
use aliquot_fake_machine::now_ns;
use aliquot_harness::{GIB, Node, Process, Shares, SimulatedGpu, Slice, wait};
use rustix::process::Signal;

use crate::{alone_on_the_machine, busy, part};

/// Sends `signal` to a process while its container has the lease.
fn signal_in_lease(slice: &Slice, process: &Process, signal: Signal) {
    let has_lease = || slice.limits().devices[0].gate.load(Ordering::Relaxed) & gate::OPEN != 0;
    wait::until_true("the container has no lease", || !has_lease());
    wait::until_true("the container has the lease", has_lease);
    process.signal(signal);
}

#[test]
fn a_killed_holder_does_not_hold_up_others() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice_of("killed", vec![part(50, 90)]), node.slice_of("other", vec![part(50, 90)])];
    let (killed, other) = (busy(&gpu, &slices[0], 1_000_000), busy(&gpu, &slices[1], 1_000_000));
    signal_in_lease(&slices[0], &killed, Signal::KILL);
    Shares::of(&gpu).exactly(90, &[other.id()]).assert_kept();
}

#[test]
fn a_stopped_holder_does_not_hold_up_others_and_can_continue() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice_of("stopped", vec![part(50, 100)]), node.slice_of("other", vec![part(50, 100)])];
    let (stopped, other) = (busy(&gpu, &slices[0], 1_000_000), busy(&gpu, &slices[1], 1_000_000));
    signal_in_lease(&slices[0], &stopped, Signal::STOP);
    Shares::of(&gpu).between(95..=100, &[other.id()]).assert_kept();
    stopped.signal(Signal::CONT);
    Shares::of(&gpu).between(50..=100, &[stopped.id()]).between(50..=100, &[other.id()]).assert_kept();
}

#[test]
fn limits_hold_while_a_manager_is_killed_during_leases_and_restarts() {
    let _alone = alone_on_the_machine();
    let gpu = SimulatedGpu::new();
    let mut node = Node::start(&gpu);
    let slices = [node.slice("small", 30, 8 * GIB), node.slice("large", 50, GIB)];
    let (small, large) = (busy(&gpu, &slices[0], 500_000), busy(&gpu, &slices[1], 500_000));
    Shares::of(&gpu).exactly(30, &[small.id()]).exactly(50, &[large.id()]).assert_kept();
    node.kill();
    let heartbeat = &slices[0].limits().heartbeat_ns;
    wait::until_true("the manager is known to be gone", || {
        now_ns().saturating_sub(heartbeat.load(Ordering::Relaxed)) > HEARTBEAT_STALE_NS
    });
    Shares::of(&gpu).between(10..=30, &[small.id()]).between(15..=50, &[large.id()]).assert_kept();
    node.restart();
    Shares::of(&gpu).exactly(30, &[small.id()]).exactly(50, &[large.id()]).assert_kept();
}

//! How long containers that want little time wait.

use aliquot_arbiter::{ContainerId, Share, Usage, WAIT_BOUNDS_NS, timing};

use crate::process::Program;
use crate::shares::{burstable, capped};
use crate::world::{MS, SECOND, World};

const BATCH: ContainerId = ContainerId(0);
const SERVICE: ContainerId = ContainerId(1);

/// Work in flight besides one kernel at the end of a lease, plus the lateness of polls.
const SLACK_NS: u64 = 3 * MS;

fn beside_a_batch(batch_kernel_ns: u64, service: Share) -> World {
    let mut world = World::new(3, 1);
    world.add_container(0, BATCH, burstable(50));
    world.add_container(0, SERVICE, service);
    world.start(0, BATCH, Program::endless(&[batch_kernel_ns]));
    world.start(0, SERVICE, Program { kernels_ns: vec![MS], burst: 1, pause_ns: 30 * MS, varies: false });
    world.run_until(5 * SECOND);
    world
}

#[test]
fn a_service_of_higher_priority_waits_for_the_shortest_lease_and_one_kernel() {
    for kernel_ns in [MS, 20 * MS] {
        let world = beside_a_batch(kernel_ns, Share { priority: 1, ..capped(30) });
        let (usage, wait_ns) = (world.usage(0, SERVICE), world.longest_wait_ns(0, SERVICE));
        assert!(usage.leases > 80, "{usage:?}");
        assert!(wait_ns <= timing::QUANTUM_URGENT_NS + kernel_ns + SLACK_NS, "{wait_ns} beside {kernel_ns}");
    }
}

/// The part of waits of at most `bound_ns`, which is a bound of the histogram, in hundredths of a percent.
fn waits_within_bp(usage: &Usage, bound_ns: u64) -> u64 {
    let buckets = WAIT_BOUNDS_NS.iter().position(|&bound| bound == bound_ns).unwrap() + 1;
    usage.waits[..buckets].iter().sum::<u64>() * 10_000 / usage.waits.iter().sum::<u64>().max(1)
}

/// Runs a service for twenty seconds beside three containers that are always busy with kernels of 20 ms.
fn beside_three_batches(seed: u64, service: Share, program: Program) -> World {
    let mut world = World::new(seed, 1);
    for (number, percent) in [(0, 30), (2, 20), (3, 20)] {
        world.add_container(0, ContainerId(number), burstable(percent));
        world.start(0, ContainerId(number), Program::endless(&[20 * MS]));
    }
    world.add_container(0, SERVICE, service);
    world.start(0, SERVICE, program);
    world.run_until(20 * SECOND);
    world
}

#[test]
fn requests_that_come_at_any_time_wait_for_a_quantum_and_a_kernel() {
    // Requests of different lengths, so that they shift against the batches' kernels.
    let requests = [700_000, MS, 1_300_000];
    for seed in 0..10 {
        // Single requests and bursts, both within the container's share.
        for (burst, pause_ns) in [(1, 17 * MS), (20, 130 * MS)] {
            let program = Program { kernels_ns: requests.to_vec(), burst, pause_ns, varies: false };
            let world = beside_three_batches(seed, Share { priority: 1, ..burstable(30) }, program);
            let (usage, wait_ns) = (world.usage(0, SERVICE), world.longest_wait_ns(0, SERVICE));
            let prompt = waits_within_bp(&usage, 25 * MS);
            assert!(usage.waits.iter().sum::<u64>() > 50, "seed {seed}: {usage:?}");
            assert!(prompt >= 9_900, "seed {seed}, bursts of {burst}: {prompt} bp within 25 ms, {usage:?}");
            assert!(wait_ns <= timing::QUANTUM_URGENT_NS + 20 * MS + SLACK_NS, "seed {seed}: {wait_ns}");
        }
    }
}

#[test]
fn priority_does_not_reduce_requested_shares() {
    for seed in 0..5 {
        let world = beside_three_batches(seed, Share { priority: 1, ..burstable(30) }, Program::endless(&[MS]));
        for (number, percent) in [(0, 30), (1, 30), (2, 20), (3, 20)] {
            let used_bp = world.record(0, ContainerId(number)).used_ns * 10_000 / world.now_ns;
            assert!(used_bp.abs_diff(percent * 100) <= 100, "seed {seed}: {number} used {used_bp} bp of {percent} %");
        }
    }
}

#[test]
fn a_service_of_the_same_priority_waits_for_a_short_lease_and_one_kernel() {
    for kernel_ns in [MS, 20 * MS] {
        let world = beside_a_batch(kernel_ns, burstable(30));
        let wait_ns = world.longest_wait_ns(0, SERVICE);
        assert!(wait_ns <= timing::QUANTUM_MIN_NS + kernel_ns + SLACK_NS, "{wait_ns} beside {kernel_ns}");
    }
}

#[test]
fn a_request_soon_after_the_last_one_waits_for_a_short_lease() {
    for priority in [0, 1] {
        let mut world = World::new(3, 1);
        world.add_container(0, BATCH, burstable(70));
        world.add_container(0, SERVICE, Share { priority, ..burstable(30) });
        world.start(0, BATCH, Program::endless(&[MS]));
        // Pauses so long that it soon hands each lease back when the kernel is done.
        let service = world.start(0, SERVICE, Program::synchronous(MS, 4 * MS));
        world.run_until(SECOND);
        // Pauses so short that it does not count as idle.
        world.processes[service].as_mut().unwrap().program.pause_ns = 3 * MS / 2;
        world.run_until(5 * SECOND);
        let wait_ns = world.longest_wait_ns(0, SERVICE);
        assert!(wait_ns <= timing::QUANTUM_MIN_NS + MS + SLACK_NS, "priority {priority}: {wait_ns}");
    }
}

#[test]
fn the_time_of_an_idle_container_is_lent_and_returned() {
    let mut world = World::new(5, 1);
    for container in [BATCH, SERVICE] {
        world.add_container(0, container, burstable(50));
    }
    world.start(0, BATCH, Program::endless(&[MS]));
    world.start(0, SERVICE, Program { kernels_ns: vec![MS], burst: 300, pause_ns: SECOND, varies: false });
    world.run_until(5 * SECOND);
    assert!(world.busy_bp(0) >= 9_800, "{}", world.busy_bp(0));
    let wait_ns = world.longest_wait_ns(0, SERVICE);
    assert!(wait_ns <= 2 * timing::QUANTUM_MAX_NS + SLACK_NS, "{wait_ns}");
}

#[test]
fn a_lease_is_handed_back_early() {
    let mut world = World::new(6, 1);
    for container in [BATCH, SERVICE] {
        world.add_container(0, container, burstable(50));
        world.start(0, container, Program { kernels_ns: vec![MS], burst: 1, pause_ns: 40 * MS, varies: false });
    }
    world.run_until(4 * SECOND);
    for container in [BATCH, SERVICE] {
        let wait_ns = world.longest_wait_ns(0, container);
        assert!(wait_ns <= timing::IDLE_GRACE_NS + MS + SLACK_NS, "{wait_ns}");
        let (charged_ns, used_ns) = (world.charged_ns(0, container), world.record(0, container).used_ns);
        // With one kernel at a time, work can be measured only to half a poll interval.
        assert!(charged_ns.abs_diff(used_ns) <= used_ns / 4, "{charged_ns} charged for {used_ns}");
    }
}

#[test]
fn a_killed_process_holds_no_lease() {
    let mut world = World::new(7, 1);
    for container in [BATCH, SERVICE] {
        world.add_container(0, container, burstable(50));
    }
    let holder = world.start(0, BATCH, Program::endless(&[90 * MS]));
    world.start(0, SERVICE, Program::endless(&[MS]));
    world.run_until(20 * MS);
    assert_eq!(world.usage(0, SERVICE).leases, 0);
    world.kill(holder);
    world.run_until(21 * MS);
    assert!(world.usage(0, SERVICE).waiting_since_ns.is_none());
    assert!(world.longest_wait_ns(0, SERVICE) <= 20 * MS);
}

//! Programs that work on their hosts between short kernels use the device in each other's pauses.

use aliquot_arbiter::{ContainerId, Share};

use crate::process::Program;
use crate::shares::{burstable, capped};
use crate::world::{MS, SECOND, World};

const US: u64 = 1_000;
/// The device time that such a program wants between two pauses.
const WORK_NS: u64 = 200 * US;

/// Runs containers of host-bound programs together for five seconds.
fn together(seed: u64, shares: &[Share], processes: usize, pause_ns: u64) -> World {
    let mut world = World::new(seed, 1);
    for (number, &share) in (0..).zip(shares) {
        world.add_container(0, ContainerId(number), share);
        for _ in 0..processes {
            world.start(0, ContainerId(number), Program::bound_by_host(pause_ns));
        }
    }
    world.run_until(5 * SECOND);
    world
}

/// What each container has used, in hundredths of a percent of the time.
fn used_bp(world: &World, containers: usize) -> Vec<u64> {
    let used = |number| world.record(0, ContainerId(number)).used_ns * 10_000 / world.now_ns;
    (0..containers as u64).map(used).collect()
}

#[test]
fn pauses_are_used_by_others() {
    for pause_ns in [300 * US, 500 * US, MS, 2 * MS] {
        for count in [2, 3, 10, 25] {
            let world = together(count, &vec![burstable(100 / count as u32); count as usize], 1, pause_ns);
            let wanted = (count * WORK_NS * 10_000 / (WORK_NS + pause_ns)).min(10_000);
            let busy = world.busy_bp(0);
            assert!(busy >= wanted * 7 / 10, "{count}, pauses of {pause_ns} ns: {busy} bp of {wanted} bp");
            let charged_ns: u64 = (0..count).map(|number| world.charged_ns(0, ContainerId(number))).sum();
            let charged = charged_ns * 10_000 / world.now_ns;
            assert!(charged >= busy - 50, "{count}, pauses of {pause_ns} ns: {charged} bp charged for {busy} bp");
        }
    }
}

#[test]
fn a_full_device_is_shared_by_request() {
    for (processes, pause_ns) in [(1, 300 * US), (1, MS), (4, 500 * US)] {
        for share in [burstable, capped] {
            let percents: Vec<u32> = [5, 15].repeat(5);
            let shares: Vec<Share> = percents.iter().copied().map(share).collect();
            let world = together(1, &shares, processes, pause_ns);
            let used = used_bp(&world, percents.len());
            let all: u64 = used.iter().sum();
            for (used, percent) in used.iter().zip(percents) {
                let wanted = all * u64::from(percent) / 100;
                assert!(
                    used.abs_diff(wanted) <= 100,
                    "{processes} x {pause_ns} ns: {used} bp of {all} bp, {percent} %"
                );
            }
        }
    }
}

#[test]
fn limits_hold_for_guests() {
    for percent in [2, 5, 10] {
        let world = together(percent.into(), &[capped(percent); 8], 4, MS);
        for used in used_bp(&world, 8) {
            assert!(used <= u64::from(percent) * 100 + 20, "{used} bp used of {percent} %");
        }
    }
}

#[test]
fn busy_containers_are_neither_guests_nor_hosts() {
    for pause_ns in [100 * US, 300 * US, MS, 5 * MS] {
        let mut world = World::new(pause_ns, 1);
        for (number, program) in [(0, Program::endless(&[50 * US])), (1, Program::bound_by_host(pause_ns))] {
            world.add_container(0, ContainerId(number), burstable(50));
            world.start(0, ContainerId(number), program);
        }
        world.run_until(5 * SECOND);
        assert_eq!(world.most_open(0), 1, "pauses of {pause_ns} ns");
    }
}

#[test]
fn a_container_that_becomes_busy_leaves() {
    let mut world = together(1, &[burstable(50); 2], 1, MS);
    assert_eq!(world.most_open(0), 2);
    let before = used_bp(&world, 2);
    world.start(0, ContainerId(0), Program::endless(&[50 * US]));
    world.run_until(15 * SECOND);
    let used = world.record(0, ContainerId(0)).used_ns * 10_000 - before[0] * 5 * SECOND;
    assert!(used / (10 * SECOND) >= 4_800, "{} bp used", used / (10 * SECOND));
    // The other one wants a sixth of the device, and gets its part of the time at least.
    let used = world.record(0, ContainerId(1)).used_ns * 10_000 - before[1] * 5 * SECOND;
    assert!(used / (10 * SECOND) >= 700, "{} bp used", used / (10 * SECOND));
}

#[test]
fn a_higher_class_does_not_suffer_from_guests() {
    let service = Share { priority: 1, ..burstable(20) };
    let figures = |neighbours: u64| {
        let mut world = World::new(neighbours, 1);
        world.add_container(0, ContainerId(100), service);
        world.start(0, ContainerId(100), Program::bound_by_host(MS));
        for number in 0..neighbours {
            world.add_container(0, ContainerId(number), burstable(10));
            world.start(0, ContainerId(number), Program::bound_by_host(MS));
        }
        world.run_until(5 * SECOND);
        world.record(0, ContainerId(100)).used_ns * 10_000 / world.now_ns
    };
    let (alone, beside) = (figures(0), figures(8));
    // Together they want one and a half times the device.
    assert!(beside >= alone * 6 / 10, "{beside} bp used, {alone} bp alone");
}

#[test]
fn a_stopped_process_keeps_no_guests_out() {
    let mut world = World::new(1, 1);
    for number in 0..4 {
        world.add_container(0, ContainerId(number), burstable(25));
        world.start(0, ContainerId(number), Program::bound_by_host(MS));
    }
    world.run_until(SECOND);
    world.processes[0].as_mut().unwrap().deaf = true;
    world.run_until(2 * SECOND);
    let before = used_bp(&world, 4);
    world.run_until(6 * SECOND);
    let used: u64 = (1..4).map(|number| world.record(0, ContainerId(number)).used_ns).sum();
    let used = used * 10_000 - before[1..].iter().sum::<u64>() * 2 * SECOND;
    // They want half of the device.
    assert!(used / (4 * SECOND) >= 4_000, "{} bp used by three", used / (4 * SECOND));
}

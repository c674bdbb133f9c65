//! Programs that are always busy get exactly their shares from the first second on, whatever their kernels are.

use aliquot_arbiter::{ContainerId, Share, timing};

use crate::process::Program;
use crate::random::Random;
use crate::world::{MS, SAMPLE_NS, SECOND, World};

const US: u64 = 1_000;

/// Kernel lengths, uniform and mixed.
pub(crate) const KERNELS: [&[u64]; 6] = [
    &[50 * US],
    &[MS],
    &[20 * MS],
    &[200 * MS],
    &[50 * US, 50 * US, 50 * US, 3 * MS],
    &[50 * US, 5 * MS, 60 * MS, 200 * MS],
];

pub(crate) fn capped(percent: u32) -> Share {
    Share { request_percent: percent, limit_percent: percent, priority: 0 }
}

pub(crate) fn burstable(percent: u32) -> Share {
    Share { limit_percent: 100, ..capped(percent) }
}

/// The ratio of `ns` to `of_ns` in hundredths of a percent.
fn basis_points(ns: u64, of_ns: u64) -> i64 {
    i64::try_from(ns * 10_000 / of_ns).unwrap()
}

/// The greatest deviation from `percent` in any second, in hundredths of a percent.
fn worst_second_bp(samples: &[u64], percent: u32) -> i64 {
    let second = (SECOND / SAMPLE_NS) as usize;
    let seconds = samples.iter().zip(&samples[second..]);
    seconds.map(|(from, to)| (basis_points(to - from, SECOND) - i64::from(percent) * 100).abs()).max().unwrap()
}

/// Runs one container with `programs` alone under a limit for ten seconds.
fn assert_capped(percent: u32, programs: &[Program]) {
    let longest_ns = programs.iter().flat_map(|program| &program.kernels_ns).max().unwrap();
    let what = format!("{percent} % of {programs:?}");
    let mut world = World::new(u64::from(percent), 1);
    let container = ContainerId(0);
    world.add_container(0, container, capped(percent));
    for program in programs {
        world.start(0, container, program.clone());
    }
    world.run_until(10 * SECOND + 1);
    let record = world.record(0, container);

    let charged_ns = world.charged_ns(0, container);
    let error = basis_points(record.used_ns, 10 * SECOND) - i64::from(percent) * 100;
    assert!(error.abs() <= 100, "{what}: off by {error} bp in 10 s, {charged_ns} charged for {}", record.used_ns);
    let second = (SECOND / SAMPLE_NS) as usize;
    let first = basis_points(record.samples[second], SECOND) - i64::from(percent) * 100;
    let kernels = basis_points(*longest_ns * programs.len() as u64, SECOND);
    assert!(first.abs() <= 100 + kernels, "{what}: off by {first} bp in the first second");
    let worst = worst_second_bp(&record.samples, percent);
    // Use is centred on the limit: a second can begin with half a long kernel's budget and end with one kernel too
    // many.
    let forced = basis_points(*longest_ns * programs.len() as u64 * 3 / 2, SECOND);
    assert!(worst <= 300 + forced, "{what}: off by {worst} bp in a second");
    assert!(charged_ns.abs_diff(record.used_ns) <= 50 * MS, "{what}: {charged_ns} charged for {}", record.used_ns);
}

#[test]
fn alone_and_limited() {
    for percent in [10, 30, 50, 80] {
        for kernels in KERNELS {
            assert_capped(percent, &[Program::endless(kernels)]);
        }
    }
}

#[test]
fn alone_and_limited_with_programs_that_wait_for_each_kernel() {
    for kernel_ns in [MS, 5 * MS, 20 * MS] {
        assert_capped(30, &[Program::synchronous(kernel_ns, 10 * US)]);
    }
}

#[test]
fn four_processes_under_one_limit() {
    for kernels_ns in [&[50 * US][..], &[MS], &[20 * MS]] {
        assert_capped(50, &vec![Program::endless(kernels_ns); 4]);
    }
}

/// Runs containers that are always busy for ten seconds, each with kernels picked by the seed.
fn assert_shares(seed: u64, percents: &[u32], share: fn(u32) -> Share) {
    let mut world = World::new(seed, 1);
    let mut what = format!("seed {seed}:");
    for (number, &percent) in (0..).zip(percents) {
        let container = ContainerId(number);
        world.add_container(0, container, share(percent));
        let kernels_ns = *world.random.pick(&KERNELS);
        what += &format!(" {percent} % of {kernels_ns:?}");
        world.start(0, container, Program::endless(kernels_ns));
    }
    world.run_until(10 * SECOND);
    for (number, &percent) in (0..).zip(percents) {
        let record = world.record(0, ContainerId(number));
        let error = basis_points(record.used_ns, 10 * SECOND) - i64::from(percent) * 100;
        assert!(error.abs() <= 100, "{what}: {percent} % is off by {error} bp in 10 s");
        let charged_ns = world.charged_ns(0, ContainerId(number));
        assert!(charged_ns.abs_diff(record.used_ns) <= 50 * MS, "{what}: {charged_ns} charged for {}", record.used_ns);
    }
    // More containers mean more switches, each of which leaves the device empty for a moment.
    let busy = world.busy_bp(0);
    assert!(
        busy >= if percents.len() <= 3 { 9_850 } else { 9_700 },
        "{what}: the device was busy for {busy} bp of the time"
    );
}

#[test]
fn a_crowd_that_may_burst() {
    for seed in 0..2 {
        for percents in [&[30, 70][..], &[20, 30, 50], &[50, 50], &[10; 10]] {
            assert_shares(seed, percents, burstable);
        }
    }
}

#[test]
fn a_crowd_that_is_limited_to_its_requests() {
    for seed in 10..12 {
        for percents in [&[30, 70][..], &[20, 30, 50], &[50, 50], &[10; 10]] {
            assert_shares(seed, percents, capped);
        }
    }
}

#[test]
fn few_and_many_containers_have_equal_parts_of_every_second() {
    for count in [2, 3, 5, 10, 25] {
        for kernel_ns in [50 * US, MS] {
            let mut world = World::new(count, 1);
            for container in (0..count).map(ContainerId) {
                world.add_container(0, container, burstable(100 / count as u32));
                world.start(0, container, Program::endless(&[kernel_ns]));
            }
            world.run_until(6 * SECOND);
            let second = (SECOND / SAMPLE_NS) as usize;
            let mean_bp = world.busy_bp(0) as i64 / count as i64;
            // A second begins and ends within leases. Each container has one in a cycle, in an order that may change.
            let lease_ns = (timing::CYCLE_NS / count).clamp(timing::QUANTUM_MIN_NS, timing::QUANTUM_MAX_NS);
            let bound_bp = 50 + basis_points(lease_ns, SECOND);
            for container in (0..count).map(ContainerId) {
                let samples = &world.record(0, container).samples[second..];
                let seconds = samples.iter().zip(&samples[second..]);
                let off = seconds.map(|(from, to)| (basis_points(to - from, SECOND) - mean_bp).abs()).max().unwrap();
                assert!(off <= bound_bp, "{container:?} of {count}, kernels of {kernel_ns} ns: off by {off} bp");
            }
        }
    }
}

#[test]
fn many_containers_lose_little_to_changes_of_lease() {
    for kernel_ns in [50 * US, MS] {
        let mut world = World::new(1, 1);
        for container in (0..25).map(ContainerId) {
            world.add_container(0, container, burstable(4));
            world.start(0, container, Program::endless(&[kernel_ns]));
        }
        world.run_until(5 * SECOND);
        assert!(world.busy_bp(0) >= 9_600, "kernels of {kernel_ns} ns: {} bp", world.busy_bp(0));
    }
}

#[test]
fn leases_are_as_short_as_they_must_be() {
    for (lease_max_ns, wanted) in [(2 * MS, 2_800..5_000), (5 * MS, 1_700..2_100), (u64::MAX, 450..550)] {
        let mut world = World::new(1, 1).with_leases_of_at_most(lease_max_ns);
        for container in [ContainerId(0), ContainerId(1)] {
            world.add_container(0, container, burstable(50));
            world.start(0, container, Program::endless(&[50 * US]));
        }
        world.run_until(10 * SECOND);
        for container in [ContainerId(0), ContainerId(1)] {
            let used = basis_points(world.record(0, container).used_ns * 10_000 / world.busy_bp(0), 10 * SECOND);
            assert!(used.abs_diff(5_000) <= 100, "leases of {lease_max_ns} ns: {used} bp");
        }
        let leases: u64 = [0, 1].map(|number| world.usage(0, ContainerId(number)).leases).iter().sum();
        assert!(wanted.contains(&leases), "{leases} leases of at most {lease_max_ns} ns in 10 s");
    }
}

#[test]
fn free_time_is_shared_by_request() {
    let mut world = World::new(1, 1);
    for (number, percent) in [(0, 10), (1, 30)] {
        world.add_container(0, ContainerId(number), burstable(percent));
        world.start(0, ContainerId(number), Program::endless(&[MS]));
    }
    world.run_until(4 * SECOND);
    let used = |number| basis_points(world.record(0, ContainerId(number)).used_ns, 4 * SECOND);
    assert!(used(0).abs_diff(2_500) <= 100 && used(1).abs_diff(7_500) <= 150, "{} {}", used(0), used(1));
}

#[test]
fn free_time_goes_to_the_higher_priority() {
    let mut world = World::new(1, 1);
    for (number, percent, priority) in [(0, 20, 0), (1, 30, 5)] {
        world.add_container(0, ContainerId(number), Share { priority, ..burstable(percent) });
        world.start(0, ContainerId(number), Program::endless(&[MS]));
    }
    world.run_until(4 * SECOND);
    let used = |number| basis_points(world.record(0, ContainerId(number)).used_ns, 4 * SECOND);
    assert!(used(0).abs_diff(2_000) <= 100 && used(1).abs_diff(8_000) <= 200, "{} {}", used(0), used(1));
}

#[test]
fn a_resize_takes_effect_at_once() {
    let mut world = World::new(1, 1);
    let container = ContainerId(0);
    world.add_container(0, container, capped(20));
    world.start(0, container, Program::endless(&[MS]));
    world.run_until(2 * SECOND);
    let before_ns = world.record(0, container).used_ns;
    world.resize(0, container, capped(60));
    world.run_until(3 * SECOND);
    let after = basis_points(world.record(0, container).used_ns - before_ns, SECOND);
    assert!(after.abs_diff(6_000) <= 150, "{after}");
}

#[test]
fn a_limit_holds_across_restarts_of_the_manager() {
    let mut world = World::new(1, 1);
    let container = ContainerId(0);
    world.add_container(0, container, capped(30));
    world.start(0, container, Program::endless(&[MS]));
    for restart in 1..=10 {
        world.run_until(restart * SECOND / 2);
        world.restart_manager(0);
    }
    let used = basis_points(world.record(0, container).used_ns, 5 * SECOND);
    assert!(used.abs_diff(3_000) <= 150, "{used}");
}

#[test]
fn alone_and_unlimited_costs_nothing() {
    let mut world = World::new(1, 1);
    let container = ContainerId(0);
    world.add_container(0, container, burstable(10));
    world.add_container(0, ContainerId(1), capped(50));
    world.start(0, container, Program::endless(&[MS]));
    world.run_until(SECOND);
    assert_eq!(world.usage(0, container).charged_ns, 0);
    assert!(world.polls(0) <= 3 && world.busy_bp(0) >= 9_990, "{} polls", world.polls(0));

    // Another container starts: from now on the device is shared, whatever is in the queue.
    let used_ns = world.record(0, container).used_ns;
    world.start(0, ContainerId(1), Program::endless(&[MS]));
    world.run_until(2 * SECOND);
    let shared = basis_points(world.record(0, container).used_ns - used_ns, SECOND);
    assert!(shared.abs_diff(5_000) <= 400, "{shared}");
}

#[test]
fn work_queued_while_running_free_delays_others_briefly() {
    for seed in 0..20 {
        let mut world = World::new(seed, 1);
        let (old, new) = (ContainerId(0), ContainerId(1));
        for container in [old, new] {
            world.add_container(0, container, burstable(50));
        }
        // The driver's queue gets full: a second of work.
        world.start(0, old, Program::endless(&[16 * MS]));
        world.run_until(SECOND);
        let used_ns = world.record(0, old).used_ns;
        world.start(0, new, Program::endless(&[MS]));
        world.run_until(2 * SECOND);
        let wait_ns = world.longest_wait_ns(0, new);
        assert!(wait_ns <= timing::OVERRUN_LAST_NS + 10 * MS, "seed {seed}: let in after {wait_ns}");
        world.run_until(11 * SECOND);
        let shared = basis_points(world.record(0, old).used_ns - used_ns, 10 * SECOND);
        assert!(shared.abs_diff(5_000) <= 150, "seed {seed}: {shared} bp since somebody else came");
        let (charged_ns, used_ns) = (world.charged_ns(0, old), world.record(0, old).used_ns - used_ns);
        assert!(charged_ns.abs_diff(used_ns) <= 100 * MS, "seed {seed}: {charged_ns} charged for {used_ns}");
    }
}

#[test]
fn an_idle_device_is_not_polled() {
    let mut world = World::new(1, 1);
    for number in 0..3 {
        world.add_container(0, ContainerId(number), capped(30));
        let idle = Program { kernels_ns: vec![MS], burst: 1, pause_ns: 100 * SECOND, varies: false };
        world.start(0, ContainerId(number), idle);
    }
    world.run_until(SECOND);
    let polls = world.polls(0);
    world.run_until(50 * SECOND);
    assert_eq!(world.polls(0), polls);
    let used_ns: u64 = (0..3).map(|number| world.record(0, ContainerId(number)).used_ns).sum();
    assert_eq!(used_ns, 3 * MS);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut world = World::new(seed, 1);
        for number in 0..3 {
            let kernels_ns = *Random::new(seed + number).pick(&KERNELS);
            world.add_container(0, ContainerId(number), capped(30));
            world.start(0, ContainerId(number), Program::endless(kernels_ns));
        }
        world.run_until(SECOND);
        (0..3).map(|number| world.usage(0, ContainerId(number))).collect::<Vec<_>>()
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn leases_follow_each_other_without_a_gap() {
    for (count, lease_max_ns, busy) in [(2, 2 * MS, 9_850), (10, u64::MAX, 9_800), (25, u64::MAX, 9_800)] {
        let mut world = World::new(1, 1).with_leases_of_at_most(lease_max_ns);
        for container in (0..count).map(ContainerId) {
            world.add_container(0, container, burstable(100 / count as u32));
            world.start(0, container, Program::endless(&[50 * US]));
        }
        world.run_until(5 * SECOND);
        assert!(world.busy_bp(0) >= busy, "{count} containers: the device was busy for {} bp", world.busy_bp(0));
        for container in (0..count).map(ContainerId) {
            let (used_ns, charged_ns) = (world.record(0, container).used_ns, world.charged_ns(0, container));
            assert!(charged_ns.abs_diff(used_ns) <= 50 * MS, "{container:?}: {charged_ns} charged for {used_ns}");
        }
    }
}

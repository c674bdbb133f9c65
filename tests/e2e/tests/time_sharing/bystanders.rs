//! Programs that launch no kernels never wait for a lease, and get none.

use std::fs;
use std::thread;
use std::time::Duration;

use aliquot_harness::{GIB, HostProgram, Node, SimulatedGpu, run, wait};

use crate::{busy, ready};

fn assert_neither_held_back_nor_charged(way: &str, says: &str) {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("bystander", 5, 8 * GIB), node.slice("neighbour", 95, GIB)];
    let _neighbour = busy(&gpu, &slices[1], 2_000_000);
    let mut command = HostProgram::linked(&gpu, "bystander").on(&gpu);
    run(slices[0].preload_into(command.arg(way))).success().assert_said(says);
    let used = node.client().usage("bystander").unwrap().parts.remove(0);
    assert_eq!((used.throttled_ns, used.core_used_ns, used.launches), (0, 0, 0), "{used:?}");
}

#[test]
fn a_program_that_only_copies_is_neither_held_back_nor_charged() {
    assert_neither_held_back_nor_charged("copies", "200 rounds, 0 calls\n");
}

#[test]
fn a_program_that_only_runs_host_functions_is_neither_held_back_nor_charged() {
    assert_neither_held_back_nor_charged("host functions", "200 rounds, 200 calls\n");
}

/// How often the threads of process `pid` have been switched in or out.
fn times_scheduled(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process's threads");
    let of_task = |status: String| {
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        counts.map(|line| line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    // A thread that has just ended has no status any more.
    tasks.flatten().map(|task| of_task(fs::read_to_string(task.path().join("status")).unwrap_or_default())).sum()
}

#[test]
fn in_a_program_that_does_nothing_nothing_is_done() {
    let gpu = SimulatedGpu::new();
    let node = Node::start(&gpu);
    let slices = [node.slice("idle", 5, 8 * GIB), node.slice("neighbour", 95, GIB)];
    let idle = ready(&gpu, &slices[0], &[]);
    let _neighbour = busy(&gpu, &slices[1], 2_000_000);
    // The program may not have reached its wait yet.
    wait::until_true("the program rests", || {
        let before = times_scheduled(idle.id());
        thread::sleep(Duration::from_millis(300));
        times_scheduled(idle.id()) == before
    });
}

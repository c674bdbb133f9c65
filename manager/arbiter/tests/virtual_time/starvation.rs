//! Containers that hold the device and use little of it. What they leave unused must not cost others their requests.

use aliquot_arbiter::{ContainerId, Share};

use crate::process::Program;
use crate::shares::{burstable, capped};
use crate::world::{MS, SECOND, World};

const US: u64 = 1_000;
const HOLDER: ContainerId = ContainerId(0);
const BATCH: ContainerId = ContainerId(1);
const BATCH_PERCENT: u32 = 80;

/// Short work with pauses in between.
fn light(pause_ns: u64) -> Program {
    Program { kernels_ns: vec![100 * US], burst: 1, pause_ns, varies: false }
}

/// Runs a container with a request of 20 % beside a busy one with a request of 80 %. It has a process with `program`
/// and, if `has_stopped` says so, one that was stopped while it waited at the gate. Returns what the busy one gets from
/// the first second on, in hundredths of a percent.
fn left_beside(share: Share, program: Option<Program>, has_stopped: bool) -> u64 {
    let mut world = World::new(1, 1);
    world.add_container(0, HOLDER, share);
    world.add_container(0, BATCH, burstable(BATCH_PERCENT));
    world.start(0, BATCH, Program::endless(&[MS]));
    world.run_until(10 * MS);
    if has_stopped {
        let stopped = world.start(0, HOLDER, Program::endless(&[MS]));
        world.processes[stopped].as_mut().unwrap().deaf = true;
    }
    if let Some(program) = program {
        world.start(0, HOLDER, program);
    }
    world.run_until(SECOND);
    let before_ns = world.record(0, BATCH).used_ns;
    world.run_until(5 * SECOND);
    (world.record(0, BATCH).used_ns - before_ns) * 10_000 / (4 * SECOND)
}

/// Limits and priorities of the container with a request of 20 %.
fn shares() -> impl Iterator<Item = Share> {
    [capped(20), Share { limit_percent: 50, ..capped(20) }, burstable(20)]
        .into_iter()
        .flat_map(|share| [0, 1].map(|priority| Share { priority, ..share }))
}

const PAUSES_NS: [u64; 6] = [100 * US, 300 * US, 700 * US, 1_300 * US, 1_900 * US, 4 * MS];

fn assert_keeps_its_request(share: Share, left_bp: u64, what: &str) {
    // Every switch leaves the device empty for a moment.
    assert!(left_bp + 500 >= u64::from(BATCH_PERCENT) * 100, "{left_bp} bp are left beside {what} with {share:?}");
}

#[test]
fn a_holder_whose_processes_are_stopped_at_the_gate() {
    for share in shares() {
        assert_keeps_its_request(share, left_beside(share, None, true), "stopped processes");
    }
}

#[test]
fn light_work_beside_a_process_stopped_at_the_gate() {
    for share in shares() {
        for pause_ns in PAUSES_NS {
            let left_bp = left_beside(share, Some(light(pause_ns)), true);
            assert_keeps_its_request(share, left_bp, &format!("a stopped process and pauses of {pause_ns} ns"));
        }
    }
}

#[test]
fn a_holder_with_light_work() {
    for share in shares() {
        for pause_ns in PAUSES_NS {
            let left_bp = left_beside(share, Some(light(pause_ns)), false);
            assert_keeps_its_request(share, left_bp, &format!("pauses of {pause_ns} ns"));
        }
    }
}

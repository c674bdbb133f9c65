//! A session decides as the core alone does when its cycles and events are called one after the other.

mod random;

use std::collections::BTreeSet;

use aliquot_scheduler::session::{CYCLES_MAX, Session};
use aliquot_scheduler::snapshot::File;
use aliquot_scheduler_core::{ClaimId, Cluster, Event, Scheduler};
use random::{Numbers, disturb, file};

/// The numbers of steps that each cycle has planned, until a cycle changes nothing.
fn run_core_to_rest(scheduler: &mut Scheduler, cluster: &mut Cluster, cycles_max: usize) -> Vec<usize> {
    let mut cycles = Vec::new();
    while cycles.len() < cycles_max {
        let steps = scheduler.cycle(cluster).steps.len();
        let ids = cluster.claims().map(|(id, ..)| id);
        let leaving: BTreeSet<ClaimId> = ids.filter(|id| cluster.leaving(*id).is_some()).collect();
        leaving.iter().for_each(|claim| _ = cluster.apply(Event::ClaimGone(*claim)).expect("the claim leaves"));
        if steps == 0 && leaving.is_empty() {
            break;
        }
        cycles.push(steps);
    }
    cycles
}

fn converge(session: &mut Session, cycles_max: usize) -> Vec<usize> {
    session.converge(cycles_max).cycles.iter().map(Vec::len).collect()
}

fn written(file: &File, scheduler: &Scheduler, cluster: &Cluster) -> String {
    file.later(scheduler, cluster).and_then(|later| later.render()).expect("a snapshot")
}

/// A snapshot of a cluster that has lived for a while: claims leave places, start after others, have failed.
fn later_snapshot(numbers: &mut Numbers) -> File {
    let file = file(numbers);
    let (mut scheduler, mut cluster) = file.restore().expect("a possible state");
    disturb(&mut scheduler, &mut cluster, numbers);
    File::parse(&written(&file, &scheduler, &cluster)).expect("what was written can be read")
}

#[test]
fn a_session_decides_as_the_core_alone() {
    let mut steps = 0;
    for seed in 0..300 {
        let mut numbers = Numbers(seed);
        let file = if seed % 2 == 0 { file(&mut numbers) } else { later_snapshot(&mut numbers) };
        let (mut scheduler, mut cluster) = file.restore().expect("a possible state");
        let mut session = Session::new(&file).expect("a possible state");
        if numbers.below(2) == 0 {
            let node = cluster.node_named("n0").expect("the first node");
            cluster.apply(Event::NodeRemoved(node)).expect("the node is there");
            session.remove_node("n0").expect("the node is there");
        }
        let first_max = if seed % 4 < 2 { 1 } else { CYCLES_MAX };
        for cycles_max in [first_max, CYCLES_MAX] {
            let alone = run_core_to_rest(&mut scheduler, &mut cluster, cycles_max);
            steps += alone.iter().sum::<usize>();
            assert_eq!(converge(&mut session, cycles_max), alone, "seed {seed}");
            let same = written(&file, &scheduler, &cluster);
            assert_eq!(written(&file, session.scheduler(), session.cluster()), same, "seed {seed}");
            let then_ms = cluster.now_ms() + 1 + numbers.below(10_000);
            cluster.apply(Event::TimeAdvanced(then_ms)).expect("later");
            session.advance(then_ms).expect("later");
        }
        assert!(session.advance(0).is_err());
    }
    assert!(steps > 1000, "{steps} steps are too few to prove anything");
}

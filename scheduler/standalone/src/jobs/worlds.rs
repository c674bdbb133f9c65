//! Tests of the book in small worlds: an engine that starts every claim, and nodes on which instances end in every way.

mod cluster;
mod world;

use aliquot_proto::agent::v1 as agent;
use aliquot_proto::scheduler::v1 as wire;
use aliquot_scheduler_engine::{Amounts, Observation};
use proptest::prelude::*;

use super::book::{Book, ENDED_MEMBERS_MAX, Effects, Ended, Entry, StartOrder};
use super::run::{Fault, Instance};
use super::task::{Task, TaskState};
use super::{ClaimName, End, Job, JobId, JobSpec};
use crate::access::Identity;
use cluster::Cluster;
use world::World;

const SUCCESS: Ended = Ended::Exited { code: Some(0), signal: 0 };
const FAILURE: Ended = Ended::Exited { code: Some(3), signal: 0 };

#[test]
fn a_job_that_ends_well_has_succeeded_and_is_not_started_again() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec::default());
    world.start_all();
    let instance = world.only();
    world.started(instance);
    world.ends(instance, SUCCESS);
    assert_eq!(world.end(id), Some(End::Succeeded));
    assert!(world.wanted.is_empty());
    // The engine had decided to start it before it heard of the end.
    world.start(ClaimName { job: id, index: 0, rank: 0, attempt: 1 });
    assert!(world.running.is_empty());
    world.restart();
}

#[test]
fn a_node_is_told_the_name_of_the_user_also_after_a_restart() {
    let mut world = World::default();
    let job = world.submit(wire::JobSpec::default());
    world.restart();
    let claim = ClaimName { job, index: 0, rank: 0, attempt: 1 };
    let process = world.book.entry(job).and_then(|entry| entry.process(claim, None)).expect("the job is known");
    assert_eq!((process.uid, process.local_user.as_str()), (1000, "u"));
}

#[test]
fn a_node_is_told_the_limit_and_class_also_after_a_restart() {
    let mut world = World::default();
    let priority_class = wire::PriorityClass::Batch.into();
    let limited =
        wire::JobSpec { gpu_core_percent: 30, gpu_core_limit_percent: 60, priority_class, ..Default::default() };
    let limited = world.submit(limited);
    let plain = world.submit(wire::JobSpec { gpu_core_percent: 30, ..Default::default() });
    // An older scheduler has saved the plain job.
    let newer = ",\"gpu_core_limit_percent\":0,\"priority_class\":null";
    let saved = world.saved.values_mut().find(|value| value.contains(newer)).expect("the job is saved");
    *saved = saved.replace(newer, "");
    world.restart();
    let told = |job| {
        let claim = ClaimName { job, index: 0, rank: 0, attempt: 1 };
        let process = world.book.entry(job).and_then(|entry| entry.process(claim, None)).expect("the job is known");
        (process.core_limit_percent, process.priority_class())
    };
    assert_eq!(told(limited), (60, agent::PriorityClass::Batch));
    assert_eq!(told(plain), (0, agent::PriorityClass::Unspecified));
}

#[test]
fn a_failure_is_tried_again_as_often_as_the_job_says() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec { retries: 1, retry_delay_ms: 500, ..Default::default() });
    world.start_all();
    let first = world.only();
    world.ends(first, FAILURE);
    assert!(world.end(id).is_none() && world.wanted.is_empty(), "it waits before it is tried again");
    world.restart();
    world.tick(499);
    world.tick(2);
    world.start_all();
    let second = world.only();
    world.ends(first, FAILURE);
    assert!(world.end(id).is_none(), "an end that is told twice counts once");
    world.ends(second, FAILURE);
    assert_eq!((world.end(id), world.reason(id)), (Some(End::Failed), "ended with code 3"));
}

#[test]
fn a_job_that_is_never_to_be_started_again_is_not() {
    for restart in [wire::Restart::Unspecified, wire::Restart::Never] {
        let mut world = World::default();
        let id = world.submit(wire::JobSpec { restart: restart.into(), ..Default::default() });
        world.start_all();
        let instance = world.only();
        world.started(instance);
        // The node is lost. Its lease lapses, and the engine places the claim anew.
        world.vanishes(instance);
        world.restart();
        world.start_all();
        world.let_go();
        match restart {
            wire::Restart::Unspecified => assert_eq!(world.starts[&(id, 0, 0)], 2),
            wire::Restart::Never => {
                assert_eq!((world.starts[&(id, 0, 0)], world.end(id)), (1, Some(End::Failed)));
                assert!(world.reason(id).contains("never started again"), "{}", world.reason(id));
            }
        }
    }
}

#[test]
fn gangs_and_jobs_that_a_move_would_fail_are_not_moved() {
    let are_immovable = |spec: wire::JobSpec| {
        let mut world = World::default();
        world.submit(spec);
        let claims = world.book.wanted().into_iter().filter_map(|told| match told {
            Observation::Claim(_, claim) => Some(claim.immovable),
            _ => None,
        });
        claims.collect::<Vec<bool>>()
    };
    let never = wire::JobSpec { restart: wire::Restart::Never.into(), ..Default::default() };
    assert_eq!(are_immovable(never), [true]);
    assert_eq!(are_immovable(wire::JobSpec { gang: 2, ..Default::default() }), [true, true]);
    assert_eq!(are_immovable(wire::JobSpec { array: vec![3, 5], ..Default::default() }), [false, false]);
}

#[test]
fn a_repeated_start_is_the_same_start() {
    for restart in [wire::Restart::Unspecified, wire::Restart::Never] {
        let mut world = World::default();
        let id = world.submit(wire::JobSpec { restart: restart.into(), ..Default::default() });
        world.start_all();
        let instance = world.only();
        let claim = world.running[&instance];
        world.restart();
        world.repeat_start(claim, instance);
        assert_eq!((world.end(id), world.starts[&(id, 0, 0)]), (None, 2), "the node hears it once more");
        assert_eq!(world.book.entry(id).expect("the job is known").tasks[&0].starts, 1);
        let of = Instance { node: "node", claim, generation: instance };
        world.act(|book, now_ms, effects| book.not_started(now_ms, of, "no lease", Fault::Node, effects));
        world.repeat_start(claim, instance);
        assert_eq!(world.starts[&(id, 0, 0)], 2, "the node has answered meanwhile");
    }
}

#[test]
fn the_starts_of_a_gang_gather_again_after_a_restart() {
    let mut world = World::default();
    let job = world.submit(wire::JobSpec { gang: 2, ..Default::default() });
    let member = |rank| ClaimName { job, index: 0, rank, attempt: 1 };
    let second = world.start(member(1));
    assert!(world.running.is_empty(), "the address of the first member is not known");
    world.restart();
    world.repeat_start(member(1), second);
    world.start(member(0));
    assert_eq!(world.running.len(), 2);
}

#[test]
fn a_node_can_speak_of_its_own_instances_only() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec::default());
    world.start_all();
    let generation = world.only();
    let of = Instance { node: "another", claim: world.running[&generation], generation };
    world.act(|book, now_ms, effects| book.ended(now_ms, of, SUCCESS, effects));
    assert_eq!(world.end(id), None);
    assert_eq!(world.wanted.len(), 1);
}

#[test]
fn a_gang_whose_node_is_lost_starts_anew_and_each_time_later() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec { gang: 2, ..Default::default() });
    for waits_ms in [0, 1000, 2000] {
        world.start_all();
        let claim = *world.running.values().next().expect("two run");
        world.running.retain(|_, other| *other != claim);
        world.act(|book, now_ms, effects| book.lost(now_ms, claim, effects));
        world.let_go();
        if waits_ms > 0 {
            assert!(world.wanted.is_empty(), "it waits");
            world.tick(waits_ms);
        }
        assert_eq!(world.wanted.len(), 2, "both members are wanted again");
    }
    assert!(world.end(id).is_none());
}

/// Starts the job, runs it for this time, and loses a node of it; `how` is 0 to 2.
fn lose_a_node(world: &mut World, ran_ms: u64, how: u32) {
    // A gang waits before it starts anew.
    world.tick(10_000);
    world.start_all();
    for instance in world.running.keys().copied().collect::<Vec<_>>() {
        world.started(instance);
    }
    world.tick(ran_ms);
    let (instance, claim) =
        world.running.first_key_value().map(|(instance, claim)| (*instance, *claim)).expect("it runs");
    match how {
        0 => {
            world.vanishes(instance);
            world.act(|book, now_ms, effects| book.lost(now_ms, claim, effects));
        }
        // The node is back, and does not know how the job has ended.
        1 => world.ends(instance, Ended::NodeLost),
        // The engine starts it elsewhere before its views show the loss.
        _ => {
            world.vanishes(instance);
            world.start(claim);
        }
    }
    world.let_go();
    world.restart();
}

#[test]
fn a_task_that_loses_one_node_after_another_fails() {
    for gang in [1, 3] {
        let mut world = World::default();
        let id = world.submit(wire::JobSpec { gang, retries: 9, ..Default::default() });
        for how in [0, 1, 2, 0, 1] {
            assert_eq!(world.end(id), None);
            lose_a_node(&mut world, 299_000, how);
        }
        assert_eq!((world.end(id), world.wanted.len()), (Some(End::Failed), 0));
        let why = world.reason(id);
        assert!(why.starts_with("node node was lost, the 5th time in a row within 5 minutes"), "{why}");
    }
}

#[test]
fn losses_of_nodes_count_only_in_a_row() {
    for (gang, is_evicted) in [(1, false), (1, true), (3, false), (3, true)] {
        let mut world = World::default();
        let id = world.submit(wire::JobSpec { gang, ..Default::default() });
        let losses = |world: &World| world.book.entries[&id].tasks[&0].losses;
        (0..4).for_each(|_| lose_a_node(&mut world, 1, 0));
        assert_eq!(losses(&world), 4);
        if is_evicted {
            world.tick(10_000);
            world.start_all();
            let instance = *world.running.keys().next().expect("it runs");
            world.started(instance);
            world.tick(300_000);
            world.ends(instance, Ended::Displaced);
            world.let_go();
            assert_eq!(losses(&world), 0);
        }
        lose_a_node(&mut world, 300_000, 0);
        assert_eq!((losses(&world), world.end(id)), (1, None));
    }
}

#[test]
fn jobs_that_others_wait_for_are_kept() {
    let mut world = World::default();
    let first = world.submit(wire::JobSpec::default());
    world.start_all();
    let instance = world.only();
    world.ends(instance, SUCCESS);
    let second = world.submit(wire::JobSpec::default());
    let last = world.submit(wire::JobSpec { after: vec![first, second], ..Default::default() });
    for _ in 0..10_001 {
        let id = world.submit(wire::JobSpec::default());
        world.act(|book, now_ms, effects| book.cancel(now_ms, id, &[], effects)).expect("there is such a job");
    }
    assert!(world.book.entries.len() < 10_010, "the oldest are forgotten");
    world.start_all();
    let instance = *world.running.iter().find(|(_, claim)| claim.job == second).expect("it runs").0;
    world.ends(instance, SUCCESS);
    world.start_all();
    assert!(world.running.values().any(|claim| claim.job == last), "what it waited for has succeeded");
}

#[test]
fn nobody_has_more_tasks_than_can_be_kept() {
    let mut world = World::default();
    assert_eq!(world.book.too_many(&Identity::Local(1000), 200_000), None);
    let id = world.submit(wire::JobSpec { array: (0..10).collect(), gang: 3, ..Default::default() });
    assert!(world.book.too_many(&Identity::Local(1000), 199_971).is_some_and(|why| why.starts_with("30 tasks")));
    assert_eq!(world.book.too_many(&Identity::Local(1001), 199_971), None);
    world.act(|book, now_ms, effects| book.cancel(now_ms, id, &[], effects)).expect("there is such a job");
    assert_eq!(world.book.too_many(&Identity::Local(1000), 200_000), None);
}

#[test]
fn old_jobs_with_many_members_are_forgotten_when_others_end() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec { gang: 10_000, ..Default::default() });
    let small = world.book.entry(id).expect("known").clone();
    let (mut book, mut effects) = (Book::default(), Effects::default());
    let mut end = |id: JobId, tasks: u32| {
        let task = |index| Task { index, state: TaskState::Ended(End::Cancelled), ..small.tasks[&0].clone() };
        let job = Job { id, ..small.job.clone() };
        book.insert(Entry::new(job, (0..tasks).map(|index| (index, task(index))).collect()));
        book.note_ended(id, id);
        book.prune(&mut effects);
        book.entries().map(|entry| entry.job.id).collect::<Vec<_>>()
    };
    assert_eq!(end(1, 8), [1]);
    assert_eq!(end(2, 8), [2, 1]);
    assert_eq!(end(3, 8), [3, 2], "three of them have more than {ENDED_MEMBERS_MAX} members");
    assert_eq!(end(4, 4), [4, 3, 2]);
    assert_eq!(end(5, 30), [5], "the newest is kept, however large it is");
    let removed = effects.changes.iter().filter(|change| change.value.is_none()).count();
    assert_eq!(removed, 4 + 8 + 8 + 8 + 4, "what is forgotten is not saved any more");
}

#[test]
fn a_wrong_clock_holds_up_no_retry_after_a_restart() {
    let mut world = World { now_ms: 1 << 50, ..World::default() };
    world.submit(wire::JobSpec { retries: 1, ..Default::default() });
    world.start_all();
    let instance = world.only();
    world.ends(instance, FAILURE);
    world.restart();
    world.now_ms = 0;
    world.book.bound_retries(0);
    world.tick(300_000);
    assert_eq!(world.wanted.len(), 1);
}

#[test]
fn an_eviction_is_no_failure() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec::default());
    world.start_all();
    let instance = world.only();
    world.started(instance);
    world.ends(instance, Ended::Displaced);
    assert!(world.end(id).is_none());
    world.start_all();
    let again = world.only();
    world.ends(again, SUCCESS);
    assert_eq!(world.end(id), Some(End::Succeeded));
}

#[test]
fn a_gang_starts_when_the_place_of_its_first_member_is_known() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec { gang: 3, ..Default::default() });
    let claim = |rank| ClaimName { job: id, index: 0, rank, attempt: 1 };
    world.start(claim(2));
    assert!(world.running.is_empty(), "rank 2 cannot know where rank 0 is");
    world.start(claim(0));
    world.start(claim(1));
    assert_eq!(world.running.len(), 3);
    world.book.note_address("node", "10.0.0.1");
    assert_eq!(world.book.first_address(id, 0), Some("10.0.0.1"));
}

#[test]
fn a_gang_that_loses_a_member_starts_anew_as_a_whole() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec { gang: 2, ..Default::default() });
    world.start_all();
    let lost = *world.running.keys().next().expect("two run");
    world.ends(lost, Ended::Displaced);
    assert!(world.wanted.is_empty(), "the other member is stopped before the next attempt: {:?}", world.wanted);
    world.let_go();
    assert_eq!(world.wanted.len(), 2);
    world.start_all();
    for instance in world.running.keys().copied().collect::<Vec<_>>() {
        world.ends(instance, SUCCESS);
    }
    assert_eq!(world.end(id), Some(End::Succeeded));
}

#[test]
fn a_cancelled_job_has_ended_when_nothing_of_it_runs_any_more() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec { gang: 2, retries: 9, ..Default::default() });
    world.start_all();
    world.act(|book, now_ms, effects| book.cancel(now_ms, id, &[], effects)).expect("there is such a job");
    assert!(world.end(id).is_none() && world.wanted.is_empty());
    world.restart();
    world.let_go();
    assert_eq!(world.end(id), Some(End::Cancelled));
}

#[test]
fn a_job_waits_for_those_before_it() {
    let mut world = World::default();
    let first = world.submit(wire::JobSpec::default());
    let then = world.submit(wire::JobSpec { after: vec![first], ..Default::default() });
    let last = world.submit(wire::JobSpec { after: vec![then], ..Default::default() });
    assert_eq!(world.wanted.len(), 1);
    world.restart();
    world.start_all();
    let instance = world.only();
    world.ends(instance, SUCCESS);
    world.start_all();
    let instance = world.only();
    assert_eq!(world.running[&instance].job, then);
    world.ends(instance, FAILURE);
    assert_eq!(world.end(last), Some(End::Failed));
    assert!(world.reason(last).contains(&format!("job {then}")), "{}", world.reason(last));
    let missing = Job {
        id: 99,
        spec: JobSpec { after: vec![77], ..JobSpec::default() },
        ..world.book.entry(first).expect("known").job.clone()
    };
    assert!(world.act(|book, now_ms, effects| book.submit(now_ms, missing, effects)).is_err());
}

#[test]
fn a_task_names_three_of_the_jobs_that_it_waits_for() {
    let mut world = World::default();
    let before: Vec<JobId> = (0..5).map(|_| world.submit(wire::JobSpec::default())).collect();
    let last = world.submit(wire::JobSpec { after: before, array: vec![0, 1], ..Default::default() });
    assert_eq!(world.reason(last), "it waits for job 1, 2, 3 and 2 others");
    let mut end_one = || {
        world.start_all();
        let instance = *world.running.keys().next().expect("some run");
        world.ends(instance, SUCCESS);
        world.reason(last).to_owned()
    };
    assert_eq!(end_one(), "it waits for job 2, 3, 4 and 1 other");
    assert_eq!(end_one(), "it waits for job 3, 4, 5");
    world.restart();
}

#[test]
fn a_request_is_known_as_long_as_its_job_is() {
    let mut world = World::default();
    let id = world.submit_as("abc", wire::JobSpec::default());
    let made = world.book.entry(id).expect("known").job.clone();
    let again = |of: Job| Job { id: 0, submitted_ms: 7, ..of };
    for restarts in [false, true] {
        if restarts {
            world.restart();
        }
        assert_eq!(world.book.made_before(&again(made.clone())), Some(Ok(id)));
        let other = Job { spec: JobSpec { gpus: 2, ..made.spec.clone() }, ..made.clone() };
        let refused = world.book.made_before(&again(other)).expect("known").expect_err("it asks for something else");
        assert!(refused.contains(&format!("job {id} ")) && refused.contains("\"abc\""), "{refused}");
        assert_eq!(world.book.made_before(&again(Job { uid: 7, ..made.clone() })), None, "of another user");
        assert_eq!(world.book.made_before(&again(Job { is_remote: true, ..made.clone() })), None, "of another machine");
        assert_eq!(world.book.made_before(&again(Job { request_id: String::new(), ..made.clone() })), None);
    }
}

#[test]
fn what_a_node_could_not_start_is_a_failure_only_if_the_job_is_to_blame() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec::default());
    for (fault, ends) in [(Fault::Node, None), (Fault::Job, Some(End::Failed))] {
        world.start_all();
        let (instance, claim) = world.running.pop_first().expect("it runs");
        let of = Instance { node: "node", claim, generation: instance };
        world.act(|book, now_ms, effects| book.not_started(now_ms, of, "no such program", fault, effects));
        assert_eq!((world.end(id), world.reason(id)), (ends, "no such program"));
        assert_eq!(world.book.entries[&id].tasks[&0].refused_by, ["node"], "only the first time the node is to blame");
        world.restart();
    }
}

#[test]
fn a_task_that_a_node_refuses_runs_on_another_one() {
    let mut cluster = Cluster::new(&["a", "b"], &["a"], 1);
    cluster.run_until_tried(2);
    assert_eq!(cluster.tried, ["a", "b"]);
    assert_eq!((cluster.places(), cluster.task().runs()), (vec!["b"], true));
    assert!(cluster.task().refused_by.is_empty(), "once it runs, all nodes are alike again");
}

#[test]
fn a_gang_that_a_node_refuses_runs_on_others() {
    let mut cluster = Cluster::new(&["a", "b", "c"], &["a"], 2);
    while !cluster.task().members.iter().all(|member| member.started_ms.is_some()) {
        assert!(cluster.tried.len() <= 4, "{:?}", cluster.tried);
        cluster.step();
    }
    assert_eq!(cluster.tried.iter().filter(|node| *node == "a").count(), 1, "{:?}", cluster.tried);
    assert_eq!((cluster.places(), cluster.task().attempt), (vec!["b", "c"], 2));
    assert!(cluster.task().refused_by.is_empty(), "once it runs, all nodes are alike again");
}

#[test]
fn a_node_that_refuses_is_tried_again_if_no_other_fits() {
    let mut cluster = Cluster::new(&["a"], &["a"], 1);
    cluster.run_until_tried(3);
    assert_eq!((cluster.tried.as_slice(), cluster.task().runs()), (&["a", "a", "a"].map(String::from)[..], false));
    assert_eq!(cluster.task().refused_by, ["a"]);
    // Of those that refuse, each gets its turn.
    let mut cluster = Cluster::new(&["a", "b", "c"], &["a", "b", "c"], 1);
    cluster.run_until_tried(6);
    assert_eq!(cluster.tried, ["a", "b", "c", "a", "b", "c"]);
}

#[test]
fn a_start_that_was_not_sent_is_as_one_that_its_node_refused() {
    let mut world = World::default();
    let id = world.submit(wire::JobSpec { retries: 1, ..wire::JobSpec::default() });
    for (fault, failures, ends) in [(Fault::Node, 0, None), (Fault::Job, 1, None), (Fault::Job, 2, Some(End::Failed))] {
        world.tick(60_000);
        world.start_all();
        let (generation, claim) = world.running.pop_first().expect("a start is commanded");
        let (node, amounts) = ("node".into(), Amounts::default());
        let order = StartOrder { node, session: 1, claim, generation, amounts, deadline_ms: 1000, term: 1 };
        world.act(|book, now_ms, effects| book.not_sent(now_ms, &order, "no such secret", fault, effects));
        let task = &world.book.entries[&id].tasks[&0];
        assert_eq!((task.failures, task.reason.as_str(), world.end(id)), (failures, "no such secret", ends));
    }
}

#[derive(Clone, Copy, Debug)]
enum Happens {
    Submit { gang: u32, array: u32, retries: u32, never: bool, after: bool },
    StartAll,
    Started(u8),
    Ends(u8, u8),
    Vanishes(u8),
    Cancel(u8),
    Tick(u16),
    LetGo,
    Restart,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        2 => (1..4_u32, 0..3_u32, 0..3_u32, any::<bool>(), any::<bool>())
            .prop_map(|(gang, array, retries, never, after)| Happens::Submit { gang, array, retries, never, after }),
        4 => Just(Happens::StartAll),
        3 => any::<u8>().prop_map(Happens::Started),
        5 => (any::<u8>(), 0..6_u8).prop_map(|(which, how)| Happens::Ends(which, how)),
        2 => any::<u8>().prop_map(Happens::Vanishes),
        1 => any::<u8>().prop_map(Happens::Cancel),
        2 => any::<u16>().prop_map(Happens::Tick),
        3 => Just(Happens::LetGo),
        1 => Just(Happens::Restart),
    ]
}

proptest! {
    /// In any order of events: no ended claim is started, a job that must never run twice does not, and all that is
    /// known is saved. If every instance succeeds in the end, every job ends.
    #[test]
    fn every_job_comes_to_its_end(story in prop::collection::vec(happens(), 1..60)) {
        let mut world = World::default();
        for happens in story {
            let nth = |world: &World, which: u8| {
                world.running.keys().nth(usize::from(which) % world.running.len().max(1)).copied()
            };
            match happens {
                Happens::Submit { gang, array, retries, never, after } => {
                    let restart = if never { wire::Restart::Never } else { wire::Restart::Unspecified };
                    let after = if after && world.next_id > 0 { vec![world.next_id] } else { Vec::new() };
                    world.submit(wire::JobSpec {
                        gang, array: (0..array).collect(), retries, restart: restart.into(), after, ..Default::default()
                    });
                }
                Happens::StartAll => world.start_all(),
                Happens::Started(which) => if let Some(instance) = nth(&world, which) { world.started(instance) },
                Happens::Ends(which, how) => if let Some(instance) = nth(&world, which) {
                    let ended = [SUCCESS, FAILURE, Ended::TimeLimit, Ended::Displaced, Ended::NodeLost,
                        Ended::Exited { code: None, signal: 9 }][usize::from(how)];
                    world.ends(instance, ended);
                },
                Happens::Vanishes(which) => if let Some(instance) = nth(&world, which) { world.vanishes(instance) },
                Happens::Cancel(which) => if world.next_id > 0 {
                    let id = 1 + u64::from(which) % world.next_id;
                    world.act(|book, now_ms, effects| book.cancel(now_ms, id, &[], effects)).expect("there is such a job");
                },
                Happens::Tick(after_ms) => world.tick(after_ms.into()),
                Happens::LetGo => world.let_go(),
                Happens::Restart => world.restart(),
            }
        }
        for _ in 0..1000 {
            world.tick(10_000_000);
            world.let_go();
            world.start_all();
            for instance in world.running.keys().copied().collect::<Vec<_>>() {
                world.ends(instance, SUCCESS);
            }
        }
        for entry in world.book.entries() {
            let states: Vec<TaskState> = entry.tasks.values().map(|task| task.state).collect();
            prop_assert!(entry.end().is_some(), "job {} is at {states:?}", entry.job.id);
            if entry.job.spec.restart == super::Restart::Never && entry.job.spec.retries == 0 {
                for (member, starts) in world.starts.range((entry.job.id, 0, 0)..(entry.job.id + 1, 0, 0)) {
                    prop_assert!(*starts <= 1, "{member:?} was started {starts} times");
                }
            }
        }
        world.restart();
    }
}

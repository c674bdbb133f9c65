//! Counted resources of nodes: the claims that make way if nothing else is short, and the state while they leave.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{
    Action, Allocation, Claim, ClaimId, Event, EventError, NodeSpec, NotEnough, Outcome, Plan, Request, Scheduler,
    Settings, Step,
};
use aliquot_scheduler_kit::{self as kit, Build};

use crate::setting::{INFERENCE, TRAIN, World, evicted, group, moved, wants};

fn counted<const N: usize>(amounts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    amounts.into_iter().map(|(name, amount)| (name.to_owned(), amount)).collect()
}

/// Nodes with room for these numbers of pods, and with far more devices and cores than the pods need.
fn world(pods: &[u64]) -> World {
    let mut world = World::new(&[]);
    for (number, pods) in pods.iter().enumerate() {
        let counted = counted([("pods", *pods)]);
        world.cluster.add_node(NodeSpec { counted, ..kit::node(&format!("node-{number}"), 64, 8) });
    }
    world
}

/// A claim for a device and for this many pods.
fn pods(queue: &str, priority: i32, pods: u64) -> Claim {
    let claim = wants(queue, priority, 1);
    Claim { request: Request { counted: counted([("pods", pods)]), ..claim.request }, ..claim }
}

fn actions(plan: &Plan) -> Vec<Action> {
    let evictions = plan.steps.iter().filter(|step| !matches!(step.step, Step::Place { .. }));
    evictions.map(|step| step.action).collect()
}

#[test]
fn a_node_takes_no_more_pods_than_it_has_room_for() {
    let mut world = world(&[3, 1]);
    let claims: Vec<ClaimId> = [2, 1, 1, 1].map(|asked| world.claim(pods("default", TRAIN, asked))).into();
    let strange = Request { counted: counted([("hca", 1)]), ..kit::whole(1) };
    let strange = world.claim(Claim { request: strange, ..wants("default", TRAIN, 0) });
    world.cycle();
    assert_eq!(world.running(&claims), 3, "four pods have room, and the devices would do for all");
    assert!(!world.runs(strange), "of what a node does not list there is none");
}

#[test]
fn who_is_preempted_frees_the_pods_that_are_short() {
    let mut world = world(&[2]);
    let low = [TRAIN - 1, TRAIN].map(|priority| world.claim(pods("default", priority, 1)));
    world.cycle();
    let high = world.claim(pods("default", INFERENCE, 1));
    let plan = world.cycle();
    assert_eq!((evicted(&plan), actions(&plan)), (vec![low[0]], vec![Action::Preempt]));
    assert!(world.runs(high));
}

#[test]
fn nobody_is_evicted_who_holds_no_pods_where_pods_are_short() {
    let mut world = world(&[1]);
    let other = world.claim(pods("default", TRAIN - 1, 0));
    let holder = world.claim(pods("default", TRAIN, 1));
    world.cycle();
    world.claim(pods("default", INFERENCE, 1));
    assert_eq!(evicted(&world.cycle()), [holder]);
    assert!(world.runs(other));
}

#[test]
fn a_gang_preempts_as_many_pods_as_its_members_need() {
    let mut world = world(&[2, 2]);
    let low: Vec<ClaimId> = (0..4).map(|_| world.claim(pods("default", TRAIN, 1))).collect();
    world.cycle();
    assert_eq!(world.running(&low), 4);
    world.apply(Event::PodGroupAdded(group("gang", "default", INFERENCE, 3)));
    let member = Claim { pod_group: Some("gang".into()), ..pods("", 0, 1) };
    let gang: Vec<ClaimId> = (0..3).map(|_| world.claim(member.clone())).collect();
    let plan = world.cycle();
    assert_eq!((evicted(&plan).len(), world.running(&gang), world.running(&low)), (3, 3, 1));
}

#[test]
fn reclaim_frees_the_pods_of_who_borrowed_devices() {
    let mut world = world(&[2]);
    world.queue("red", 2);
    world.queue("blue", 0);
    let blue: Vec<ClaimId> = (0..2).map(|_| world.claim(pods("blue", TRAIN, 1))).collect();
    world.cycle();
    assert_eq!(world.running(&blue), 2);
    // The queues share devices. Blue holds more than its quota of them as soon as red asks for all of them.
    let red: Vec<ClaimId> = (0..8).map(|_| world.claim(pods("red", TRAIN, 1))).collect();
    let plan = world.cycle();
    assert!(actions(&plan).iter().all(|action| *action == Action::Reclaim), "{plan:?}");
    assert!(world.running(&red) > 0 && world.running(&blue) < 2, "{plan:?}");
}

#[test]
fn claims_are_moved_where_free_pods_are_in_pieces() {
    let mut world = world(&[2, 2]);
    let first = world.claim(pods("default", TRAIN, 1));
    let second = world.claim(pods("default", TRAIN, 1));
    world.run_on(first, 0, 0);
    world.run_on(second, 1, 0);
    let both = world.claim(pods("default", TRAIN, 2));
    let plan = world.cycle();
    assert_eq!((moved(&plan).len(), actions(&plan)), (1, vec![Action::Consolidate]));
    assert!(world.runs(both) && world.running(&[first, second]) == 2);
}

#[test]
fn nobody_is_moved_where_too_few_pods_are_free_in_all() {
    let mut world = world(&[2, 2]);
    let claims: Vec<ClaimId> = (0..3).map(|_| world.claim(pods("default", TRAIN, 1))).collect();
    world.cycle();
    world.claim(pods("default", TRAIN, 2));
    assert_eq!(world.cycle().steps, []);
    assert_eq!(world.running(&claims), 3);
}

#[test]
fn who_gets_the_pods_of_another_starts_when_that_is_gone() {
    let mut world = world(&[1]);
    let low = world.claim(pods("default", TRAIN, 1));
    world.cycle();
    let high = world.claim(pods("default", INFERENCE, 1));
    let without = world.claim(pods("default", TRAIN, 0));
    let plan = world.scheduler.cycle(&mut world.cluster);
    let after = |of: ClaimId| {
        plan.steps.iter().find_map(|step| match &step.step {
            Step::Place { claim, starts_after, .. } if *claim == of => Some(starts_after.clone()),
            _ => None,
        })
    };
    assert_eq!(after(high), Some(vec![low]), "no device and no core is short, but the pod is not gone");
    assert_eq!(after(without), Some(vec![]), "it needs nothing that is still held");
    let gone = world.apply(Event::ClaimGone(low));
    assert_eq!(gone, Outcome::Claims { displaced: vec![], ready: vec![high] });
}

/// Three claims, of which the second has the lowest priority, seen on a node with room for `has` pods.
fn seen(has: u64) -> (World, [ClaimId; 3]) {
    let mut world = world(&[has]);
    let at = world.id(0);
    let claims = [50, 10, 30].map(|priority| {
        let request = Request { counted: counted([("pods", 1), ("hca", 0)]), ..kit::cores(1) };
        let claim = world.claim(Claim { request, ..wants("default", priority, 0) });
        world.apply(Event::ClaimSeen(claim, Allocation { node: at, devices: Vec::new(), alternative: 0 }));
        claim
    });
    (world, claims)
}

#[test]
fn a_node_that_runs_too_many_pods_is_relieved() {
    for (has, over) in [(3, false), (2, true), (0, true)] {
        let (mut world, claims) = seen(has);
        let node = world.cluster.node(world.id(0)).expect("a node");
        assert_eq!((node.counted_free("pods"), node.is_over_committed()), (0, over));
        let plan = world.cycle();
        let expected = match has {
            3 => vec![],
            2 => vec![claims[1]],
            _ => vec![claims[1], claims[2], claims[0]],
        };
        assert_eq!(evicted(&plan), expected);
        assert!(actions(&plan).iter().all(|action| *action == Action::Relieve), "{plan:?}");
        assert!(!world.cluster.node(world.id(0)).expect("a node").is_over_committed());
    }
}

#[test]
fn what_comes_free_of_what_is_held_beyond_comes_free_in_the_end() {
    let (mut world, claims) = seen(2);
    let free = |world: &World| {
        let node = world.cluster.node(world.id(0)).expect("a node");
        (node.counted_free("pods"), node.is_over_committed())
    };
    let frees = [(0, false), (1, false), (2, false)];
    for (claim, left) in claims.into_iter().zip(frees) {
        world.apply(Event::ClaimRemoved(claim));
        assert_eq!(free(&world), left);
    }
}

#[test]
fn a_node_with_too_many_pods_is_restored_from_its_dump() {
    let (mut world, _) = seen(1);
    let dump = world.scheduler.dump(&world.cluster);
    let policy = Box::new(aliquot_scheduler_core::placement::BestFit);
    let (mut scheduler, mut cluster) =
        Scheduler::restore(policy, Settings::default(), dump.clone()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(scheduler.dump(&cluster), dump);
    assert_eq!(scheduler.cycle(&mut cluster), world.scheduler.cycle(&mut world.cluster));
}

#[test]
fn a_node_follows_a_change_of_how_many_pods_it_takes() {
    let mut world = world(&[2]);
    let claims: Vec<ClaimId> = (0..3).map(|_| world.claim(pods("default", TRAIN, 1))).collect();
    world.cycle();
    assert_eq!(world.running(&claims), 2);
    let id = world.id(0);
    let with = |pods: u64| NodeSpec { counted: counted([("pods", pods)]), ..kit::node("node-0", 64, 8) };
    world.apply(Event::NodeChanged(id, with(1)));
    assert_eq!(evicted(&world.cycle()).len(), 1);
    world.apply(Event::NodeChanged(id, with(3)));
    world.cycle();
    assert_eq!(world.running(&claims), 3);
}

#[test]
fn a_claim_grows_only_into_pods_that_are_free() {
    let mut world = world(&[3]);
    let [grows, other] = [1, 1].map(|asked| world.claim(pods("default", TRAIN, asked)));
    world.cycle();
    let asks = |asked: u64| pods("default", TRAIN, asked).request;
    world.apply(Event::ClaimResized(grows, asks(2)));
    let refused = world.cluster.apply(Event::ClaimResized(grows, asks(3)));
    let node = world.id(0);
    let reason = NotEnough::Counted { name: "pods".into(), wanted: 3, free: 2 };
    assert_eq!(refused, Err(EventError::NotEnough { node, reason }));
    assert_eq!(world.cluster.node(node).map(|node| node.counted_free("pods")), Some(0));
    // What the other claim leaves is not free before the claim is gone.
    world.apply(Event::ClaimSilent(other));
    let refused = world.cluster.apply(Event::ClaimResized(grows, asks(3)));
    assert_eq!(refused, Err(EventError::StillHeld { node }));
    world.apply(Event::ClaimGone(other));
    world.apply(Event::ClaimResized(grows, asks(3)));
    world.apply(Event::ClaimResized(grows, asks(0)));
    assert_eq!(world.cluster.node(node).map(|node| node.counted_free("pods")), Some(3));
}

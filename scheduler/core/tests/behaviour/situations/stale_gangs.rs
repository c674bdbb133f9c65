//! Gangs that have lost members.

use aliquot_scheduler_core::{Action, Claim, ClaimId, Event, PodGroup};

use crate::kit::{Kit, build, evicted, gang, train, whole};

/// A gang of four on two nodes, one of which fails; it may run on incomplete for a minute.
fn stale() -> (Kit, Vec<ClaimId>) {
    let mut kit = Kit::of_nodes(2, 2);
    let members = kit.gang(PodGroup { staleness_grace_ms: Some(60_000), ..gang("gang", "default", 4) }, 4, &whole(1));
    kit.converge();
    assert_eq!(kit.running(&members), 4);
    let node = kit.cluster.node_named("node-1").expect("it is there");
    kit.event(Event::NodeRemoved(node));
    (kit, members)
}

#[test]
fn what_is_left_of_a_gang_is_evicted_when_its_grace_is_over() {
    let (mut kit, members) = stale();
    kit.advance(60_000);
    assert!(kit.converge().is_empty());
    assert_eq!(kit.running(&members), 2);
    kit.advance(1);
    let steps = kit.converge();
    assert_eq!(evicted(&steps).len(), 2);
    assert!(steps.iter().all(|(action, _)| *action == Action::StaleGang));
    assert_eq!(kit.running(&members), 0);
}

#[test]
fn a_gang_that_is_completed_in_time_goes_on() {
    let (mut kit, members) = stale();
    kit.advance(30_000);
    kit.node(crate::kit::node("node-2", 2));
    kit.converge();
    assert_eq!(kit.running(&members), 4);
    kit.advance(100_000);
    assert!(kit.converge().is_empty());
}

#[test]
fn members_that_are_replaced_come_back_together() {
    let (mut kit, members) = stale();
    kit.node(crate::kit::node("node-2", 1));
    assert!(kit.converge().is_empty(), "one of the two that are missing would not help");
    assert_eq!(kit.running(&members), 2);
}

#[test]
fn a_gang_without_a_grace_runs_on_for_ever() {
    let mut kit = Kit::of_nodes(1, 3);
    let members = kit.gang(gang("gang", "default", 3), 3, &whole(1));
    kit.converge();
    kit.remove(members[0]);
    kit.advance(10_000_000);
    assert!(kit.converge().is_empty());
    assert_eq!(kit.running(&members[1..]), 2);
}

#[test]
fn a_member_beyond_the_minimum_may_be_lost() {
    let mut kit = Kit::of_nodes(1, 3);
    let grace = PodGroup { staleness_grace_ms: Some(0), ..gang("gang", "default", 2) };
    let members = kit.gang(grace, 3, &whole(1));
    kit.converge();
    kit.remove(members[0]);
    kit.advance(1);
    assert!(kit.converge().is_empty());
    assert_eq!(kit.running(&members[1..]), 2);
}

#[test]
fn what_a_stale_gang_leaves_is_there_for_others() {
    let (mut kit, _) = stale();
    let other = kit.claim(train("default", whole(2)));
    kit.converge();
    assert_eq!(kit.running(&[other]), 0);
    kit.advance(60_001);
    kit.converge();
    assert_eq!(kit.running(&[other]), 1);
}

#[test]
fn what_is_left_of_a_gang_is_not_started_elsewhere() {
    let mut kit = Kit::of_nodes(1, 2);
    let members = kit.gang(gang("gang", "default", 2), 2, &whole(1));
    kit.converge();
    kit.node(crate::kit::node("node-1", 1));
    kit.event(Event::ClaimFailed(members[0]));
    let high = kit.claim(Claim { priority: 100, ..train("default", whole(2)) });
    let steps = kit.converge();
    assert_eq!(evicted(&steps), [members[1]], "there is room for it elsewhere, but it would be alone there");
    assert_eq!((kit.running(&members), kit.running(&[high])), (0, 1));
    kit.advance(10_000);
    kit.node(crate::kit::node("node-2", 1));
    kit.converge();
    assert_eq!(kit.running(&members), 2);
}

#[test]
fn what_is_left_of_a_gang_is_not_moved() {
    let mut kit = Kit::of_nodes(3, 2);
    let members = kit.gang(gang("gang", "default", 2), 2, &whole(1));
    let others = kit.claims(4, &build("default", whole(1)));
    kit.converge();
    kit.remove(members[0]);
    let alone = kit.node_of(members[1]).map(str::to_owned);
    // One device is free on the node of the remaining claim, and one elsewhere.
    let elsewhere = others.iter().find(|other| kit.node_of(**other).map(str::to_owned) != alone).copied();
    kit.remove(elsewhere.expect("four do not fit on one node"));
    let large = kit.claim(train("default", whole(2)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&[members[1]]), kit.running(&[large])), (1, 0));
}

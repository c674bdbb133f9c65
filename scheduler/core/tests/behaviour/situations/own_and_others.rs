//! What a claim takes from its own queue and from other queues at once.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Action, Allowance, Claim, ClaimId, MilliCpu, Request, Resource, Step};

use crate::kit::{Kit, evicted, gang, node, quota, train, whole};

fn urgent(queue: &str, request: Request) -> Claim {
    Claim { priority: 75, ..train(queue, request) }
}

/// The claims that leave, each with the action that makes it leave.
fn leaving(steps: &[(Action, Step)]) -> Vec<(Action, ClaimId)> {
    let leaves = |step: &Step| matches!(step, Step::Evict { .. } | Step::Move { .. });
    steps.iter().filter(|(_, step)| leaves(step)).map(|(action, step)| (*action, step.claim())).collect()
}

#[test]
fn a_quota_is_kept_with_a_victim_of_each_queue() {
    let mut kit = Kit::of_nodes(1, 4);
    ["own", "other"].iter().for_each(|name| kit.queue(name, quota(2)));
    let low = kit.claim(train("own", whole(1)));
    let others = kit.claims(3, &train("other", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&[low]), kit.running(&others)), (1, 3));
    let high = kit.claim(urgent("own", whole(2)));
    let steps = kit.converge();
    assert_eq!(leaving(&steps), [(Action::Preempt, low), (Action::Reclaim, others[2])]);
    assert_eq!((kit.running(&[high]), kit.running(&others)), (1, 2));
    assert!(kit.cycle().steps.is_empty(), "and nothing is taken back again");
}

#[test]
fn a_claim_takes_no_more_than_its_quota_from_both() {
    let mut kit = Kit::of_nodes(1, 4);
    ["own", "other"].iter().for_each(|name| kit.queue(name, quota(2)));
    kit.claim(train("own", whole(1)));
    kit.claims(3, &train("other", whole(1)));
    kit.converge();
    let high = kit.claim(urgent("own", whole(3)));
    assert!(kit.converge().is_empty());
    assert_eq!(kit.running(&[high]), 0);
}

#[test]
fn own_claims_stay_if_what_others_borrow_is_enough() {
    // The three own claims would take the room back: their queue may hold five devices.
    let mut kit = Kit::of_nodes(1, 8);
    kit.queue("own", Allowance { weight: 100, ..quota(5) });
    kit.queue("other", quota(3));
    let low = kit.claims(3, &train("own", whole(1)));
    let borrowed = kit.claim(urgent("other", whole(4)));
    kit.converge();
    assert_eq!((kit.running(&low), kit.running(&[borrowed])), (3, 1));
    let high = kit.claim(urgent("own", whole(4)));
    assert_eq!(leaving(&kit.converge()), [(Action::Reclaim, borrowed)]);
    assert_eq!((kit.running(&low), kit.running(&[high])), (3, 1));
}

#[test]
fn of_own_claims_only_those_beyond_the_share_leave() {
    let mut kit = Kit::of_nodes(1, 9);
    [("own", 5), ("other", 4)].iter().for_each(|(name, devices)| kit.queue(name, quota(*devices)));
    let low = kit.claims(2, &train("own", whole(1)));
    let kept = kit.claims(2, &urgent("own", whole(1)));
    let others = kit.claims(5, &urgent("other", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&others), 5);
    let waits = kit.claim(urgent("own", whole(2)));
    assert_eq!(evicted(&kit.converge()), [low[1], others[4]]);
    assert_eq!((kit.running(&low), kit.running(&kept), kit.running(&[waits])), (1, 2, 1));
}

#[test]
fn an_own_claim_that_would_only_come_back_is_left_alone() {
    // Beside the urgent claim the queue deserves the room of the claim for three, which alone has room enough for it.
    // If that one were taken, it would then evict the other queue's claim for its own place, and lose its work.
    let mut kit = Kit::of_nodes(1, 10);
    ["own", "other"].iter().for_each(|name| kit.queue(name, quota(5)));
    let deserved = kit.claim(Claim { priority: 60, ..train("own", whole(3)) });
    let last = kit.claim(train("own", whole(1)));
    let borrowed = kit.claim(train("other", whole(6)));
    kit.converge();
    assert_eq!(kit.running(&[deserved, last, borrowed]), 3);
    let high = kit.claim(urgent("own", whole(2)));
    let out = evicted(&kit.converge());
    assert!(out.contains(&borrowed) && !out.contains(&deserved), "{out:?}");
    assert_eq!(kit.running(&[deserved, last, high]), 3);
}

#[test]
fn an_own_claim_within_its_minimum_runtime_stays() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue_of("own", BTreeMap::from([(Resource::DeviceCore, quota(2))]), |spec| {
        spec.preempt_min_runtime_ms = Some(60_000);
    });
    kit.queue("other", quota(2));
    let low = kit.claim(train("own", whole(1)));
    let others = kit.claims(3, &train("other", whole(1)));
    kit.converge();
    let high = kit.claim(urgent("own", whole(2)));
    assert!(kit.converge().is_empty());
    kit.advance(60_000);
    assert_eq!(evicted(&kit.converge()), [low, others[2]]);
    assert_eq!(kit.running(&[high]), 1);
}

#[test]
fn a_gang_of_the_own_queue_goes_as_a_whole() {
    let mut kit = Kit::of_nodes(1, 6);
    ["own", "other"].iter().for_each(|name| kit.queue(name, quota(3)));
    let low = kit.gang(gang("low", "own", 2), 2, &whole(1));
    let others = kit.claims(4, &train("other", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&low), 2);
    let high = kit.claim(urgent("own", whole(3)));
    assert_eq!(evicted(&kit.converge()), [low[0], low[1], others[3]]);
    assert_eq!(kit.running(&[high]), 1);
}

#[test]
fn own_claims_leave_for_the_share_of_each_resource() {
    let mut kit = Kit::of_nodes(1, 4);
    let cpu = Allowance { quota: Some(2000), ..quota(0) };
    kit.queue_of("own", BTreeMap::from([(Resource::DeviceCore, quota(2)), (Resource::Cpu, cpu)]), |_| {});
    kit.queue("other", quota(2));
    let of_cpu = kit.claim(train("own", Request { cpu: MilliCpu::new(2000), ..Request::default() }));
    let of_device = kit.claim(train("own", whole(1)));
    let others = kit.claims(3, &train("other", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&[of_cpu, of_device, others[2]]), 3);
    let high = kit.claim(urgent("own", Request { cpu: MilliCpu::new(2000), ..whole(2) }));
    let steps = kit.converge();
    assert_eq!(kit.running(&[high]), 1, "{steps:?}");
    assert!(evicted(&steps).contains(&of_device) && evicted(&steps).contains(&others[2]), "{steps:?}");
}

#[test]
fn a_large_own_claim_that_stays_does_not_count_as_disruption() {
    // The claim for four is the last of its queue. It must leave for the share alone, and its room is not needed.
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("own", quota(5));
    kit.queue("other", quota(0));
    kit.queue("third", quota(2));
    let last = kit.claim(train("own", whole(4)));
    kit.converge();
    kit.node(node("node-of-both", 2));
    let first = kit.claim(Claim { priority: 60, ..train("own", whole(1)) });
    let borrowed = kit.claim(train("other", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&[last, first, borrowed]), 3);
    let high = kit.claim(urgent("own", whole(2)));
    let steps = kit.converge();
    assert_eq!(kit.running(&[high]), 1, "{steps:?}");
}

#[test]
fn victims_of_both_queues_make_room_on_one_node() {
    let mut kit = Kit::of_nodes(1, 2);
    [("own", 3), ("other", 0), ("third", 2)].iter().for_each(|(name, devices)| kit.queue(name, quota(*devices)));
    let low = kit.claim(train("own", whole(1)));
    let borrowed = kit.claim(train("other", whole(1)));
    kit.converge();
    kit.node(node("node-of-third", 2));
    let third = kit.claim(urgent("third", whole(2)));
    kit.converge();
    kit.node(node("small", 1));
    let high = kit.claim(urgent("own", whole(2)));
    let steps = kit.converge();
    assert_eq!(evicted(&steps), [borrowed], "{steps:?}");
    assert_eq!(leaving(&steps).len(), 2, "{steps:?}");
    assert_eq!((kit.node_of(low), kit.running(&[low, high, third])), (Some("small"), 3));
}

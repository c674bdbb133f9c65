//! Evictions that a node refuses.

use aliquot_scheduler_core::{Claim, ClaimId, Event, Outcome, Step};

use crate::kit::{Kit, build, gang, part, quota, train, whole};

/// The claims that the next cycle evicts.
fn victims(kit: &mut Kit) -> Vec<ClaimId> {
    let steps = kit.cycle().steps;
    steps
        .iter()
        .filter(|planned| matches!(planned.step, Step::Evict { .. }))
        .map(|planned| planned.step.claim())
        .collect()
}

#[test]
fn another_victim_is_chosen_while_one_is_left_alone_and_then_it_is_its_turn_again() {
    let mut kit = Kit::of_nodes(1, 2);
    let old = kit.claim(Claim { name: "old".into(), ..train("default", whole(1)) });
    kit.converge();
    kit.advance(1000);
    let young = kit.claim(Claim { name: "young".into(), ..train("default", whole(1)) });
    kit.converge();
    let started_ms = kit.cluster.started_ms(young);
    kit.advance(1000);
    let important = kit.claim(build("default", whole(1)));
    assert_eq!(victims(&mut kit), [young]);
    let refused = kit.event(Event::EvictionRefused(young));
    assert_eq!(refused, Outcome::Claims { displaced: vec![important], ready: vec![] });
    assert_eq!(kit.cluster.started_ms(young), started_ms, "it has run all the time");
    let text = kit.scheduler.explain(&kit.cluster, young).map(|found| found.to_string());
    let expected = "\"young\" runs on node \"node-0\".\n  - it was to be evicted and its node refused, 1 time so far; \
                    it is left alone for 5 s.";
    assert_eq!(text.as_deref(), Ok(expected));
    assert_eq!(victims(&mut kit), [old], "others are chosen meanwhile");
    kit.event(Event::EvictionRefused(old));
    assert_eq!(victims(&mut kit), [], "both are left alone");
    kit.advance(5000);
    assert_eq!(victims(&mut kit), [young]);
    kit.let_go();
    assert_eq!((kit.running(&[old, important]), kit.cluster.last_eviction(young)), (2, None));
}

#[test]
fn a_claim_is_left_alone_ever_longer_up_to_a_bound() {
    let mut kit = Kit::of_nodes(1, 1);
    let victim = kit.claim(train("default", whole(1)));
    kit.converge();
    kit.claim(build("default", whole(1)));
    let mut waited = Vec::new();
    for _ in 0..9 {
        assert_eq!(victims(&mut kit), [victim]);
        kit.event(Event::EvictionRefused(victim));
        let until_ms = kit.cluster.last_eviction(victim).map_or(0, |last| last.left_alone_until_ms);
        waited.push((until_ms - kit.cluster.now_ms()) / 1000);
        kit.advance(until_ms - kit.cluster.now_ms() - 1);
        assert_eq!(victims(&mut kit), []);
        kit.advance(1);
    }
    assert_eq!(waited, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
}

#[test]
fn a_claim_whose_move_is_refused_gives_up_its_new_place() {
    let mut kit = Kit::of_nodes(2, 2);
    let claims = kit.claims(4, &train("default", whole(1)));
    kit.converge();
    // One device is free on each node.
    for node in ["node-0", "node-1"] {
        let there = claims.iter().find(|claim| kit.node_of(**claim) == Some(node));
        kit.remove(*there.expect("both nodes are full"));
    }
    let pair = kit.claim(train("default", whole(2)));
    let steps = kit.cycle().steps;
    let moved =
        steps.iter().find(|planned| matches!(planned.step, Step::Move { .. })).map(|planned| planned.step.claim());
    let moved = moved.expect("a claim is moved to make room in one place");
    let refused = kit.event(Event::EvictionRefused(moved));
    assert_eq!(refused, Outcome::Claims { displaced: vec![pair], ready: vec![] });
    let again = kit.cycle().steps;
    assert!(again.iter().all(|planned| planned.step.claim() != moved), "it is left alone: {again:?}");
}

#[test]
fn why_nothing_can_be_reclaimed_names_refused_evictions() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("left", quota(1));
    kit.queue("right", quota(1));
    let running = kit.claims(2, &train("left", whole(1)));
    kit.converge();
    let owner = kit.claim(train("right", whole(1)));
    assert_eq!(victims(&mut kit), [running[1]]);
    kit.event(Event::EvictionRefused(running[1]));
    assert_eq!(victims(&mut kit), [], "the other one is within its queue's share");
    let text = kit.scheduler.explain(&kit.cluster, owner).map(|found| found.to_string()).unwrap_or_default();
    assert!(text.contains("left alone for 5 s because their node refused to evict them"), "{text}");
}

#[test]
fn what_is_left_of_a_gang_is_left_alone_after_a_refusal() {
    let mut kit = Kit::of_nodes(1, 2);
    let group = aliquot_scheduler_core::PodGroup { staleness_grace_ms: Some(0), ..gang("gang", "default", 2) };
    let members = kit.gang(group, 2, &whole(1));
    kit.converge();
    kit.remove(members[0]);
    kit.advance(1);
    assert_eq!(victims(&mut kit), [members[1]]);
    kit.event(Event::EvictionRefused(members[1]));
    assert_eq!(victims(&mut kit), []);
    kit.advance(5000);
    assert_eq!(victims(&mut kit), [members[1]]);
}

#[test]
fn only_a_claim_that_is_leaving_can_be_refused_and_none_that_was_withdrawn() {
    let mut kit = Kit::of_nodes(1, 1);
    let claim = kit.claim(train("default", part(50)));
    kit.converge();
    assert!(kit.try_event(Event::EvictionRefused(claim)).is_err());
    kit.event(Event::ClaimWithdrawn(claim));
    assert!(kit.try_event(Event::EvictionRefused(claim)).is_err());
}

//! Room that queues take back from each other.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Action, Allowance, Claim, ClaimId, DisruptionBudget, Event, PodGroup, Resource};

use crate::kit::{Kit, build, cores, evicted, gang, part, quota, train, whole};

/// Queue "owner" has a quota of half of four devices; "borrower" runs these claims on all of them.
fn borrowed(claims: usize, claim: &Claim) -> (Kit, Vec<ClaimId>) {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("owner", quota(2));
    kit.queue("borrower", quota(2));
    let running = kit.claims(claims, claim);
    kit.converge();
    assert_eq!(kit.running(&running), claims);
    (kit, running)
}

#[test]
fn what_was_borrowed_is_given_back_and_no_more() {
    let (mut kit, running) = borrowed(4, &train("borrower", whole(1)));
    let back = kit.claims(3, &train("owner", whole(1)));
    let steps = kit.converge();
    assert_eq!((kit.running(&back), kit.running(&running)), (2, 2));
    assert_eq!(evicted(&steps).len(), 2);
    assert!(steps.iter().all(|(action, _)| matches!(action, Action::Reclaim)), "{steps:?}");
}

#[test]
fn between_equals_each_gets_its_half_of_what_nobody_deserves() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("first", quota(0));
    kit.queue("second", quota(0));
    let first = kit.claims(4, &train("first", whole(1)));
    kit.converge();
    let second = kit.claims(4, &train("second", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&first), kit.running(&second)), (2, 2));
    assert!(kit.cycle().steps.is_empty(), "and nothing is taken back again");
}

#[test]
fn nothing_is_taken_from_who_is_within_its_share() {
    let mut kit = Kit::of_nodes(1, 3);
    kit.queue("owner", quota(1));
    kit.queue("other", quota(2));
    let (own, theirs) = (kit.claims(1, &train("owner", whole(1))), kit.claims(2, &train("other", whole(1))));
    kit.converge();
    let more = kit.claim(Claim { priority: 125, ..train("owner", whole(1)) });
    assert_eq!(evicted(&kit.converge()), own, "only its own, which is of lower priority");
    assert_eq!((kit.running(&theirs), kit.running(&[more])), (2, 1));
}

#[test]
fn a_claim_that_would_bring_its_queue_above_its_share_takes_nothing() {
    let (mut kit, running) = borrowed(4, &train("borrower", whole(1)));
    let too_large = kit.claim(train("owner", whole(3)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&running), kit.running(&[too_large])), (4, 0));
}

#[test]
fn a_claim_that_stays_takes_back_within_its_quota_only() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("owner", quota(1));
    kit.queue("borrower", quota(1));
    let running = kit.claims(4, &train("borrower", whole(1)));
    kit.converge();
    let fixed = kit.claims(2, &build("owner", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&fixed), kit.running(&running)), (1, 3));
}

#[test]
fn who_may_not_be_evicted_is_not() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("owner", quota(2));
    kit.queue("guest", quota(2));
    let fixed = kit.claims(2, &build("guest", whole(1)));
    kit.converge();
    let back = kit.claims(2, &train("owner", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&fixed), kit.running(&back)), (2, 0));
}

#[test]
fn the_queue_that_is_furthest_above_its_share_gives_first() {
    let mut kit = Kit::of_nodes(1, 6);
    for (name, devices) in [("owner", 2), ("frugal", 2), ("greedy", 0)] {
        kit.queue(name, quota(devices));
    }
    let frugal = kit.claims(3, &train("frugal", whole(1)));
    let greedy = kit.claims(3, &train("greedy", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&frugal), kit.running(&greedy)), (3, 3));
    let back = kit.claim(train("owner", whole(1)));
    let steps = kit.converge();
    assert_eq!((evicted(&steps).len(), kit.running(&frugal), kit.running(&greedy)), (1, 3, 2));
    assert_eq!(kit.running(&[back]), 1);
}

#[test]
fn of_divisions_that_gives_first_which_is_furthest_above_its_share_whatever_their_teams_are() {
    let mut kit = Kit::of_nodes(1, 8);
    let deserves = |devices: u64| Allowance { weight: 0, ..quota(devices) };
    kit.queue("owner", deserves(2));
    kit.queue("far", deserves(2));
    kit.queue("far/far-team", deserves(2));
    kit.queue("near", deserves(4));
    kit.queue("near/near-team", deserves(1));
    kit.queue("near/idle-team", deserves(3));
    let far = kit.claims(3, &train("far-team", whole(1)));
    let near = kit.claims(5, &train("near-team", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&far), kit.running(&near)), (3, 5));
    kit.claim(train("owner", whole(1)));
    assert_eq!(evicted(&kit.converge()), far[2..]);
}

#[test]
fn of_a_queue_the_lowest_priority_goes_first_and_of_equals_the_youngest() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("owner", quota(2));
    kit.queue("borrower", quota(0));
    let low = kit.claim(Claim { priority: 10, ..train("borrower", whole(1)) });
    let equals = kit.claims(3, &train("borrower", whole(1)));
    kit.converge();
    kit.claim(train("owner", whole(1)));
    assert_eq!(evicted(&kit.converge()), [low]);
    kit.claim(train("owner", whole(1)));
    assert_eq!(evicted(&kit.converge()), [equals[2]]);
}

#[test]
fn divisions_take_back_from_each_other_what_their_teams_have_borrowed() {
    let mut kit = Kit::of_nodes(1, 4);
    for division in ["left", "right"] {
        kit.queue(division, quota(2));
        kit.queue(&format!("{division}/{division}-a"), quota(1));
        kit.queue(&format!("{division}/{division}-b"), quota(1));
    }
    let left_a = kit.claims(4, &train("left-a", whole(1)));
    kit.converge();
    let right_a = kit.claims(2, &train("right-a", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&left_a), kit.running(&right_a)), (2, 2));
    // The same within a division. The other division is within its share and keeps what it has.
    let left_b = kit.claims(2, &train("left-b", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&left_a), kit.running(&left_b), kit.running(&right_a)), (1, 1, 2));
}

#[test]
fn a_team_below_its_share_takes_nothing_from_others_when_its_division_is_at_its_share() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("left", quota(2));
    kit.queue("left/poor", quota(1));
    kit.queue("left/fixed", quota(2));
    kit.queue("right", quota(2));
    let fixed = kit.claims(2, &build("fixed", whole(1)));
    let right = kit.claims(2, &train("right", whole(1)));
    kit.converge();
    let poor = kit.claim(train("poor", whole(1)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&fixed), kit.running(&right), kit.running(&[poor])), (2, 2, 0));
}

#[test]
fn a_device_is_taken_back_from_the_parts_that_hold_least_of_it() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("owner", quota(1));
    kit.queue("borrower", quota(1));
    let halves = kit.claims(2, &train("borrower", part(50)));
    let one = kit.claim(train("borrower", whole(1)));
    kit.converge();
    let half = kit.claim(train("owner", part(50)));
    let steps = kit.converge();
    assert_eq!(evicted(&steps).len(), 1, "one of the halves or the whole device, not more: {steps:?}");
    assert_eq!(kit.running(&[half]), 1);
    assert!(kit.running(&halves) + kit.running(&[one]) >= 2);
}

#[test]
fn a_part_is_taken_back_exactly() {
    let mut kit = Kit::of_nodes(1, 1);
    kit.queue("owner", quota(0));
    kit.queue("borrower", quota(0));
    let quarters = kit.claims(4, &train("borrower", part(25)));
    kit.converge();
    let back = kit.claims(2, &train("owner", part(25)));
    kit.converge();
    assert_eq!((kit.running(&quarters), kit.running(&back)), (2, 2), "each has half a device");
}

#[test]
fn cpu_is_taken_back_like_devices() {
    let mut kit = Kit::of_nodes(1, 0);
    let cpu = |quota: u64| {
        BTreeMap::from([(Resource::Cpu, Allowance { quota: Some(quota * 1000), weight: 1, ..Allowance::default() })])
    };
    kit.queue_of("owner", cpu(128), |_| {});
    kit.queue_of("borrower", cpu(128), |_| {});
    let running = kit.claims(4, &train("borrower", cores(64)));
    kit.converge();
    let back = kit.claims(3, &train("owner", cores(64)));
    kit.converge();
    assert_eq!((kit.running(&running), kit.running(&back)), (2, 2));
}

#[test]
fn a_gang_is_taken_back_as_a_whole_and_its_extra_members_before_it() {
    let mut kit = Kit::of_nodes(1, 6);
    kit.queue("owner", quota(3));
    kit.queue("borrower", quota(0));
    let members = kit.gang(gang("gang", "borrower", 4), 6, &whole(1));
    kit.converge();
    assert_eq!(kit.running(&members), 6);
    let back = kit.claims(2, &train("owner", whole(1)));
    assert_eq!(evicted(&kit.converge()).len(), 2);
    assert_eq!((kit.running(&members), kit.running(&back)), (4, 2));
    let third = kit.claim(train("owner", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&members), kit.running(&[third])), (0, 1), "three of four would be no gang");
}

#[test]
fn a_gang_takes_back_all_it_needs_or_nothing() {
    let (mut kit, running) = borrowed(4, &train("borrower", whole(1)));
    let too_large = kit.gang(gang("large", "owner", 3), 3, &whole(1));
    assert!(kit.converge().is_empty());
    let fits = kit.gang(gang("fits", "owner", 2), 2, &whole(1));
    kit.converge();
    assert_eq!((kit.running(&running), kit.running(&fits), kit.running(&too_large)), (2, 2, 0));
}

#[test]
fn a_queue_may_say_how_long_its_claims_run_before_they_are_taken_back() {
    let mut kit = Kit::of_nodes(1, 1);
    kit.queue("owner", quota(1));
    let allowances = BTreeMap::from([(Resource::DeviceCore, quota(0))]);
    kit.queue_of("slow", allowances.clone(), |queue| queue.reclaim_min_runtime_ms = Some(60_000));
    kit.queue_of("slow/slow-team", allowances, |_| {});
    let running = kit.claim(train("slow-team", whole(1)));
    kit.converge();
    let back = kit.claim(train("owner", whole(1)));
    kit.advance(59_999);
    assert!(kit.converge().is_empty());
    kit.advance(1);
    assert_eq!(evicted(&kit.converge()), [running]);
    assert_eq!(kit.running(&[back]), 1);
}

#[test]
fn what_a_gang_needs_stays_as_long_as_a_member_beyond_it_that_would_go_with_it() {
    let mut kit = Kit::of_nodes(1, 3);
    kit.queue("owner", quota(2));
    let allowances = BTreeMap::from([(Resource::DeviceCore, quota(0))]);
    kit.queue_of("slow", allowances, |queue| queue.reclaim_min_runtime_ms = Some(60_000));
    let members = kit.gang(gang("gang", "slow", 2), 2, &whole(1));
    kit.converge();
    kit.advance(50_000);
    let late = kit.claim(Claim { request: whole(1), pod_group: Some("gang".into()), ..Claim::default() });
    kit.converge();
    let back = kit.claim(train("owner", whole(2)));
    kit.advance(59_999);
    assert!(kit.converge().is_empty());
    kit.advance(1);
    kit.converge();
    assert_eq!((kit.running(&members), kit.running(&[late, back])), (0, 1));
}

#[test]
fn a_group_may_wait_before_others_are_evicted_for_it() {
    let (mut kit, _) = borrowed(4, &train("borrower", whole(1)));
    let patient = PodGroup { preemption_delay_ms: 30_000, ..gang("patient", "owner", 1) };
    let members = kit.gang(patient, 1, &whole(1));
    kit.advance(29_999);
    assert!(kit.converge().is_empty());
    kit.advance(1);
    kit.converge();
    assert_eq!(kit.running(&members), 1);
}

#[test]
fn room_that_is_being_made_for_somebody_is_not_made_twice() {
    let (mut kit, running) = borrowed(4, &train("borrower", whole(1)));
    let back = kit.claim(train("owner", whole(1)));
    assert_eq!(kit.cycle().steps.len(), 2, "one is evicted, one is placed");
    let later = kit.claim(train("borrower", whole(1)));
    for _ in 0..3 {
        assert!(kit.cycle().steps.is_empty(), "while the evicted claim is still there nothing more happens");
    }
    assert_eq!((kit.running(&running), kit.running(&[back, later])), (3, 0));
    kit.let_go();
    assert_eq!(kit.running(&[back]), 1, "it starts when its place is free, and no other claim took it");
}

#[test]
fn a_disruption_budget_is_never_broken_for_a_share() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("owner", quota(4));
    kit.queue("borrower", quota(0));
    kit.event(Event::BudgetChanged(DisruptionBudget {
        name: "service".into(),
        min_available: 3,
        ..Default::default()
    }));
    let protected = Claim { disruption_budget: Some("service".into()), ..train("borrower", whole(1)) };
    let running = kit.claims(4, &protected);
    kit.converge();
    let back = kit.claims(4, &train("owner", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&running), kit.running(&back)), (3, 1));
}

//! A plan says one thing of each claim, whatever was tried on the way.

use aliquot_scheduler_core::{Claim, ClaimId, Event, Plan, Step};

use crate::kit::{Kit, part, quota, train, whole};

fn steps_of(plan: &Plan, claim: ClaimId) -> Vec<&Step> {
    plan.steps.iter().map(|planned| &planned.step).filter(|step| step.claim() == claim).collect()
}

#[test]
fn who_is_given_free_room_and_makes_way_again_is_not_started() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("red", quota(2));
    kit.queue("blue", quota(0));
    let first = kit.claim(train("blue", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&[first]), 1);
    let entitled = kit.claim(train("red", whole(2)));
    let second = kit.claim(train("blue", whole(1)));
    let plan = kit.cycle();
    assert!(steps_of(&plan, second).is_empty(), "placed and evicted: the plan need not say so");
    assert!(matches!(steps_of(&plan, entitled)[..], [Step::Place { starts_after, .. }] if *starts_after == [first]));
    let waits = |claim| plan.pending.iter().any(|pending| Some(pending.group) == kit.cluster.group_of(claim));
    assert!(waits(first) && waits(second));
    assert_eq!(kit.cluster.displaced(second), None, "it never had a place");
    assert!(kit.cluster.displaced(first).is_some());
}

#[test]
fn who_finds_free_room_starts_at_once_even_if_others_leave_the_same_device_later_in_the_plan() {
    let mut kit = Kit::of_nodes(1, 1);
    let low = kit.claim(train("default", part(60)));
    kit.converge();
    let fits = kit.claim(train("default", part(40)));
    let high = kit.claim(Claim { priority: 100, ..train("default", part(60)) });
    // It goes first, but finds no room in the present state.
    let plan = kit.cycle();
    assert!(matches!(steps_of(&plan, fits)[..], [Step::Place { starts_after, .. }] if starts_after.is_empty()));
    assert!(matches!(steps_of(&plan, high)[..], [Step::Place { starts_after, .. }] if *starts_after == [low]));
    assert_eq!(kit.running(&[fits]), 1);
}

#[test]
fn who_was_to_start_and_makes_way_first_is_evicted_without_having_run() {
    let mut kit = Kit::of_nodes(1, 1);
    let low = kit.claim(train("default", whole(1)));
    kit.converge();
    let middle = kit.claim(Claim { priority: 75, ..train("default", whole(1)) });
    kit.cycle();
    let high = kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    let plan = kit.cycle();
    assert!(matches!(steps_of(&plan, middle)[..], [Step::Evict { .. }]));
    assert_eq!(kit.cluster.leaving(middle), None);
    assert!(matches!(steps_of(&plan, high)[..], [Step::Place { starts_after, .. }] if *starts_after == [low]));
    kit.event(Event::ClaimGone(low));
    assert_eq!(kit.running(&[high]), 1);
}

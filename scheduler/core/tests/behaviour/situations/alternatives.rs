//! Claims that accept one of several choices of devices.

use aliquot_scheduler_core::{Claim, Event, Request};
use aliquot_scheduler_kit::first_of;

use crate::kit::{Kit, build, evicted, limited, part, quota, train, whole};

/// The choice that a claim has.
fn choice_of(kit: &Kit, claim: aliquot_scheduler_core::ClaimId) -> Option<u16> {
    kit.cluster.allocation(claim).map(|at| at.alternative)
}

#[test]
fn a_choice_that_its_queue_may_not_have_is_passed_over() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("narrow", limited(0, 1));
    let wanted = first_of(&[whole(3), whole(2), part(60)]);
    let claims = kit.claims(2, &train("narrow", wanted));
    kit.converge();
    assert_eq!((choice_of(&kit, claims[0]), choice_of(&kit, claims[1])), (Some(2), None), "the limit is one device");
    kit.remove(claims[0]);
    kit.converge();
    assert_eq!(choice_of(&kit, claims[1]), Some(2));
}

#[test]
fn a_member_of_a_gang_passes_over_what_its_queue_may_not_have() {
    let mut kit = Kit::of_nodes(2, 4);
    kit.queue("narrow", limited(0, 2));
    let wanted = first_of(&[whole(3), whole(1)]);
    let members = kit.gang(crate::kit::gang("gang", "narrow", 2), 2, &wanted);
    kit.converge();
    assert_eq!(members.iter().map(|member| choice_of(&kit, *member)).collect::<Vec<_>>(), [Some(1), Some(1)]);
}

/// The choice that each member of a gang has in a cluster of one node.
fn choices_of_gang(devices: usize, members: u32, wanted: &Request) -> Vec<Option<u16>> {
    let mut kit = Kit::of_nodes(1, devices);
    let members = kit.gang(crate::kit::gang("gang", "default", members), members as usize, wanted);
    kit.converge();
    members.iter().map(|member| choice_of(&kit, *member)).collect()
}

#[test]
fn members_of_a_gang_leave_room_for_each_other() {
    assert_eq!(choices_of_gang(2, 2, &first_of(&[whole(2), whole(1)])), [Some(1), Some(1)]);
    assert_eq!(choices_of_gang(3, 2, &first_of(&[whole(2), whole(1)])), [Some(0), Some(1)]);
    let three = first_of(&[whole(4), whole(2), part(50)]);
    assert_eq!(choices_of_gang(4, 2, &three), [Some(1), Some(1)]);
    assert_eq!(choices_of_gang(4, 8, &three), [Some(2); 8]);
    assert_eq!(choices_of_gang(1, 3, &three), [None; 3], "there is no room for all");
}

#[test]
fn a_large_gang_with_choices_finds_room() {
    let wanted = first_of(&[whole(8), whole(1)]);
    let mut kit = Kit::of_nodes(20, 8);
    let members = kit.gang(crate::kit::gang("gang", "default", 100), 100, &wanted);
    kit.converge();
    assert_eq!(kit.running(&members), 100);
}

#[test]
fn nobody_is_evicted_for_a_first_choice_where_another_is_free() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("team", quota(2));
    let running = kit.claims(1, &train("team", whole(1)));
    kit.converge();
    let important = kit.claim(build("team", first_of(&[whole(2), part(50)])));
    let steps = kit.converge();
    assert_eq!(evicted(&steps), []);
    assert_eq!((kit.running(&running), choice_of(&kit, important)), (1, Some(1)));
}

#[test]
fn room_is_made_for_the_choice_that_takes_fewest_from_others() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("team", quota(2));
    let running = kit.claims(2, &train("team", whole(1)));
    kit.converge();
    let important = kit.claim(build("team", first_of(&[whole(2), whole(1)])));
    let steps = kit.converge();
    assert_eq!(evicted(&steps), [running[1]]);
    assert_eq!((kit.running(&running), choice_of(&kit, important)), (1, Some(1)));
}

#[test]
fn what_a_later_choice_has_borrowed_is_reclaimed_as_it_is_held() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("a", quota(2));
    kit.queue("b", quota(2));
    let borrowed = kit.claims(4, &train("a", first_of(&[whole(8), whole(1)])));
    kit.converge();
    assert_eq!(kit.running(&borrowed), 4);
    let owner = kit.claims(2, &train("b", whole(1)));
    let steps = kit.converge();
    assert_eq!(evicted(&steps).len(), 2, "as many devices as are owed");
    assert_eq!((kit.running(&borrowed), kit.running(&owner)), (2, 2));
}

#[test]
fn a_later_choice_is_kept_when_the_first_gets_free() {
    let mut kit = Kit::of_nodes(1, 1);
    let other = kit.claim(train("default", part(50)));
    kit.converge();
    let modest = kit.claim(train("default", first_of(&[whole(1), part(30)])));
    kit.converge();
    kit.remove(other);
    assert!(kit.converge().is_empty());
    assert_eq!(choice_of(&kit, modest), Some(1));
}

#[test]
fn a_claim_that_is_resized_keeps_its_choice() {
    let mut kit = Kit::of_nodes(1, 2);
    let claim = kit.claim(Claim { request: first_of(&[whole(3), part(50)]), ..train("default", whole(1)) });
    kit.converge();
    assert_eq!(choice_of(&kit, claim), Some(1));
    kit.event(Event::ClaimResized(claim, first_of(&[whole(3), part(70)])));
    let at = kit.cluster.allocation(claim).expect("it runs");
    assert_eq!((at.alternative, at.devices[0].core.get()), (1, 700));
    let refused = kit.try_event(Event::ClaimResized(claim, part(70))).expect_err("it has no such choice any more");
    assert!(refused.to_string().contains("choice 1"), "{refused}");
}

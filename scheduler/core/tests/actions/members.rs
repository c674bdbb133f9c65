//! Members of a group that are placed and moved one by one.

use aliquot_scheduler_core::{Allowance, Claim, Event, GroupPlacement, PlacementStrategy, PodGroup};
use proptest::prelude::*;

use crate::setting::{INFERENCE, TRAIN, World, build, evicted, group, moved, wants};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn members_beyond_a_core_are_placed_in_the_order_in_which_they_were_added_whoever_fits(
        devices in 1..12_usize,
        members in prop::collection::vec((1..5_u16, prop::bool::weighted(0.1)), 1..20),
        has_rules in any::<bool>(),
    ) {
        let mut world = World::new(&[devices]);
        world.queue("q", 12);
        let strategy = if has_rules { PlacementStrategy::SingleNode } else { PlacementStrategy::BestFit };
        let spread = GroupPlacement { strategy, ..GroupPlacement::default() };
        world.apply(Event::PodGroupAdded(PodGroup { spread, ..group("g", "q", TRAIN, 0) }));
        let (mut claims, mut expected, mut left) = (Vec::new(), Vec::new(), devices);
        for (wanted, has_failed) in members {
            let claim = world.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, wanted) });
            if has_failed && usize::from(wanted) <= devices {
                // The claim failed to start, and is tried again later.
                world.run_on(claim, 0, 0);
                world.apply(Event::ClaimFailed(claim));
            } else if let Some(rest) = left.checked_sub(usize::from(wanted)) {
                left = rest;
                expected.push(claim);
            }
            claims.push(claim);
        }
        world.cycle();
        claims.retain(|claim| world.runs(*claim));
        prop_assert_eq!(claims, expected);
    }
}

/// Two nodes of two devices: a member runs on the first, and a claim that may not be disturbed on the second.
fn with_a_member(spread: GroupPlacement) -> World {
    let mut world = World::new(&[2, 2]);
    world.queue("q", 12);
    world.apply(Event::PodGroupAdded(PodGroup { spread, ..group("g", "q", TRAIN, 0) }));
    let member = world.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, 1) });
    world.run_on(member, 0, 0);
    let stays = world.claim(build("q", 1));
    world.run_on(stays, 1, 0);
    world
}

#[test]
fn a_member_of_a_group_that_says_how_its_members_stand_to_each_other_is_not_moved() {
    for (strategy, moves) in [(PlacementStrategy::BestFit, 1), (PlacementStrategy::SingleNode, 0)] {
        let mut world = with_a_member(GroupPlacement { strategy, ..GroupPlacement::default() });
        world.add("q", TRAIN, 2);
        assert_eq!(moved(&world.cycle()).len(), moves, "{strategy:?}");
    }
}

#[test]
fn a_group_does_not_disturb_one_of_its_members_for_another() {
    let mut world = with_a_member(GroupPlacement::default());
    world.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, 2) });
    assert_eq!(moved(&world.cycle()), []);
}

#[test]
fn what_is_left_of_a_gang_counts_when_the_rest_of_it_asks_for_what_others_are_entitled_to() {
    let mut world = World::new(&[2]);
    world.queue_with("q", None, Allowance { quota: Some(1000), weight: 0, ..Allowance::default() });
    let gang = world.gang(group("g", "q", INFERENCE, 2), 2, 1);
    world.run_on(gang[0], 0, 0);
    let entitled = world.add("q", TRAIN, 1);
    world.run_on(entitled, 0, 1);
    assert_eq!(evicted(&world.cycle()), [], "with both of its members it would be above the queue's share");
}

//! Claims that are moved so that there is room in one place.

use aliquot_scheduler_core::explain::Reason;
use aliquot_scheduler_core::placement::{BestFit, Spread};
use aliquot_scheduler_core::{Action, Claim, ClaimId, Event, Settings, Step};

use crate::kit::{Kit, build, evicted, gang, node, part, train, whole};

/// Nodes with two devices, on each of which one claim runs on one device.
fn scattered(mut kit: Kit, nodes: usize, claim: &Claim) -> (Kit, Vec<ClaimId>) {
    (0..nodes).for_each(|number| _ = kit.node(node(&format!("node-{number}"), 2)));
    let claims = kit.claims(2 * nodes, claim);
    kit.converge();
    let mut left = Vec::new();
    for number in 0..nodes {
        let name = format!("node-{number}");
        let here: Vec<ClaimId> =
            claims.iter().copied().filter(|claim| kit.node_of(*claim) == Some(name.as_str())).collect();
        kit.remove(here[0]);
        left.push(here[1]);
    }
    (kit, left)
}

#[test]
fn claims_are_moved_together_for_one_that_needs_room_in_one_place() {
    let (mut kit, running) = scattered(Kit::new(), 2, &train("default", whole(1)));
    let large = kit.claim(train("default", whole(2)));
    let steps = kit.converge();
    assert!(steps.iter().all(|(action, _)| *action == Action::Consolidate), "{steps:?}");
    assert!(evicted(&steps).is_empty());
    assert_eq!((kit.running(&running), kit.running(&[large])), (2, 1));
}

#[test]
fn one_move_is_enough_where_one_is() {
    let (mut kit, _) = scattered(Kit::new(), 4, &train("default", whole(1)));
    kit.claim(train("default", whole(2)));
    let moves = kit.converge().iter().filter(|(_, step)| matches!(step, Step::Move { .. })).count();
    assert_eq!(moves, 1);
}

#[test]
fn a_moved_claim_starts_when_its_old_container_is_gone_and_not_before() {
    let (mut kit, running) = scattered(Kit::new(), 2, &train("default", whole(1)));
    let large = kit.claim(train("default", whole(2)));
    kit.cycle();
    let moved: Vec<ClaimId> = kit.machines.stopping().collect();
    assert_eq!((moved.len(), kit.running(&running), kit.running(&[large])), (1, 1, 0));
    assert_eq!(kit.cluster.starts_after(moved[0]), moved, "it waits for itself");
    kit.event(Event::ClaimGone(moved[0]));
    assert_eq!((kit.running(&running), kit.running(&[large])), (2, 1));
}

#[test]
fn who_may_not_be_evicted_is_not_moved() {
    let (mut kit, running) = scattered(Kit::new(), 2, &build("default", whole(1)));
    let large = kit.claim(train("default", whole(2)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&running), kit.running(&[large])), (2, 0));
    let explained = kit.scheduler.explain(&kit.cluster, large).expect("a claim");
    let is_made = |reason: &Reason| matches!(reason, Reason::RoomIsMade { .. });
    assert!(!explained.reasons.iter().any(is_made), "{explained}");
    assert!(explained.reasons[0].calls_for_nodes(), "{explained}");
}

#[test]
fn who_would_not_be_started_anew_is_evicted_and_not_moved() {
    let stays = Claim { immovable: true, ..train("default", whole(1)) };
    let (mut kit, running) = scattered(Kit::new(), 2, &stays);
    let large = kit.claim(train("default", whole(2)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&running), kit.running(&[large])), (2, 0));
    let urgent = kit.claim(Claim { priority: 90, ..train("default", whole(2)) });
    kit.converge();
    assert_eq!(kit.running(&[urgent]), 1);
}

#[test]
fn parts_are_moved_onto_one_device_for_a_whole_one() {
    let mut kit = Kit::of_nodes(1, 2);
    let parts = kit.claims(4, &train("default", part(50)));
    kit.converge();
    let on = |kit: &Kit, device: u16| {
        let devices = |claim: &ClaimId| kit.cluster.allocation(*claim).map(|at| at.devices[0].device);
        parts.iter().copied().find(|claim| devices(claim) == Some(device))
    };
    for device in [0, 1] {
        let gone = on(&kit, device).expect("both devices are shared");
        kit.remove(gone);
    }
    let large = kit.claim(train("default", whole(1)));
    let steps = kit.converge();
    assert!(evicted(&steps).is_empty());
    assert_eq!(kit.running(&[large]), 1);
}

#[test]
fn nothing_is_moved_when_moving_would_not_be_enough() {
    let (mut kit, running) = scattered(Kit::new(), 3, &train("default", whole(1)));
    let too_large = kit.gang(gang("gang", "default", 2), 2, &whole(2));
    assert!(kit.converge().is_empty(), "three devices are free, four are wanted");
    assert_eq!((kit.running(&running), kit.running(&too_large)), (3, 0));
}

#[test]
fn a_gang_finds_room_in_several_places_by_moves() {
    let (mut kit, running) = scattered(Kit::new(), 4, &train("default", whole(1)));
    let members = kit.gang(gang("gang", "default", 2), 2, &whole(2));
    let steps = kit.converge();
    assert!(evicted(&steps).is_empty());
    assert_eq!((kit.running(&running), kit.running(&members)), (4, 2));
}

#[test]
fn no_more_is_moved_in_a_cycle_than_the_settings_say() {
    let settings = Settings { moves_per_cycle: 1, ..Settings::default() };
    let (mut kit, running) = scattered(Kit::with(Box::new(BestFit), settings), 4, &train("default", whole(1)));
    let members = kit.gang(gang("gang", "default", 2), 2, &whole(2));
    assert!(kit.converge().is_empty(), "two moves at once are needed");
    assert_eq!((kit.running(&running), kit.running(&members)), (4, 0));
}

#[test]
fn what_is_spread_on_purpose_is_not_moved_together() {
    let kit = Kit::with(Box::new(Spread), Settings::default());
    let (mut kit, running) = scattered(kit, 2, &train("default", whole(1)));
    let large = kit.claim(train("default", whole(2)));
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&running), kit.running(&[large])), (2, 0));
}

#[test]
fn members_of_a_gang_are_moved_for_one_that_needs_room_in_one_place() {
    let mut kit = Kit::of_nodes(2, 3);
    let filler = kit.claim(train("default", whole(1)));
    kit.converge();
    let members = kit.gang(gang("gang", "default", 3), 3, &whole(1));
    kit.converge();
    kit.remove(filler);
    let alone = members.iter().filter(|member| kit.node_of(**member) == Some("node-1")).count();
    assert_eq!((kit.running(&members), alone), (3, 1));
    let large = kit.claim(train("default", whole(3)));
    let steps = kit.converge();
    assert_eq!((kit.running(&members), kit.running(&[large])), (3, 1));
    assert!(evicted(&steps).is_empty());
    assert_eq!(steps.iter().filter(|(_, step)| matches!(step, Step::Move { .. })).count(), 1, "{steps:?}");
}

#[test]
fn a_single_claim_is_moved_rather_than_a_member_of_a_gang_that_would_stop_with_it() {
    let mut kit = Kit::of_nodes(3, 2);
    let [single, other] = [(); 2].map(|()| kit.claim(train("default", whole(1))));
    kit.converge();
    let members = kit.gang(gang("gang", "default", 3), 3, &whole(1));
    kit.converge();
    kit.remove(other);
    kit.advance(1000);
    let large = kit.claim(train("default", whole(2)));
    let moved: Vec<ClaimId> = kit
        .converge()
        .into_iter()
        .filter(|(_, step)| matches!(step, Step::Move { .. }))
        .map(|(_, step)| step.claim())
        .collect();
    assert_eq!(moved, [single]);
    assert_eq!((kit.running(&members), kit.running(&[large])), (3, 1));
}

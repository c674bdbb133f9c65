//! Claims that fail to start: what makes way for them, and for the rest of their group.

use aliquot_scheduler_core::explain::Reason;
use aliquot_scheduler_core::{Claim, ClaimId, Event, PodGroup};

use crate::setting::{INFERENCE, TRAIN, World, evicted, group, wants};

impl World {
    /// Lets a claim fail to start on the first node, as often as others make way for it without a wait.
    fn fail(&mut self, claim: ClaimId) {
        for _ in 0..3 {
            self.run_on(claim, 0, 0);
            self.apply(Event::ClaimFailed(claim));
        }
    }
}

/// A world with queue "owner", which deserves both devices of the only node. A claim of it has failed to start three
/// times; then another queue has borrowed both.
fn barred() -> (World, ClaimId) {
    let mut world = World::new(&[2]);
    world.queue("owner", 2);
    world.queue("borrower", 0);
    let claim = world.add("owner", TRAIN, 2);
    world.fail(claim);
    for device in [0, 1] {
        let borrowed = world.add("borrower", TRAIN, 1);
        world.run_on(borrowed, 0, device);
    }
    (world, claim)
}

#[test]
fn a_claim_that_failed_to_start_reclaims_again_after_a_while() {
    let (mut world, claim) = barred();
    world.wait(200_000);
    assert_eq!(evicted(&world.cycle()), [], "whatever kept it from starting may last");
    world.wait(200_000);
    assert_eq!(evicted(&world.cycle()).len(), 2);
    assert!(world.runs(claim));
}

#[test]
fn while_nobody_makes_way_for_who_failed_to_start_it_is_told() {
    let (mut world, claim) = barred();
    let explained = world.scheduler.explain(&world.cluster, claim).expect("a claim");
    assert!(
        matches!(explained.reasons[..], [_, Reason::RetriedLater { failures: 3, left_ms: 4000 }, _]),
        "{explained}"
    );
    world.wait(4000);
    let plan = world.cycle();
    let explained = world.scheduler.explain(&world.cluster, claim).expect("a claim");
    let reason = Reason::OftenFailedToStart { failures: 3, left_ms: 300_000 };
    assert_eq!(explained.reasons[0], reason, "{explained}");
    assert_eq!(plan.pending[0].reason(&world.cluster), reason);
    assert!(reason.calls_for_nodes(), "free room would do");
    let said = reason.to_string();
    let expected = "could not be started 3 times where it was placed, so for 5 min nobody is moved or evicted for it";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_member_that_fails_to_start_does_not_keep_its_gang_back() {
    let mut world = World::new(&[2]);
    world.queue("q", 2);
    let members = world.gang(group("g", "q", TRAIN, 2), 3, 1);
    for _ in 0..10 {
        world.cycle();
        if world.runs(members[0]) {
            world.apply(Event::ClaimFailed(members[0]));
        }
        world.wait(10_000);
    }
    assert_eq!(world.running(&members[1..]), 2, "the others are enough");
}

#[test]
fn room_is_made_for_the_members_of_a_gang_that_start() {
    let mut world = World::new(&[2]);
    world.queue("q", 2);
    let low = world.add("q", TRAIN, 2);
    let members = world.gang(group("g", "q", INFERENCE, 2), 3, 1);
    world.fail(members[0]);
    world.run_on(low, 0, 0);
    world.wait(10_000);
    assert_eq!(evicted(&world.cycle()), [low]);
    assert_eq!(world.running(&members[1..]), 2);
}

#[test]
fn room_is_made_for_the_sound_members_beyond_a_core() {
    let mut world = World::new(&[3]);
    world.queue("q", 3);
    let low = world.add("q", TRAIN, 3);
    world.apply(Event::PodGroupAdded(PodGroup { min_members: 0, ..group("g", "q", INFERENCE, 0) }));
    let member = || Claim { pod_group: Some("g".into()), ..wants("", 0, 1) };
    let members: Vec<ClaimId> = (0..3).map(|_| world.claim(member())).collect();
    world.fail(members[0]);
    world.run_on(low, 0, 0);
    world.cycle();
    assert_eq!(world.running(&members), 2, "all but the one that fails");
    assert!(!world.runs(members[0]));
}

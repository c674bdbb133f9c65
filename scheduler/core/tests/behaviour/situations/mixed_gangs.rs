//! Gangs with members that ask for different amounts, and that others join when they run.

use aliquot_scheduler_core::{Claim, ClaimId, GroupPlacement, PlacementStrategy, PodGroup, Request};

use crate::kit::{Kit, cores, gang, part, quota, train, whole};

/// More devices than any node has.
const TOO_MANY: u16 = 64;

fn joins(kit: &mut Kit, group: &str, request: Request) -> ClaimId {
    kit.claim(Claim { request, pod_group: Some(group.into()), ..Claim::default() })
}

#[test]
fn a_member_that_joins_is_placed_behind_one_that_fits_nowhere() {
    let mut kit = Kit::of_nodes(1, 4);
    let members = kit.gang(gang("gang", "default", 2), 2, &whole(1));
    kit.converge();
    let large = joins(&mut kit, "gang", whole(TOO_MANY));
    let small = joins(&mut kit, "gang", part(50));
    let tiny = joins(&mut kit, "gang", cores(1));
    kit.converge();
    assert_eq!(kit.running(&[members, vec![large, small, tiny]].concat()), 4);
}

#[test]
fn a_member_that_joins_a_gang_with_rules_is_placed_behind_one_that_fits_nowhere() {
    let mut kit = Kit::of_nodes(2, 2);
    let spread = GroupPlacement { strategy: PlacementStrategy::SpreadEvenly, ..GroupPlacement::default() };
    let members = kit.gang(PodGroup { spread, ..gang("gang", "default", 2) }, 2, &whole(1));
    kit.converge();
    let large = joins(&mut kit, "gang", whole(TOO_MANY));
    let small = joins(&mut kit, "gang", part(50));
    kit.converge();
    assert_eq!(kit.running(&[members, vec![large, small]].concat()), 3);
}

#[test]
fn others_make_way_for_a_member_that_joins_behind_one_that_fits_nowhere() {
    let mut kit = Kit::of_nodes(1, 3);
    kit.queue("red", quota(3));
    kit.queue("blue", quota(0));
    let members = kit.gang(gang("gang", "red", 2), 2, &whole(1));
    let borrowed = kit.claim(train("blue", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&[members.clone(), vec![borrowed]].concat()), 3);
    let large = joins(&mut kit, "gang", whole(TOO_MANY));
    let small = joins(&mut kit, "gang", whole(1));
    kit.converge();
    assert_eq!(kit.running(&[members, vec![large, small]].concat()), 3);
    assert_eq!(kit.running(&[borrowed]), 0);
}

#[test]
fn a_member_that_joins_makes_way_alone_and_the_first_ones_stay() {
    let mut kit = Kit::of_nodes(1, 4);
    let members = kit.gang(gang("gang", "default", 2), 2, &whole(1));
    kit.converge();
    let late = joins(&mut kit, "gang", whole(2));
    kit.converge();
    let high = kit.claim(Claim { priority: 100, ..train("default", whole(1)) });
    kit.converge();
    assert_eq!((kit.running(&members), kit.running(&[late, high])), (2, 1), "half of it would do, but it is one claim");
    assert_eq!(kit.running(&[high]), 1);
}

#[test]
fn a_member_that_has_joined_does_for_one_that_is_lost() {
    let mut kit = Kit::of_nodes(2, 3);
    let members = kit.gang(gang("gang", "default", 2), 2, &whole(1));
    kit.converge();
    let late = joins(&mut kit, "gang", whole(2));
    kit.converge();
    kit.remove(members[0]);
    kit.converge();
    assert_eq!(kit.running(&[members[1], late]), 2);
    let group = kit.cluster.group_of(late).and_then(|group| kit.cluster.group(group)).expect("it is there");
    assert_eq!(group.stale_since_ms(), None, "two of different size are two");
}

/// A gang that needs two members: one that fits nowhere, and then two small ones.
fn with_a_member_that_fits_nowhere(kit: &mut Kit, queue: &str) -> Vec<ClaimId> {
    kit.group(gang("gang", queue, 2));
    [whole(TOO_MANY), whole(1), whole(1)].map(|request| joins(kit, "gang", request)).to_vec()
}

#[test]
fn a_gang_runs_with_later_members_where_its_first_one_fits_nowhere() {
    let mut kit = Kit::of_nodes(1, 2);
    let members = with_a_member_that_fits_nowhere(&mut kit, "default");
    kit.converge();
    assert_eq!((kit.running(&members[..1]), kit.running(&members[1..])), (0, 2));
}

#[test]
fn others_make_way_for_the_members_with_which_a_gang_can_run() {
    let mut kit = Kit::of_nodes(1, 2);
    kit.queue("red", quota(2));
    kit.queue("blue", quota(0));
    let borrowed = kit.claims(2, &train("blue", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&borrowed), 2);
    let members = with_a_member_that_fits_nowhere(&mut kit, "red");
    kit.converge();
    assert_eq!((kit.running(&borrowed), kit.running(&members)), (0, 2));
}

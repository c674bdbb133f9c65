//! Shares that are not a whole number of claims: no claim waits for ever because of the rest of a share.

use aliquot_scheduler_core::{Allowance, Claim, ClaimId};

use crate::kit::{Kit, evicted, gang, part, quota, train, whole};

fn weighted(devices: u64, weight: u64) -> Allowance {
    Allowance { weight, ..quota(devices) }
}

/// One queue holds a whole cluster, and nine others with the same weight want one claim each. Returns what then runs.
fn nine_wait_for_one_that_holds_all(nodes: usize, devices: usize, request: u16) -> Vec<usize> {
    let mut kit = Kit::of_nodes(nodes, devices);
    let names: Vec<String> = (0..10).map(|number| format!("queue-{number}")).collect();
    names.iter().for_each(|name| kit.queue(name, quota(0)));
    let claim = |name: &String| train(name, whole(request));
    let mut running: Vec<Vec<ClaimId>> = vec![kit.claims(9, &claim(&names[0]))];
    kit.converge();
    assert_eq!(kit.running(&running[0]), 9);
    running.extend(names[1..].iter().map(|name| kit.claims(1, &claim(name))));
    kit.converge();
    running.iter().map(|claims| kit.running(claims)).collect()
}

#[test]
fn of_ten_equal_queues_for_nine_devices_none_holds_two_while_another_has_none() {
    assert_eq!(nine_wait_for_one_that_holds_all(1, 9, 1), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn the_same_holds_of_nine_nodes_and_claims_for_whole_nodes() {
    assert_eq!(nine_wait_for_one_that_holds_all(9, 8, 8), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn the_same_holds_of_gangs() {
    let mut kit = Kit::of_nodes(3, 2);
    ["first", "second", "third", "fourth"].iter().for_each(|name| kit.queue(name, quota(0)));
    let gangs = |kit: &mut Kit, queue: &str, count: usize| -> Vec<Vec<ClaimId>> {
        (0..count).map(|number| kit.gang(gang(&format!("{queue}-{number}"), queue, 2), 2, &whole(1))).collect()
    };
    let first = gangs(&mut kit, "first", 3);
    kit.converge();
    let others = ["second", "third"].map(|queue| gangs(&mut kit, queue, 1));
    kit.converge();
    assert_eq!(first.iter().filter(|gang| kit.running(gang) == 2).count(), 1);
    assert!(others.iter().all(|gangs| kit.running(&gangs[0]) == 2));
}

#[test]
fn what_two_shares_leave_over_makes_a_claim_of_three_fit() {
    // Shares of 5.33 and 2.67: no claim of the first fits into its 0.33, which the second lacks.
    let mut kit = Kit::of_nodes(1, 8);
    kit.queue("holder", weighted(4, 4));
    kit.queue("idle", weighted(2, 2));
    let large = kit.claim(train("holder", whole(5)));
    let small = kit.claims(2, &train("holder", whole(1)));
    kit.converge();
    let waits = kit.claim(train("idle", whole(3)));
    assert_eq!(evicted(&kit.converge()).len(), 2);
    assert_eq!((kit.running(&[large, waits]), kit.running(&small)), (2, 0));
    assert!(kit.cycle().steps.is_empty(), "and nothing is taken back again");
}

#[test]
fn a_share_is_not_rounded_up_where_the_others_can_use_theirs() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("holder", weighted(2, 2));
    kit.queue("other", weighted(1, 1));
    let running = kit.claim(train("holder", whole(3)));
    kit.converge();
    let waits = kit.claim(train("other", whole(2)));
    assert!(kit.converge().is_empty());
    assert_eq!(kit.running(&[running, waits]), 1);
}

#[test]
fn the_claim_that_is_least_beyond_its_share_goes_first() {
    // Shares of 4.67 and 2.33: with 5 the first is 0.33 beyond its share, and with 3 the second 0.67.
    let mut kit = Kit::of_nodes(1, 7);
    kit.queue("first", weighted(2, 2));
    kit.queue("second", weighted(1, 1));
    let four = kit.claim(train("first", whole(4)));
    let three = kit.claim(train("second", whole(3)));
    kit.converge();
    assert_eq!(kit.running(&[four, three]), 2);
    let one = kit.claim(train("first", whole(1)));
    assert_eq!(evicted(&kit.converge()), [three]);
    assert_eq!(kit.running(&[four, one]), 2);
}

/// Two queues with this quota, the one that waits first. The other one holds a claim for `held` devices, then the first
/// asks for a claim for `wanted`. Returns what is evicted.
fn evicted_by_an_equal_queue(devices: usize, quota_devices: u64, held: u16, wanted: u16) -> usize {
    let mut kit = Kit::of_nodes(1, devices);
    ["older", "younger"].iter().for_each(|name| kit.queue(name, quota(quota_devices)));
    kit.claim(train("younger", whole(held)));
    kit.converge();
    kit.claim(train("older", whole(wanted)));
    evicted(&kit.converge()).len()
}

#[test]
fn of_equal_queues_the_older_one_evicts_for_no_mirrored_state() {
    assert_eq!(evicted_by_an_equal_queue(2, 0, 2, 2), 0);
    assert_eq!(evicted_by_an_equal_queue(2, 1, 2, 2), 0);
    assert_eq!(evicted_by_an_equal_queue(4, 2, 3, 3), 0);
}

#[test]
fn an_equal_queue_does_not_evict_a_large_claim_that_came_first() {
    let mut kit = Kit::of_nodes(1, 9);
    ["first", "second", "idle"].iter().for_each(|name| kit.queue(name, quota(3)));
    let two = kit.claim(train("first", whole(2)));
    let seven = kit.claim(train("second", whole(7)));
    kit.converge();
    kit.claim(train("first", whole(5)));
    assert!(kit.converge().is_empty());
    assert_eq!(kit.running(&[two, seven]), 2);
}

#[test]
fn a_late_member_does_not_evict_by_the_age_of_its_gang() {
    let mut kit = Kit::of_nodes(1, 3);
    ["first", "second"].iter().for_each(|name| kit.queue(name, quota(0)));
    kit.group(gang("elastic", "first", 1));
    let member = |kit: &mut Kit| kit.claim(Claim { pod_group: Some("elastic".into()), ..train("first", whole(1)) });
    let core = member(&mut kit);
    let others = kit.claims(2, &train("second", whole(1)));
    kit.converge();
    let late = member(&mut kit);
    assert!(kit.converge().is_empty());
    assert_eq!((kit.running(&[core]), kit.running(&others), kit.running(&[late])), (1, 2, 0));
}

#[test]
fn a_gang_that_came_first_stays_whatever_else_it_could_use() {
    let mut kit = Kit::of_nodes(1, 3);
    ["first", "second"].iter().for_each(|queue| kit.queue(queue, quota(2)));
    let members = kit.gang(gang("gang", "first", 2), 3, &whole(1));
    kit.converge();
    assert_eq!(kit.running(&members), 3);
    let waits = kit.claim(train("second", whole(2)));
    kit.converge();
    assert!(kit.running(&members) >= 2, "a member beyond the two that it needs is no part of a share without them");
    assert_eq!(kit.running(&[waits]), 0);
}

#[test]
fn an_urgent_claim_makes_no_room_for_the_claims_behind_it() {
    let mut kit = Kit::of_nodes(1, 3);
    ["first", "second"].iter().for_each(|name| kit.queue(name, quota(0)));
    let own = kit.claim(train("first", whole(1)));
    let others = kit.claims(2, &train("second", whole(1)));
    kit.converge();
    let urgent = kit.claim(Claim { priority: 75, ..train("first", whole(1)) });
    assert_eq!(evicted(&kit.converge()), [own]);
    assert_eq!((kit.running(&[urgent]), kit.running(&others)), (1, 2));
}

#[test]
fn of_equal_queues_the_claim_that_came_first_is_placed_first() {
    let mut kit = Kit::of_nodes(1, 1);
    ["older", "younger"].iter().for_each(|name| kit.queue(name, quota(0)));
    let first = kit.claim(train("younger", whole(1)));
    let second = kit.claim(train("older", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&[first]), kit.running(&[second])), (1, 0));
}

#[test]
fn halves_of_devices_are_rounded_as_halves() {
    let mut kit = Kit::of_nodes(1, 4);
    // Shares of 1.8 and 2.2.
    kit.queue("below", weighted(1, 4));
    kit.queue("above", weighted(2, 1));
    let below = [kit.claim(train("below", whole(1))), kit.claim(train("below", part(50)))];
    let above = [kit.claim(train("above", whole(2))), kit.claim(train("above", part(50)))];
    kit.converge();
    assert_eq!((kit.running(&below), kit.running(&above)), (2, 2));
    let waits = kit.claim(train("below", part(50)));
    assert_eq!(evicted(&kit.converge()), [above[1]]);
    assert_eq!(kit.running(&[waits]), 1);
}

#[test]
fn below_a_division_claims_are_rounded_within_what_the_division_has() {
    // Divisions of 4.5 each. Each team of the waiting division has 1.5, and no claim for two fits into that.
    let mut kit = Kit::of_nodes(1, 9);
    kit.queue("holding", quota(0));
    kit.queue("holding/holder", quota(0));
    kit.queue("waiting", quota(0));
    let teams = ["waiting/one", "waiting/two", "waiting/three"];
    teams.iter().for_each(|path| kit.queue(path, quota(0)));
    let running = kit.claims(9, &train("holder", whole(1)));
    kit.converge();
    let waiting: Vec<ClaimId> = ["one", "two", "three"].map(|team| kit.claim(train(team, whole(2)))).to_vec();
    kit.converge();
    assert_eq!((kit.running(&running), kit.running(&waiting)), (5, 2));
}

//! Gangs that grow and shrink, and gangs of several sorts of members.

use aliquot_scheduler_core::{Claim, ClaimId, GroupPlacement, PodGroup, SubGroup};

use crate::kit::{Kit, gang, part, quota, train, whole};

fn sub_group(name: &str, min_members: u32) -> SubGroup {
    SubGroup { name: name.into(), min_members, ..SubGroup::default() }
}

fn member(group: &str, sub_group: &str, devices: u16) -> Claim {
    Claim {
        request: whole(devices),
        pod_group: Some(group.into()),
        sub_group: Some(sub_group.into()),
        ..Claim::default()
    }
}

#[test]
fn a_gang_starts_with_its_minimum_and_grows_into_what_is_free() {
    let mut kit = Kit::of_nodes(1, 5);
    let other = kit.claim(Claim { priority: 100, ..train("default", whole(2)) });
    let members = kit.gang(gang("gang", "default", 2), 6, &whole(1));
    kit.converge();
    assert_eq!(kit.running(&members), 3);
    kit.remove(other);
    kit.converge();
    assert_eq!(kit.running(&members), 5);
}

#[test]
fn minimums_of_all_gangs_come_before_extra_members_of_any() {
    let mut kit = Kit::of_nodes(1, 6);
    let first = kit.gang(gang("first", "default", 2), 6, &whole(1));
    let second = kit.gang(gang("second", "default", 3), 6, &whole(1));
    kit.cycle();
    assert_eq!((kit.running(&first), kit.running(&second)), (3, 3));
}

#[test]
fn a_group_without_a_minimum_takes_what_it_gets() {
    let mut kit = Kit::of_nodes(1, 2);
    let members = kit.gang(gang("gang", "default", 0), 4, &whole(1));
    kit.converge();
    assert_eq!(kit.running(&members), 2);
}

#[test]
fn a_gang_waits_for_members_that_are_yet_to_come() {
    let mut kit = Kit::of_nodes(1, 4);
    let mut members = kit.gang(gang("gang", "default", 3), 2, &whole(1));
    assert!(kit.converge().is_empty());
    members.push(kit.claim(Claim { request: whole(1), pod_group: Some("gang".into()), ..Claim::default() }));
    kit.converge();
    assert_eq!(kit.running(&members), 3);
}

#[test]
fn a_gang_of_small_parts_shares_devices() {
    let mut kit = Kit::of_nodes(1, 1);
    let members = kit.gang(gang("gang", "default", 4), 4, &part(25));
    kit.converge();
    assert_eq!(kit.running(&members), 4);
}

#[test]
fn every_sort_of_member_reaches_its_own_minimum_or_none_is_placed() {
    let mut kit = Kit::of_nodes(2, 4);
    let sub_groups = vec![sub_group("head", 1), sub_group("worker", 2)];
    kit.group(PodGroup { sub_groups, ..gang("ray", "default", 3) });
    let workers = kit.claims(4, &member("ray", "worker", 2));
    assert!(kit.converge().is_empty(), "four workers are more than three members, but there is no head");
    let head = kit.claim(member("ray", "head", 1));
    kit.converge();
    assert_eq!((kit.running(&[head]), kit.running(&workers)), (1, 3), "the head, two workers, and one more that fits");
}

#[test]
fn a_sort_that_does_not_fit_keeps_the_others_back() {
    let mut kit = Kit::of_nodes(1, 4);
    let sub_groups = vec![sub_group("head", 1), sub_group("worker", 1)];
    kit.group(PodGroup { sub_groups, ..gang("ray", "default", 2) });
    let members = [kit.claim(member("ray", "head", 1)), kit.claim(member("ray", "worker", 4))];
    kit.converge();
    assert_eq!(kit.running(&members), 0);
}

#[test]
fn when_a_gang_shrinks_the_sorts_that_it_needs_stay() {
    let mut kit = Kit::of_nodes(1, 4);
    kit.queue("owner", quota(2));
    kit.queue("borrower", quota(0));
    let sub_groups = vec![sub_group("head", 1), sub_group("worker", 1)];
    kit.group(PodGroup { sub_groups, ..gang("ray", "borrower", 2) });
    let workers = kit.claims(3, &member("ray", "worker", 1));
    let head = kit.claim(member("ray", "head", 1));
    kit.converge();
    kit.claims(2, &train("owner", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&[head]), kit.running(&workers)), (1, 1));
}

#[test]
fn members_that_must_be_in_one_rack_are() {
    let mut kit = Kit::new();
    kit.event(aliquot_scheduler_core::Event::TopologyChanged(vec!["rack".into()]));
    for (name, rack) in [("a", "1"), ("b", "2"), ("c", "2")] {
        let labels = [("rack".to_owned(), rack.to_owned())].into();
        kit.node(aliquot_scheduler_core::NodeSpec { labels, ..crate::kit::node(name, 2) });
    }
    let spread = GroupPlacement { required_level: Some("rack".into()), ..GroupPlacement::default() };
    let members = kit.gang(PodGroup { spread, ..gang("gang", "default", 4) }, 4, &whole(1));
    kit.converge();
    let nodes: Vec<Option<&str>> = members.iter().map(|claim: &ClaimId| kit.node_of(*claim)).collect();
    assert!(nodes.iter().all(|node| matches!(node, Some("b" | "c"))), "{nodes:?}");
}

#[test]
fn what_is_left_of_a_gang_without_its_head_goes_as_a_whole() {
    let mut kit = Kit::of_nodes(1, 4);
    let sub_groups = vec![sub_group("head", 1)];
    kit.group(PodGroup { sub_groups, ..gang("ray", "default", 0) });
    let head = kit.claim(member("ray", "head", 1));
    let workers = kit.claims(3, &Claim { request: whole(1), pod_group: Some("ray".into()), ..Claim::default() });
    kit.converge();
    kit.remove(head);
    kit.claims(2, &Claim { priority: 100, ..train("default", whole(1)) });
    kit.converge();
    assert_eq!(kit.running(&workers), 0);
}

//! Members of a group that must be in one domain of the topology.

use aliquot_scheduler_core::explain::Reason;
use aliquot_scheduler_core::{Claim, ClaimId, Event, GroupPlacement, MilliCpu, NodeSpec, PodGroup, SubGroup};
use proptest::prelude::*;

use crate::setting::{TRAIN, World, group, wants};

/// Nodes with these numbers of devices, zones and racks.
fn world(nodes: &[(usize, &str, &str)]) -> World {
    let devices: Vec<usize> = nodes.iter().map(|(devices, ..)| *devices).collect();
    let mut world = World::new(&devices);
    for (node, (_, zone, rack)) in nodes.iter().enumerate() {
        let labels = [("zone", *zone), ("rack", *rack)].map(|(key, value)| (key.into(), value.into()));
        let spec = NodeSpec { labels: labels.into(), ..NodeSpec::default() };
        let event = Event::NodeRelabelled(world.id(node), spec);
        world.apply(event);
    }
    world.apply(Event::TopologyChanged(vec!["zone".into(), "rack".into()]));
    world.queue("q", 1000);
    world
}

/// Stands before a level in one domain of which a sub-group should be.
const PREFERS: &str = "prefers ";

/// A gang of sub-groups. Each sub-group must be in one domain of its level, or should be, and all of them must be in one
/// domain of `level`.
fn gang(world: &mut World, level: Option<&str>, sub_groups: &[(&str, Vec<Claim>)]) -> Vec<ClaimId> {
    let sub_group = |(number, (level, members)): (usize, &(&str, Vec<Claim>))| SubGroup {
        name: format!("s{number}"),
        min_members: u32::try_from(members.len()).unwrap(),
        required_level: Some((*level).into()).filter(|level: &String| !level.is_empty() && !level.starts_with(PREFERS)),
        preferred_level: level.strip_prefix(PREFERS).map(Into::into),
    };
    let spread = GroupPlacement { required_level: level.map(Into::into), ..GroupPlacement::default() };
    let sub_groups_of = sub_groups.iter().enumerate().map(sub_group).collect();
    world.apply(Event::PodGroupAdded(PodGroup { sub_groups: sub_groups_of, spread, ..group("g", "q", TRAIN, 0) }));
    let mut claims = Vec::new();
    for (number, (_, members)) in sub_groups.iter().enumerate() {
        for member in members {
            let (pod_group, sub_group) = (Some("g".into()), Some(format!("s{number}")));
            claims.push(world.claim(Claim { pod_group, sub_group, ..member.clone() }));
        }
    }
    claims
}

/// A member that wants this many devices.
fn member(devices: u16) -> Claim {
    wants("", 0, devices)
}

#[test]
fn sub_groups_of_one_zone_may_each_be_in_a_rack_of_their_own() {
    let mut world = world(&[(1, "z", "r0"), (1, "z", "r1")]);
    let claims = gang(&mut world, Some("zone"), &[("rack", vec![member(1)]), ("rack", vec![member(1)])]);
    world.cycle();
    assert_eq!(world.running(&claims), 2);
}

/// Racks of one node each, with these numbers of devices, and a gang of sub-groups, each of which must be in one rack.
/// The numbers of `sub_groups` are the devices that each member wants.
fn racks(devices: &[usize], sub_groups: &[Vec<u16>]) -> (World, Vec<ClaimId>) {
    let names: Vec<String> = (0..devices.len()).map(|rack| format!("r{rack}")).collect();
    let nodes: Vec<(usize, &str, &str)> =
        devices.iter().zip(&names).map(|(devices, rack)| (*devices, "z", rack.as_str())).collect();
    let mut world = world(&nodes);
    let members = |members: &Vec<u16>| ("rack", members.iter().map(|devices| member(*devices)).collect());
    let claims = gang(&mut world, None, &sub_groups.iter().map(members).collect::<Vec<_>>());
    (world, claims)
}

/// Whether there is a way to put all loads into racks.
fn fit(racks: &mut [usize], loads: &[usize]) -> bool {
    let Some((first, rest)) = loads.split_first() else { return true };
    (0..racks.len()).any(|rack| {
        let Some(left) = racks[rack].checked_sub(*first) else { return false };
        let before = std::mem::replace(&mut racks[rack], left);
        let fits = fit(racks, rest);
        racks[rack] = before;
        fits
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn sub_groups_are_placed_whenever_there_is_a_way_to_place_them(
        devices in prop::collection::vec(1..7_usize, 1..4),
        sub_groups in prop::collection::vec(prop::collection::vec(1..4_u16, 1..3), 2..5),
    ) {
        let (mut world, claims) = racks(&devices, &sub_groups);
        world.cycle();
        let load = |members: &Vec<u16>| members.iter().map(|wanted| usize::from(*wanted)).sum();
        let loads: Vec<usize> = sub_groups.iter().map(load).collect();
        let expected = if fit(&mut devices.clone(), &loads) { claims.len() } else { 0 };
        prop_assert_eq!(world.running(&claims), expected);
    }
}

#[test]
fn sub_groups_that_can_be_placed_in_more_ways_than_are_tried_are_not_told_that_there_is_no_room() {
    // No two of these fit into one rack together, and no two are alike.
    let sub_groups: Vec<Vec<u16>> = (6..13).map(|devices| vec![devices]).collect();
    let (mut world, claims) = racks(&[12; 6], &sub_groups);
    let plan = world.cycle();
    assert_eq!(plan.pending[0].reason(&world.cluster), Reason::TooManyWays);
    let (mut world, claims_of_seven) = racks(&[12; 7], &sub_groups);
    world.cycle();
    assert_eq!((world.running(&claims_of_seven), claims.len()), (7, 7));
}

#[test]
fn that_too_many_ways_were_to_be_tried_in_one_zone_is_told_although_there_is_none_in_another() {
    let sub_groups: Vec<_> = (6..13).map(|devices| ("rack", vec![member(devices)])).collect();
    let racks = ["r0", "r1", "r2", "r3", "r4", "r5"].map(|rack| (12, "z0", rack));
    let nodes: Vec<_> = racks.into_iter().chain([(12, "z1", "r6"); 6]).collect();
    let mut world = world(&nodes);
    gang(&mut world, Some("zone"), &sub_groups);
    let plan = world.cycle();
    assert_eq!(plan.pending[0].reason(&world.cluster), Reason::TooManyWays);
}

#[test]
fn sub_groups_that_are_all_alike_are_told_that_there_is_no_room_and_not_that_there_are_too_many_ways() {
    let (mut world, claims) = racks(&[4; 11], &vec![vec![4]; 12]);
    let plan = world.cycle();
    assert_ne!(plan.pending[0].reason(&world.cluster), Reason::TooManyWays);
    assert_eq!(world.running(&claims), 0);
}

#[test]
fn a_sub_group_with_one_domain_to_choose_from_goes_before_those_with_many() {
    let names: Vec<String> = (1..8).map(|rack| format!("r{rack}")).collect();
    let mut nodes = vec![(1, "only", "r0")];
    nodes.extend(names.iter().map(|rack| (4, "z", rack.as_str())));
    let mut world = world(&nodes);
    let mut last = member(1);
    last.request.constraints.labels.insert("zone".into(), "only".into());
    // For each of the other sub-groups, that rack is as good as another, or better, as the sub-group fills it. No two
    // of them are alike.
    let mut other = |cpu: u64| {
        let mut other = member(1);
        other.request.cpu = MilliCpu::new(cpu);
        ("rack", vec![other])
    };
    let mut sub_groups: Vec<_> = (1..7).map(&mut other).collect();
    sub_groups.push(("rack", vec![last]));
    let claims = gang(&mut world, None, &sub_groups);
    world.cycle();
    assert_eq!(world.running(&claims), 7);
}

#[test]
fn sub_groups_that_want_the_same_in_domains_of_different_levels_make_way_for_each_other() {
    // Members of the zone's sub-group go to the first nodes of the zone, which are in three racks.
    let racks = ["a", "b", "c"].map(|rack| (3, "z0", rack)).repeat(3);
    let names: Vec<String> = (0..10).map(|rack| format!("r{rack}")).collect();
    let nodes: Vec<_> = racks.into_iter().chain(names.iter().map(|rack| (3, "z1", rack.as_str()))).collect();
    let mut world = world(&nodes);
    let three = || vec![member(3), member(3), member(3)];
    let claims = gang(&mut world, None, &[("zone", three()), ("rack", three())]);
    world.cycle();
    assert_eq!(world.running(&claims), 6);
}

#[test]
fn a_gang_goes_on_to_a_zone_that_has_room_for_all_where_another_has_room_for_each() {
    let mut world = world(&[(4, "z0", "r0"), (4, "z1", "r1"), (4, "z1", "r2")]);
    let claims = gang(&mut world, Some("zone"), &[("", vec![member(3)]), ("", vec![member(2)])]);
    world.cycle();
    assert_eq!(world.running(&claims), 2);
}

/// The racks of claims.
fn racks_of(world: &World, claims: &[ClaimId]) -> Vec<String> {
    let rack = |claim: &ClaimId| {
        let node = world.cluster.allocation(*claim).and_then(|allocation| world.cluster.node(allocation.node));
        node.and_then(|node| node.spec().labels.get("rack").map(str::to_owned)).unwrap_or_default()
    };
    claims.iter().map(rack).collect()
}

#[test]
fn a_sub_group_is_in_one_domain_it_prefers_or_near_it() {
    // Best fit alone would give the pair both racks with two devices, one in each zone.
    let mut world = world(&[(2, "a", "a0"), (3, "a", "a1"), (2, "b", "b0"), (3, "b", "b1")]);
    let pair = ("prefers rack", vec![member(2), member(2)]);
    let trio = ("prefers rack", vec![member(1), member(1), member(1)]);
    let claims = gang(&mut world, None, &[pair, trio]);
    world.cycle();
    let (pair, trio) = claims.split_at(2);
    assert_eq!(racks_of(&world, pair), ["a0", "a1"], "no rack can take it, and it stays in one zone");
    assert_eq!(racks_of(&world, trio), ["b1"; 3]);
}

#[test]
fn a_sub_group_prefers_a_rack_of_the_zone_of_all() {
    let mut world = world(&[(2, "a", "a0"), (2, "a", "a1"), (1, "a", "a2"), (3, "b", "b0")]);
    let pair = || ("prefers rack", vec![member(1), member(1)]);
    let claims = gang(&mut world, Some("zone"), &[pair(), pair(), ("", vec![member(1)])]);
    world.cycle();
    let mut racks = racks_of(&world, &claims);
    assert!(racks[0] == racks[1] && racks[2] == racks[3] && racks[4] == "a2", "{racks:?}");
    racks.sort_unstable();
    assert_eq!(racks, ["a0", "a0", "a1", "a1", "a2"]);
}

#[test]
fn later_members_of_a_sub_group_go_where_the_first_are() {
    let mut world = world(&[(3, "z", "r0"), (2, "z", "r1")]);
    let claims = gang(&mut world, None, &[("prefers rack", vec![member(1), member(1)])]);
    world.cycle();
    assert_eq!(racks_of(&world, &claims), ["r1", "r1"]);
    let next = || Claim { pod_group: Some("g".into()), sub_group: Some("s0".into()), ..member(1) };
    let beyond = [world.claim(next()), world.claim(next())];
    world.cycle();
    assert_eq!(racks_of(&world, &beyond), ["r0", "r0"], "the rack is full, and they start all the same");
    world.apply(Event::ClaimRemoved(claims[0]));
    let last = world.claim(next());
    world.cycle();
    assert_eq!(racks_of(&world, &[last]), ["r1"]);
}

#[test]
fn what_sub_groups_prefer_keeps_no_gang_from_starting() {
    // One claim needs all of the smaller rack, which the sub-groups fill first. They could be elsewhere in more ways
    // than are tried.
    let mut world = world(&[(12, "z", "r0"), (13, "z", "r1")]);
    let part = |cpu: u64| {
        let mut part = member(1);
        part.request.cpu = MilliCpu::new(cpu);
        ("prefers rack", vec![part])
    };
    let mut whole = member(12);
    whole.request.constraints.labels.insert("rack".into(), "r0".into());
    let sub_groups: Vec<_> = (1..8).map(part).chain([("", vec![whole])]).collect();
    let claims = gang(&mut world, None, &sub_groups);
    world.cycle();
    assert_eq!(world.running(&claims), 8);
}

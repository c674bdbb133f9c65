//! Members of a group that must be in one domain of the topology.

use aliquot_scheduler_core::explain::Reason;
use aliquot_scheduler_core::{Claim, ClaimId, Event, GroupPlacement, NodeSpec, PodGroup, SubGroup};
use proptest::prelude::*;

use crate::setting::{TRAIN, World, group, wants};

fn labelled(world: &World, node: usize, labels: &[(&str, &str)]) -> Event {
    let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Event::NodeRelabelled(world.id(node), NodeSpec { labels, ..NodeSpec::default() })
}

#[test]
fn sub_groups_of_one_zone_may_each_be_in_a_rack_of_their_own() {
    let mut world = World::new(&[1, 1]);
    for node in [0, 1] {
        let event = labelled(&world, node, &[("zone", "z"), ("rack", ["r0", "r1"][node])]);
        world.apply(event);
    }
    world.apply(Event::TopologyChanged(vec!["zone".into(), "rack".into()]));
    world.queue("q", 2);
    let sub = |name: &str| SubGroup { name: name.into(), min_members: 1, required_level: Some("rack".into()) };
    let spread = GroupPlacement { required_level: Some("zone".into()), ..GroupPlacement::default() };
    let spec = PodGroup { sub_groups: vec![sub("a"), sub("b")], spread, ..group("g", "q", TRAIN, 2) };
    world.apply(Event::PodGroupAdded(spec));
    let member = |name: &str| Claim { pod_group: Some("g".into()), sub_group: Some(name.into()), ..wants("", 0, 1) };
    let claims = [world.claim(member("a")), world.claim(member("b"))];
    world.cycle();
    assert_eq!(world.running(&claims), 2);
}

/// Racks of one node with so many devices each, and a gang of sub-groups, each of which is to be in one rack: of each member
/// how many devices it wants.
fn racks(devices: &[usize], sub_groups: &[Vec<u16>]) -> (World, Vec<ClaimId>) {
    let mut world = World::new(devices);
    for node in 0..devices.len() {
        let event = labelled(&world, node, &[("rack", &format!("r{node}"))]);
        world.apply(event);
    }
    world.apply(Event::TopologyChanged(vec!["rack".into()]));
    world.queue("q", 1000);
    let name = |number: usize| format!("s{number}");
    let sub_group = |(number, members): (usize, &Vec<u16>)| SubGroup {
        name: name(number),
        min_members: u32::try_from(members.len()).unwrap(),
        required_level: Some("rack".into()),
    };
    let members = u32::try_from(sub_groups.iter().map(Vec::len).sum::<usize>()).unwrap();
    let sub_groups_of = sub_groups.iter().enumerate().map(sub_group).collect();
    world.apply(Event::PodGroupAdded(PodGroup { sub_groups: sub_groups_of, ..group("g", "q", TRAIN, members) }));
    let mut claims = Vec::new();
    for (number, members) in sub_groups.iter().enumerate() {
        for devices in members {
            let (pod_group, sub_group) = (Some("g".into()), Some(name(number)));
            claims.push(world.claim(Claim { pod_group, sub_group, ..wants("", 0, *devices) }));
        }
    }
    (world, claims)
}

/// Whether there is a way to put loads into racks.
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
        let loads: Vec<usize> = sub_groups.iter().map(|members| members.iter().map(|wanted| usize::from(*wanted)).sum()).collect();
        let expected = if fit(&mut devices.clone(), &loads) { claims.len() } else { 0 };
        prop_assert_eq!(world.running(&claims), expected);
    }
}

#[test]
fn sub_groups_that_can_be_placed_in_more_ways_than_are_tried_are_not_told_that_there_is_no_room() {
    // Of these no two are in one rack, and no two are alike.
    let sub_groups: Vec<Vec<u16>> = (6..13).map(|devices| vec![devices]).collect();
    let (mut world, claims) = racks(&[12; 6], &sub_groups);
    let plan = world.cycle();
    assert_eq!(plan.pending[0].reason(&world.cluster), Reason::TooManyWays);
    let (mut world, claims_of_seven) = racks(&[12; 7], &sub_groups);
    world.cycle();
    assert_eq!((world.running(&claims_of_seven), claims.len()), (7, 7));
}

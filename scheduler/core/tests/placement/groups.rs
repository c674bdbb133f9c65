//! Places of a pod group's members, relative to each other.

use aliquot_scheduler_core::placement::{Binpack, Engine, GroupScope, MemberNodes};
use aliquot_scheduler_core::{Claim, Cluster, Event, GroupPlacement, NodeId, PlacementStrategy, PodGroup, Request};
use aliquot_scheduler_kit::Build;

use crate::cases::{add, node, request};

/// Places as many members with this request as the rules allow, up to `wanted`. Returns their nodes.
fn place_members(cluster: &mut Cluster, placement: &GroupPlacement, request: &Request, wanted: usize) -> Vec<NodeId> {
    let mut engine = Engine::new(Binpack);
    let mut members = MemberNodes::default();
    let mut nodes = Vec::new();
    while nodes.len() < wanted {
        let claim = add(cluster, request);
        let class = cluster.class_of(claim).expect("the claim was added");
        let scope = GroupScope { placement, members: &members, within: None };
        let Some(allocation) = engine.place_member(cluster, class, &scope) else { break };
        members.add(&allocation);
        nodes.push(allocation.node);
        cluster.apply(Event::ClaimPlaced(claim, allocation)).expect("the engine places only what fits");
    }
    nodes
}

/// Nodes with 2, 4 and 8 devices.
fn cluster() -> (Cluster, [NodeId; 3]) {
    let mut cluster = Cluster::new();
    let nodes = [("two", 2), ("four", 4), ("eight", 8)];
    let nodes = nodes.map(|(name, devices)| cluster.add_node(node(name, 96, devices, "A")));
    (cluster, nodes)
}

fn rules(strategy: PlacementStrategy, max_devices_per_node: Option<u16>) -> GroupPlacement {
    GroupPlacement { strategy, max_devices_per_node, ..GroupPlacement::default() }
}

#[test]
fn best_fit_fills_one_node_after_another() {
    let (mut cluster, [two, four, _]) = cluster();
    let one = request(1, 1, 1000, 0, &[]);
    let placed = place_members(&mut cluster, &rules(PlacementStrategy::BestFit, None), &one, 4);
    assert_eq!(placed, [two, two, four, four]);
}

#[test]
fn spreading_evenly_gives_each_node_one_before_another_gets_two() {
    let (mut cluster, [two, four, eight]) = cluster();
    let one = request(1, 1, 1000, 0, &[]);
    let placed = place_members(&mut cluster, &rules(PlacementStrategy::SpreadEvenly, None), &one, 9);
    // When a node is full, the rest is spread over the others.
    assert_eq!(placed, [two, four, eight, two, four, eight, four, eight, four]);
}

#[test]
fn no_node_has_more_of_a_groups_devices_than_its_rules_allow() {
    let (mut cluster, [two, four, eight]) = cluster();
    let one = request(1, 1, 1000, 0, &[]);
    let placed = place_members(&mut cluster, &rules(PlacementStrategy::BestFit, Some(3)), &one, 20);
    assert_eq!(placed, [two, two, four, four, four, eight, eight, eight]);
    let pair = request(1, 2, 100, 0, &[]);
    let placed = place_members(&mut cluster, &rules(PlacementStrategy::SpreadEvenly, Some(3)), &pair, 20);
    assert_eq!(placed, [eight], "a second pair would make four, and elsewhere less than two devices are left");
    let four_devices = request(1, 4, 100, 0, &[]);
    assert_eq!(place_members(&mut cluster, &rules(PlacementStrategy::BestFit, Some(3)), &four_devices, 1), []);
}

#[test]
fn a_group_for_a_single_node_stays_where_its_first_member_is() {
    let (mut cluster, [two, ..]) = cluster();
    let one = request(1, 1, 1000, 0, &[]);
    assert_eq!(place_members(&mut cluster, &rules(PlacementStrategy::SingleNode, None), &one, 5), [two, two]);
}

#[test]
fn nodes_that_may_hold_a_whole_group_are_tried_the_tightest_first() {
    let (mut cluster, [two, four, eight]) = cluster();
    let mut class = |request: &Request| {
        let claim = add(&mut cluster, request);
        cluster.class_of(claim).expect("the claim was added")
    };
    let (one, head) = (class(&request(1, 1, 1000, 0, &[])), class(&request(40, 0, 0, 0, &[])));
    let mut engine = Engine::new(Binpack);
    let mut nodes_for = |wanted: &[_], max| {
        let (placement, members) = (rules(PlacementStrategy::SingleNode, max), MemberNodes::default());
        let scope = GroupScope { placement: &placement, members: &members, within: None };
        engine.nodes_for(&cluster, wanted, &scope).iter().map(|node| node.place).collect::<Vec<_>>()
    };
    assert_eq!(nodes_for(&[(one, 1)], None), [two, four, eight]);
    assert_eq!(nodes_for(&[(one, 3)], None), [four, eight]);
    assert_eq!(nodes_for(&[(one, 3), (head, 2)], None), [two, four, eight][1..]);
    assert_eq!(nodes_for(&[(one, 3), (head, 3)], None), [], "three heads want more CPU than a node has");
    assert_eq!(nodes_for(&[(one, 3)], Some(2)), [], "by its own rules");
}

#[test]
fn members_that_are_placed_already_are_counted() {
    let (mut cluster, [two, four, _]) = cluster();
    let spec = PodGroup { name: "g".into(), ..Default::default() };
    let group = cluster.add_group(spec);
    let mut engine = Engine::new(Binpack);
    for _ in 0..3 {
        let claim = Claim { request: request(1, 1, 1000, 0, &[]), pod_group: Some("g".into()), ..Default::default() };
        let claim = cluster.add_claim(claim);
        let class = cluster.class_of(claim).expect("the claim was added");
        let allocation = engine.place(&cluster, class).expect("there is room");
        cluster.apply(Event::ClaimPlaced(claim, allocation)).expect("it fits");
    }
    let members = MemberNodes::of(&cluster, group);
    assert_eq!((members.members_on(two), members.members_on(four)), (2, 1));
    assert_eq!((members.devices_on(two), members.devices_on(four)), (2, 1));
}

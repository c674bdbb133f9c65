//! A refusal of one queue or claim says nothing about others with other bounds.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{
    Allowance, Claim, Event, GroupPlacement, MilliCpu, NodeSpec, PlacementStrategy, PodGroup, QueueSpec, Resource,
    Texts,
};
use aliquot_scheduler_kit::{Build, device, node};

use crate::setting::{INFERENCE, TRAIN, World, build, group, moved, wants};

fn add_node_of_model(world: &mut World, name: &str, model: &str) {
    world.cluster.add_node(NodeSpec { devices: vec![device(model)], ..node(name, 64, 0) });
}

#[test]
fn members_that_are_spread_go_where_their_queue_may_have_more() {
    let mut world = World::new(&[1]);
    add_node_of_model(&mut world, "other", "B");
    let none = Allowance { limit: Some(0), weight: 1, ..Allowance::default() };
    let allowances = BTreeMap::from([(Resource::ModelCore("A".into()), none)]);
    world.apply(Event::QueueAdded(QueueSpec { name: "q".into(), allowances, ..QueueSpec::default() }));
    let spread = GroupPlacement { strategy: PlacementStrategy::SpreadEvenly, ..GroupPlacement::default() };
    let claims = world.gang(PodGroup { spread, ..group("g", "q", TRAIN, 1) }, 1, 1);
    world.cycle();
    assert_eq!(world.running(&claims), 1);
}

#[test]
fn a_quota_that_stops_who_stays_does_not_stop_who_may_be_evicted() {
    let mut world = World::new(&[1]);
    add_node_of_model(&mut world, "node-1", "B");
    let model = || Resource::ModelCore("A".into());
    let quota = |quota, weight| Allowance { quota: Some(quota), weight, ..Allowance::default() };
    for (name, core, of_a) in [
        ("q", quota(1000, 0), quota(0, 1)),
        ("lender", quota(0, 0), quota(0, 0)),
        ("rest", quota(1000, 0), quota(0, 0)),
    ] {
        let allowances = BTreeMap::from([(Resource::DeviceCore, core), (model(), of_a)]);
        world.apply(Event::QueueAdded(QueueSpec { name: name.into(), allowances, ..QueueSpec::default() }));
    }
    let borrowed = world.add("lender", TRAIN, 1);
    world.run_on(borrowed, 0, 0);
    let stays = world.claim(build("rest", 1));
    world.run_on(stays, 1, 0);
    let bound = world.claim(Claim { preemptible: false, ..wants("q", INFERENCE, 1) });
    let free = world.add("q", TRAIN, 1);
    world.cycle();
    assert!(!world.runs(bound));
    assert!(world.runs(free));
}

#[test]
fn moves_that_one_queue_is_refused_another_may_make_of_its_own() {
    let mut world = World::new(&[2, 2]);
    world.queue("a", 4);
    let own = Allowance { quota: Some(4000), weight: 1, ..Allowance::default() };
    world.apply(Event::QueueAdded(QueueSpec {
        name: "b".into(),
        allowances: BTreeMap::from([(Resource::DeviceCore, own)]),
        reclaim_min_runtime_ms: Some(3_600_000),
        ..QueueSpec::default()
    }));
    for node in [0, 1] {
        let claim = world.add("b", INFERENCE, 1);
        world.run_on(claim, node, 0);
    }
    let other = world.add("a", TRAIN, 2);
    let own = world.claim(build("b", 2));
    let plan = world.cycle();
    assert!(!world.runs(other));
    assert_eq!(moved(&plan).len(), 1);
    assert!(world.runs(own));
}

#[test]
fn a_gang_that_finds_no_room_within_its_queues_bounds_says_nothing_of_another_queues() {
    let mut world = World::new(&[1]);
    add_node_of_model(&mut world, "node-1", "B");
    add_node_of_model(&mut world, "node-2", "B");
    let none = Allowance { limit: Some(0), weight: 1, ..Allowance::default() };
    let three = Allowance { quota: Some(3000), weight: 1, ..Allowance::default() };
    let allowances = BTreeMap::from([(Resource::DeviceCore, three), (Resource::ModelCore("A".into()), none)]);
    let bound = QueueSpec { name: "bound".into(), priority: 10, allowances, ..QueueSpec::default() };
    world.apply(Event::QueueAdded(bound));
    world.queue("free", 3);
    let gangs = ["bound", "free"].map(|queue| {
        world.apply(Event::PodGroupAdded(group(queue, queue, TRAIN, 3)));
        let mut large = Claim { pod_group: Some(queue.into()), ..wants("", 0, 1) };
        let mut small = large.clone();
        large.request.cpu = MilliCpu::new(2000);
        // The large claims have as few nodes to choose from as the small ones, and are placed first.
        large.request.constraints.labels.insert("sort".into(), "either".into());
        small.request.constraints.models.insert("B".into());
        [large, small.clone(), small].map(|claim| world.claim(claim))
    });
    for node in [0, 1] {
        let labels = Texts::from([("sort".into(), "either".into())]);
        world.apply(Event::NodeRelabelled(world.id(node), NodeSpec { labels, ..NodeSpec::default() }));
    }
    world.cycle();
    let [bound, free] = &gangs;
    assert_eq!((world.running(bound), world.running(free)), (0, 3));
}

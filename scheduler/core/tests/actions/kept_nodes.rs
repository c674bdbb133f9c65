//! Nodes that are kept for groups that have waited long.

use std::collections::BTreeMap;

use aliquot_scheduler_core::placement::BestFit;
use aliquot_scheduler_core::{
    Allowance, Claim, ClaimId, Event, GroupPlacement, Health, MilliCpu, NodeSpec, PlacementStrategy, PodGroup,
    QueueSpec, Resource, Scheduler, Settings, SubGroup,
};
use aliquot_scheduler_kit::{Build, node};

use crate::setting::{INFERENCE, TRAIN, World, build, group, moved, part, wants};

fn labelled(world: &World, node: usize, labels: &[(&str, &str)]) -> Event {
    let labels = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    Event::NodeRelabelled(world.id(node), NodeSpec { labels, ..NodeSpec::default() })
}

#[test]
fn a_node_is_kept_no_longer_for_whom_it_does_not_suit_any_more() {
    let mut world = World::with(&[2], Settings { hold_after_ms: Some(1), ..Settings::default() });
    world.queue("q", 2);
    world.queue("others", 0);
    let stays = world.claim(build("others", 1));
    world.run_on(stays, 0, 0);
    let mut large = wants("q", TRAIN, 2);
    large.request.constraints.labels.insert("host".into(), "node-0".into());
    world.claim(large);
    world.cycle();
    world.wait(10);
    world.cycle();
    assert!(world.cluster.is_held(world.id(0)), "it waits for the second device");
    let event = labelled(&world, 0, &[("host", "renamed")]);
    world.apply(event);
    let small = world.add("q", TRAIN, 1);
    world.cycle();
    world.cycle();
    assert!(world.runs(small));
}

#[test]
fn a_node_is_kept_no_longer_when_a_device_has_failed() {
    let mut world = World::with(&[2, 2], Settings { hold_after_ms: Some(1), ..Settings::default() });
    world.queue("q", 2);
    world.queue("others", 0);
    for node in [0, 1] {
        let stays = world.claim(build("others", 1));
        world.run_on(stays, node, 0);
    }
    world.add("q", TRAIN, 2);
    world.cycle();
    world.wait(10);
    world.cycle();
    assert!(world.cluster.is_held(world.id(0)));
    world.apply(Event::DeviceHealthChanged { node: world.id(0), device: 0, health: Health::Unhealthy });
    world.cycle();
    assert!(!world.cluster.is_held(world.id(0)), "two devices are there no more");
    assert!(world.cluster.is_held(world.id(1)), "but here they are");
}

/// A world with a queue "q" of eight devices. On each node some devices are taken for ever, by a queue without any
/// right to them. Nodes are kept for a group that has waited for a millisecond.
fn keeping(nodes: &[usize], taken: &[u16], held_nodes_per_mille: u32) -> World {
    let mut world =
        World::with(nodes, Settings { hold_after_ms: Some(1), held_nodes_per_mille, ..Settings::default() });
    world.queue("q", 8);
    world.queue("others", 0);
    for (node, taken) in taken.iter().enumerate().filter(|(_, taken)| **taken > 0) {
        let stays = world.claim(build("others", *taken));
        world.run_on(stays, node, 0);
    }
    world
}

impl World {
    /// Adds a node with this many devices, of which one is taken.
    fn add_node(&mut self, number: usize, devices: usize) {
        self.cluster.add_node(node(&format!("node-{number}"), 64, devices));
        let stays = self.claim(build("others", 1));
        self.run_on(stays, number, 0);
    }

    /// The numbers of the nodes that are kept, after the pending claim has waited for long.
    fn kept(&mut self, nodes: usize) -> Vec<usize> {
        self.cycle();
        self.wait(10);
        self.cycle();
        self.held(nodes)
    }

    /// The numbers of the nodes that are kept now.
    fn held(&self, nodes: usize) -> Vec<usize> {
        (0..nodes).filter(|node| self.cluster.is_held(self.id(*node))).collect()
    }
}

#[test]
fn for_a_gang_that_must_be_in_one_rack_nodes_of_one_rack_are_kept() {
    let mut world = keeping(&[4; 4], &[0, 4, 1, 1], 1000);
    for (node, rack) in ["a", "a", "b", "b"].into_iter().enumerate() {
        let event = labelled(&world, node, &[("rack", rack)]);
        world.apply(event);
    }
    world.apply(Event::TopologyChanged(vec!["rack".into()]));
    let spread = GroupPlacement { required_level: Some("rack".into()), ..GroupPlacement::default() };
    world.gang(PodGroup { spread, ..group("g", "q", INFERENCE, 2) }, 2, 4);
    assert_eq!(world.kept(4), [2, 3], "two devices are missing there, and four in the other rack");
    let event = labelled(&world, 3, &[("rack", "a")]);
    world.apply(event);
    world.cycle();
    assert_eq!(world.held(4), [0, 3], "now it is the other rack");
}

#[test]
fn for_a_member_that_must_be_where_others_run_nodes_are_kept_there() {
    let spread = [
        GroupPlacement { required_level: Some("host".into()), ..GroupPlacement::default() },
        GroupPlacement { strategy: PlacementStrategy::SingleNode, ..GroupPlacement::default() },
    ];
    for spread in spread {
        let mut world = keeping(&[4, 4], &[3, 2], 1000);
        world.apply(Event::TopologyChanged(vec!["host".into()]));
        world.apply(Event::PodGroupAdded(PodGroup { spread, ..group("g", "q", TRAIN, 1) }));
        let member = |devices| Claim { pod_group: Some("g".into()), ..wants("", 0, devices) };
        let runs = world.claim(member(1));
        world.run_on(runs, 0, 3);
        world.claim(member(3));
        assert_eq!(world.kept(2), [0], "although less is missing on the other one");
    }
}

#[test]
fn for_a_gang_that_must_be_on_one_node_one_node_is_kept() {
    let mut world = keeping(&[4, 4, 2], &[2, 1, 1], 1000);
    let spread = GroupPlacement { strategy: PlacementStrategy::SingleNode, ..GroupPlacement::default() };
    world.gang(PodGroup { spread, ..group("g", "q", INFERENCE, 2) }, 2, 2);
    assert_eq!(world.kept(3), [1]);
}

/// One node would be enough for the devices, but not within the group's bound.
#[test]
fn as_many_nodes_are_kept_as_devices_per_node_call_for() {
    let spread = GroupPlacement { max_devices_per_node: Some(2), ..GroupPlacement::default() };
    let mut world = keeping(&[4, 4, 4], &[2, 3, 4], 1000);
    world.gang(PodGroup { spread: spread.clone(), ..group("g", "q", INFERENCE, 4) }, 4, 1);
    assert_eq!(world.kept(3), [0, 1]);
    // Members that ask for different numbers of devices.
    let mut world = keeping(&[4, 4, 4], &[2, 3, 4], 1000);
    world.apply(Event::PodGroupAdded(PodGroup { spread: spread.clone(), ..group("g", "q", INFERENCE, 3) }));
    for devices in [2, 1, 1] {
        world.claim(Claim { pod_group: Some("g".into()), ..wants("", 0, devices) });
    }
    assert_eq!(world.kept(3), [0, 1]);
    // A member that runs counts on its node.
    let mut world = keeping(&[4, 4], &[2, 3], 1000);
    world.apply(Event::PodGroupAdded(PodGroup { spread, ..group("g", "q", TRAIN, 1) }));
    let member = |devices| Claim { pod_group: Some("g".into()), ..wants("", 0, devices) };
    let runs = world.claim(member(1));
    world.run_on(runs, 0, 3);
    world.claim(member(2));
    assert_eq!(world.kept(2), [1], "although less is missing on the other one");
}

#[test]
fn no_nodes_are_kept_for_a_gang_that_needs_more_than_may_be_kept() {
    let mut world = keeping(&[2; 4], &[1, 1, 0, 0], 500);
    world.gang(group("g", "q", INFERENCE, 3), 3, 2);
    assert!(world.kept(4).is_empty(), "two nodes would be idle for ever");
    let fits = world.add("q", TRAIN, 2);
    world.cycle();
    assert!(world.runs(fits));
}

#[test]
fn of_a_queues_units_that_wait_one_at_a_time_has_nodes_kept() {
    let mut world = keeping(&[2, 2], &[1, 1], 1000);
    for _ in 0..2 {
        world.add("q", TRAIN, 2);
    }
    assert_eq!(world.kept(2), [0]);
}

#[test]
fn a_large_node_is_kept_where_several_small_ones_would_be_too_many() {
    let mut world = keeping(&[1, 1, 4, 4], &[0, 1, 4, 4], 250);
    world.gang(group("g", "q", INFERENCE, 2), 2, 1);
    assert_eq!(world.kept(4), [2]);
}

#[test]
fn nodes_are_kept_no_longer_for_whose_queue_has_a_smaller_share_now() {
    let mut world = keeping(&[2, 2], &[1, 1], 1000);
    world.queue("borrows", 0);
    world.add("borrows", TRAIN, 2);
    assert_eq!(world.kept(2), [0], "two of four devices are its share as long as no other queue asks for them");
    world.queue("owns", 4);
    world.asks_for_the_rest("owns");
    assert!(world.kept(2).is_empty());
}

#[test]
fn who_found_nothing_to_keep_is_given_nodes_that_others_no_longer_keep_and_new_ones() {
    let mut world = keeping(&[2, 2, 1, 1, 1, 1, 1, 1], &[1, 1], 1000);
    let gang = world.gang(group("g", "q", INFERENCE, 2), 2, 2);
    for queue in ["waits", "waits too"] {
        world.queue(queue, 2);
        world.add(queue, TRAIN, 2);
    }
    assert_eq!(world.kept(8), [0, 1], "for the gang; the small ones will not do for the others");
    gang.into_iter().for_each(|member| _ = world.apply(Event::ClaimRemoved(member)));
    assert_eq!(world.kept(8), [0, 1], "for the others, one each");
    world.queue("waits last", 2);
    world.add("waits last", TRAIN, 2);
    assert_eq!(world.kept(8), [0, 1]);
    world.add_node(8, 2);
    assert_eq!(world.kept(9), [0, 1, 8]);
}

#[test]
fn who_would_fit_on_no_node_is_given_a_new_one() {
    let mut world = keeping(&[1, 1], &[1], 1000);
    world.add("q", TRAIN, 2);
    assert!(world.kept(2).is_empty());
    world.add_node(2, 2);
    assert_eq!(world.kept(3), [2]);
}

#[test]
fn moves_make_room_on_a_kept_node_although_another_queue_was_refused_moves_for_the_same() {
    let mut world = keeping(&[2, 2, 1, 1], &[0, 1, 1, 1], 1000);
    world.queue("owns", 1);
    let moves = world.add("owns", TRAIN, 1);
    world.run_on(moves, 0, 0);
    let leaves = world.claim(build("others", 1));
    world.run_on(leaves, 1, 1);
    let holder = world.add("q", TRAIN, 2);
    assert_eq!(world.kept(4), [0]);
    let allowance = Allowance { quota: Some(2000), weight: 1, ..Allowance::default() };
    world.apply(Event::QueueAdded(QueueSpec {
        name: "first".into(),
        priority: 1,
        allowances: BTreeMap::from([(Resource::DeviceCore, allowance)]),
        ..QueueSpec::default()
    }));
    world.add("first", TRAIN, 2);
    world.apply(Event::ClaimRemoved(leaves));
    assert_eq!(moved(&world.cycle()), [moves]);
    assert!(world.runs(holder));
}

#[test]
fn a_kept_node_goes_to_its_unit_though_an_equal_one_fails_first() {
    let mut w = World::new(&[1, 1]);
    w.queue("red", 1);
    w.apply(Event::QueueAdded(QueueSpec {
        name: "blue".into(),
        priority: 10,
        allowances: BTreeMap::from([(
            Resource::DeviceCore,
            Allowance { quota: Some(1000), weight: 1, ..Allowance::default() },
        )]),
        ..QueueSpec::default()
    }));
    let k0 = w.claim(build("default", 1));
    let k1 = w.claim(build("default", 1));
    w.run_on(k0, 0, 0);
    w.run_on(k1, 1, 0);
    let r = w.add("red", TRAIN, 1);
    w.cycle();
    w.wait(300_000);
    w.cycle();
    assert!(w.cluster.is_held(w.id(0)));
    let b = w.add("blue", TRAIN, 1);
    let _over_quota = w.claim(build("red", 2));
    w.apply(Event::ClaimRemoved(k0));
    for _ in 0..10 {
        w.cycle();
        w.wait(60_000);
    }
    assert!(w.runs(r) || w.runs(b), "a device is free and two queues are entitled to it");
}

/// Red waits for the only node. The node is kept for red, and blue would have to wait for it.
fn a_kept_node() -> (World, ClaimId, ClaimId) {
    let mut w = World::new(&[1]);
    w.queue("red", 1);
    let runs = w.claim(build("default", 1));
    w.run_on(runs, 0, 0);
    let waits = w.add("red", TRAIN, 1);
    w.cycle();
    w.wait(300_000);
    w.cycle();
    assert!(w.cluster.is_held(w.id(0)));
    (w, runs, waits)
}

#[test]
fn a_node_kept_for_a_claim_that_is_gone_is_given_out_at_once() {
    let (mut w, runs, waits) = a_kept_node();
    w.apply(Event::ClaimRemoved(waits));
    w.apply(Event::ClaimRemoved(runs));
    let next = w.add("default", TRAIN, 1);
    w.cycle();
    assert!(w.runs(next));
}

#[test]
fn after_a_restore_no_node_is_kept_for_a_claim_that_is_gone() {
    let (mut w, runs, waits) = a_kept_node();
    w.apply(Event::ClaimRemoved(waits));
    let dump = w.scheduler.dump(&w.cluster);
    let (scheduler, cluster) = Scheduler::restore(Box::new(BestFit), Settings::default(), dump.clone()).expect("one");
    let mut restored = World { cluster, scheduler };
    assert_eq!(restored.scheduler.dump(&restored.cluster), dump);
    for w in [&mut w, &mut restored] {
        w.add("red", TRAIN, 1);
        w.cycle();
        assert!(!w.cluster.is_held(w.id(0)), "red has not waited long");
    }
    assert_eq!(restored.scheduler.dump(&restored.cluster), w.scheduler.dump(&w.cluster));
    let runs = restored.cluster.claims().map(|(id, ..)| id).next().filter(|_| w.runs(runs)).expect("it runs");
    restored.apply(Event::ClaimRemoved(runs));
    restored.cycle();
    assert_eq!(restored.cluster.claims().filter(|(.., at)| at.is_some()).count(), 1);
}

#[test]
fn no_node_is_kept_for_a_gang_that_can_never_fit() {
    let mut w = World::new(&[1, 1]);
    w.queue("red", 2);
    w.apply(Event::PodGroupAdded(group("g", "red", TRAIN, 3)));
    for _ in 0..3 {
        w.claim(Claim { pod_group: Some("g".into()), ..part("red", TRAIN, 60) });
    }
    w.cycle();
    w.wait(300_000);
    w.cycle();
    let a = w.add("default", TRAIN, 1);
    let b = w.add("default", TRAIN, 1);
    for _ in 0..10 {
        w.cycle();
        w.wait(600_000);
    }
    assert_eq!(w.running(&[a, b]), 2);
}

#[test]
fn a_node_is_kept_for_the_next_claim_if_the_first_fits_nowhere() {
    let mut w = World::new(&[2]);
    w.queue("red", 2);
    let k = w.claim(build("default", 1));
    w.run_on(k, 0, 0);
    let _ = w.add("red", 100, 64);
    let b = w.add("red", TRAIN, 2);
    w.cycle();
    w.wait(300_000);
    w.cycle();
    assert!(!w.runs(b));
    assert!(w.cluster.is_held(w.id(0)));
}

/// After how many minutes a claim for eight devices runs. Of the first of two nodes with eight devices, one is taken for
/// ever. Claims for one device each take the rest. Every minute one of them ends, and another one comes.
fn minutes_until_a_large_claim_runs(for_ever: Claim) -> u64 {
    let mut world = World::new(&[8, 8]);
    world.queue("q", 16);
    let stays = world.claim(for_ever);
    world.run_on(stays, 0, 0);
    let large = world.add("q", TRAIN, 8);
    let mut small = Vec::new();
    for (node, device) in (0..8).flat_map(|device| [(0, device), (1, device)]).skip(1) {
        small.push(world.add("q", TRAIN, 1));
        world.run_on(small[small.len() - 1], node, device);
    }
    for minute in 0..200 {
        let oldest = small.iter().position(|claim| world.runs(*claim)).expect("some run");
        world.apply(Event::ClaimRemoved(small.remove(oldest)));
        small.push(world.add("q", TRAIN, 1));
        world.cycle();
        if world.runs(large) {
            return minute;
        }
        world.wait(60_000);
    }
    panic!("the large claim waits for ever");
}

#[test]
fn no_node_is_kept_where_something_may_not_be_evicted() {
    let minutes = minutes_until_a_large_claim_runs(build("q", 1));
    assert!(minutes <= 30, "{minutes} minutes");
}

#[test]
fn a_node_that_nothing_leaves_is_given_up_for_another_one() {
    let minutes = minutes_until_a_large_claim_runs(wants("q", TRAIN, 1));
    assert!(minutes <= 60, "{minutes} minutes");
}

#[test]
fn how_long_nothing_has_left_a_kept_node_outlives_a_restart() {
    let (mut w, ..) = a_kept_node();
    w.wait(300_000);
    w.cycle();
    let dump = w.scheduler.dump(&w.cluster);
    assert_eq!(
        (dump.blocked[0].patience.times, dump.blocked[0].nodes.len()),
        (1, 1),
        "given up, but there is no other"
    );
    let (scheduler, cluster) = Scheduler::restore(Box::new(BestFit), Settings::default(), dump.clone()).expect("one");
    assert_eq!(scheduler.dump(&cluster), dump);
}

#[test]
fn claims_that_fit_nowhere_do_not_hide_those_behind_them() {
    for is_one_sort in [true, false] {
        let mut world = keeping(&[2, 2], &[1, 1], 1000);
        for number in 0..20 {
            let mut claim = wants("q", INFERENCE, if is_one_sort { 1 } else { number + 1 });
            claim.request.constraints.models.insert("of the future".into());
            world.claim(claim);
        }
        world.add("q", TRAIN, 2);
        let kept: Vec<usize> = (0..3).flat_map(|_| world.kept(2)).collect();
        assert!(kept.contains(&0), "{kept:?}");
    }
}

#[test]
fn a_wait_goes_on_while_others_come_first_and_go() {
    let mut world = World::new(&[2]);
    world.queue("q", 2);
    let stays = world.claim(build("default", 1));
    world.run_on(stays, 0, 0);
    world.add("q", TRAIN, 2);
    world.cycle();
    world.wait(200_000);
    let burst: Vec<ClaimId> = (3..20).map(|devices| world.add("q", INFERENCE, devices)).collect();
    world.cycle();
    burst.into_iter().for_each(|claim| _ = world.apply(Event::ClaimRemoved(claim)));
    world.wait(100_000);
    world.cycle();
    assert!(world.cluster.is_held(world.id(0)));
}

#[test]
fn up_to_a_quarter_of_a_small_cluster_is_kept_for_a_gang() {
    let mut world = keeping(&[2; 8], &[1; 8], 50);
    world.gang(group("g", "q", TRAIN, 2), 2, 2);
    assert_eq!(world.kept(8), [0, 1]);
}

/// A gang of one member for each of these numbers of devices, or of CPU only if that is 0.
fn mixed_gang(world: &mut World, devices: &[u16]) {
    world.apply(Event::PodGroupAdded(group("g", "q", TRAIN, u32::try_from(devices.len()).expect("few"))));
    for devices in devices {
        let mut member = Claim { pod_group: Some("g".into()), ..wants("", 0, *devices) };
        member.request.cpu = MilliCpu::new(1000);
        world.claim(member);
    }
}

#[test]
fn nodes_are_kept_for_gangs_of_unlike_members() {
    for (devices, kept) in
        [(vec![4, 1, 1, 1, 1], vec![0]), (vec![0, 8], vec![0]), (vec![4, 4, 1], vec![0, 1]), (vec![8, 8, 1], vec![])]
    {
        let mut world = World::with(
            &[8, 8],
            Settings { hold_after_ms: Some(1), held_nodes_per_mille: 1000, ..Settings::default() },
        );
        world.queue("q", 16);
        world.queue("others", 0);
        for (node, taken) in [(0, 5), (1, 6)] {
            let stays = world.claim(build("others", taken));
            world.run_on(stays, node, 0);
        }
        mixed_gang(&mut world, &devices);
        assert_eq!(world.kept(2), kept, "{devices:?}");
    }
}

#[test]
fn nodes_are_kept_in_the_racks_of_sub_groups() {
    let mut world = keeping(&[4; 4], &[3, 3, 4, 4], 1000);
    for (node, rack) in ["a", "b", "a", "b"].into_iter().enumerate() {
        let event = labelled(&world, node, &[("rack", rack)]);
        world.apply(event);
    }
    world.apply(Event::TopologyChanged(vec!["rack".into()]));
    let sub_group = |name: &str| SubGroup {
        name: name.into(),
        min_members: 2,
        required_level: Some("rack".into()),
        ..SubGroup::default()
    };
    let sub_groups = vec![sub_group("first"), sub_group("second")];
    world.apply(Event::PodGroupAdded(PodGroup { sub_groups, ..group("g", "q", TRAIN, 3) }));
    for name in ["first", "first", "second", "second"] {
        world.claim(Claim { pod_group: Some("g".into()), sub_group: Some(name.into()), ..wants("", 0, 2) });
    }
    assert_eq!(world.kept(4), [0, 1], "of each sub-group both members fit onto one node");
}

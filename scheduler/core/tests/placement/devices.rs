//! The devices of a node that a task gets.

use aliquot_scheduler_core::placement::{Binpack, Engine, ExpectedWaste, Misfit, Mix, Spread, Weights, fits, room};
use aliquot_scheduler_core::{
    Alignment, Bytes, Cluster, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, Event, Health, NodeId, NodeSpec,
    PlacementRules, Request, RequestError,
};
use aliquot_scheduler_kit::Build;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::cases::{devices, node, place, request};
use crate::packings::most_rounds;

/// A node with devices in these NVLink groups, on these switches, and attached to these NUMA nodes.
fn connected(name: &str, devices: &[(u16, u16, u16)]) -> NodeSpec {
    let spec = node(name, 96, devices.len(), "A");
    let connect = |(device, (nvlink, switch, numa)): (DeviceSpec, &(u16, u16, u16))| DeviceSpec {
        nvlink_group: Some(*nvlink),
        switch: Some(*switch),
        numa: Some(*numa),
        ..device
    };
    NodeSpec { devices: spec.devices.into_iter().zip(devices).map(connect).collect(), ..spec }
}

fn with_rules(request: Request, nvlink: Alignment, switch: Alignment) -> Request {
    Request { rules: PlacementRules { nvlink, switch, ..request.rules }, ..request }
}

/// Places requests one after another on one node, with the binpack policy.
fn on_one_node(spec: NodeSpec, requests: &[Request]) -> Vec<Option<Vec<u16>>> {
    let mut cluster = Cluster::new();
    cluster.add_node(spec);
    let mut engine = Engine::new(Binpack);
    requests.iter().map(|request| place(&mut cluster, &mut engine, request).as_ref().map(devices)).collect()
}

#[test]
fn memory_counts_as_much_as_time() {
    let mut cluster = Cluster::new();
    cluster.add_node(node("n", 96, 2, "A"));
    let big = request(1, 1, 100, 12_000, &[]);
    let small = request(1, 1, 100, 5_000, &[]);
    let mix = Mix::of([&big, &small]);
    let mut engine = Engine::new(ExpectedWaste::new(&mix, Weights::default()));
    assert!(place(&mut cluster, &mut engine, &big).is_some() && place(&mut cluster, &mut engine, &big).is_some());
    assert_eq!(place(&mut cluster, &mut engine, &big), None, "no device has 12,000 MiB left");
    assert_eq!(place(&mut cluster, &mut engine, &small), None, "nor 5,000");
}

#[test]
fn only_devices_with_the_attributes_that_are_asked_for_are_taken() {
    let mut spec = node("n", 96, 3, "A");
    for (device, enforcement) in [(1, "time"), (2, "time-and-memory")] {
        spec.devices[device].attributes.insert("enforcement".into(), enforcement.into());
    }
    let mut enforced = request(1, 1, 400, 1000, &[]);
    enforced.constraints.attributes.insert("enforcement".into(), "time-and-memory".into());
    let placed = on_one_node(spec.clone(), &[enforced.clone(), enforced.clone(), enforced.clone()]);
    assert_eq!(placed, [Some(vec![2]), Some(vec![2]), None]);
    let mut cluster = Cluster::new();
    let id = cluster.add_node(spec.clone());
    let pair = Request { devices: DeviceRequest { count: 2, ..enforced.devices }, ..enforced.clone() };
    assert_eq!(fits(cluster.node(id).expect("the node"), &pair), Err(Misfit::Models { request: None, admitted: 1 }));
    assert_eq!(room(cluster.node(id).expect("the node"), &enforced), 2);
    spec.devices[0].attributes.insert("enforcement".into(), "time-and-memory".into());
    cluster.apply(Event::NodeRelabelled(id, spec)).expect("a known node");
    assert_eq!(fits(cluster.node(id).expect("the node"), &pair), Ok(()));
}

#[test]
fn a_pair_of_parts_takes_two_different_devices() {
    let pair = request(1, 2, 500, 1000, &[]);
    let placed = on_one_node(node("n", 96, 2, "A"), &[pair.clone(), pair.clone(), pair]);
    assert_eq!(placed, [Some(vec![0, 1]), Some(vec![0, 1]), None]);
}

#[test]
fn three_pairs_of_halves_have_room_on_three_devices() {
    let pair = request(1, 2, 500, 1000, &[]);
    let mut cluster = Cluster::new();
    let id = cluster.add_node(node("n", 96, 3, "A"));
    let mut engine = Engine::new(ExpectedWaste::new(&Mix::of([&pair]), Weights::default()));
    for left in [3, 2, 1] {
        assert_eq!(room(cluster.node(id).expect("the node is there"), &pair), left);
        assert!(place(&mut cluster, &mut engine, &pair).is_some(), "{left} should fit");
    }
    assert_eq!(place(&mut cluster, &mut engine, &pair), None);
}

#[test]
fn spreading_takes_the_emptiest_devices() {
    let mut cluster = Cluster::new();
    cluster.add_node(node("n", 96, 4, "A"));
    let mut engine = Engine::new(Spread);
    let mut place = |request| place(&mut cluster, &mut engine, &request).as_ref().map(devices);
    assert_eq!(place(request(1, 1, 300, 1000, &[])), Some(vec![0]));
    assert_eq!(place(request(1, 1, 200, 1000, &[])), Some(vec![1]));
    assert_eq!(place(request(1, 3, 100, 1000, &[])), Some(vec![1, 2, 3]));
}

#[test]
fn devices_that_reach_each_other_by_nvlink_are_preferred() {
    let groups = connected("n", &[(0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0)]);
    let one = request(1, 1, 1000, 16_000, &[]);
    let pair = with_rules(request(1, 2, 1000, 16_000, &[]), Alignment::Preferred, Alignment::Any);
    let placed = on_one_node(groups, &[one.clone(), pair.clone(), one, pair]);
    assert_eq!(placed, [Some(vec![0]), Some(vec![2, 3]), Some(vec![1]), None]);
}

#[test]
fn what_is_preferred_is_not_required() {
    let groups = connected("n", &[(0, 0, 0), (1, 0, 0), (2, 0, 0)]);
    let pair = request(1, 2, 1000, 16_000, &[]);
    let preferred = with_rules(pair.clone(), Alignment::Preferred, Alignment::Preferred);
    let required = with_rules(pair, Alignment::Required, Alignment::Any);
    assert_eq!(on_one_node(groups, &[required, preferred]), [None, Some(vec![0, 1])]);
}

#[test]
fn a_device_in_no_nvlink_group_reaches_no_other_one() {
    let pair = with_rules(request(1, 2, 1000, 16_000, &[]), Alignment::Required, Alignment::Any);
    let mut cluster = Cluster::new();
    let id = cluster.add_node(node("n", 96, 4, "A"));
    let books = cluster.node(id).expect("the node is there");
    assert_eq!(fits(books, &pair), Err(Misfit::Alignment { fitting: 4 }));
    assert_eq!(room(books, &pair), 0);
}

#[test]
fn the_smallest_group_that_will_do_is_taken() {
    let groups = connected("n", &[(0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0)]);
    let pair = with_rules(request(1, 2, 1000, 16_000, &[]), Alignment::Preferred, Alignment::Any);
    let four = with_rules(request(1, 4, 1000, 16_000, &[]), Alignment::Required, Alignment::Any);
    assert_eq!(on_one_node(groups, &[pair, four]), [Some(vec![4, 5]), Some(vec![0, 1, 2, 3])]);
}

#[test]
fn of_groups_of_a_size_the_one_with_least_left_is_taken() {
    let groups = connected("n", &[(1, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0)]);
    let pair = with_rules(request(1, 2, 500, 4_000, &[]), Alignment::Preferred, Alignment::Any);
    assert_eq!(on_one_node(groups, &[request(1, 1, 300, 1_000, &[]), pair]), [Some(vec![0]), Some(vec![0, 1])]);
}

#[test]
fn nvlink_is_preferred_more_than_a_common_switch() {
    let both = |nvlink, switch| with_rules(request(1, 2, 1000, 16_000, &[]), nvlink, switch);
    // Devices 0 and 1 share a switch, 1 and 2 share an NVLink group, 3 and 4 share both.
    let mixed = [(0, 0, 0), (1, 0, 0), (1, 1, 0), (2, 2, 0), (2, 2, 0)];
    let preferred = both(Alignment::Preferred, Alignment::Preferred);
    let switch_only = both(Alignment::Any, Alignment::Required);
    let placed = on_one_node(connected("n", &mixed), &[preferred.clone(), preferred]);
    assert_eq!(placed, [Some(vec![3, 4]), Some(vec![1, 2])]);
    assert_eq!(on_one_node(connected("n", &mixed), &[switch_only]), [Some(vec![0, 1])]);
}

#[test]
fn a_node_where_devices_are_near_each_other_goes_before_a_fuller_one() {
    let mut cluster = Cluster::new();
    let apart = cluster.add_node(connected("apart", &[(0, 0, 0), (1, 1, 0)]));
    let together = cluster.add_node(connected("together", &[(0, 0, 0), (0, 0, 0), (1, 1, 0), (1, 1, 0)]));
    let pair = request(1, 2, 1000, 16_000, &[]);
    let mut engine = Engine::new(Binpack);
    let mut place = |request: &Request| place(&mut cluster, &mut engine, request).map(|allocation| allocation.node);
    assert_eq!(place(&with_rules(pair.clone(), Alignment::Preferred, Alignment::Any)), Some(together));
    assert_eq!(place(&with_rules(pair.clone(), Alignment::Any, Alignment::Preferred)), Some(together));
    assert_eq!(place(&with_rules(pair.clone(), Alignment::Required, Alignment::Any)), None);
    assert_eq!(place(&with_rules(pair, Alignment::Preferred, Alignment::Any)), Some(apart), "that is all there is");
}

#[test]
fn where_nothing_else_decides_devices_of_one_numa_node_are_taken() {
    let spec = connected("n", &[(0, 0, 0), (1, 1, 1), (2, 2, 0), (3, 3, 1), (4, 4, 2), (5, 5, 1)]);
    let whole = |count| request(1, count, 1000, 16_000, &[]);
    // NUMA node 0 has two devices, node 2 has one, and node 1 has three.
    assert_eq!(on_one_node(spec.clone(), &[whole(2), whole(3)]), [Some(vec![0, 2]), Some(vec![1, 3, 5])]);
    assert_eq!(on_one_node(spec.clone(), &[whole(4)]), [Some(vec![0, 1, 3, 5])], "as few NUMA nodes as possible");
    // A device that is already in use goes first, whatever its NUMA node.
    let placed = on_one_node(spec, &[request(1, 1, 500, 0, &[]), request(1, 2, 100, 0, &[])]);
    assert_eq!(placed, [Some(vec![0]), Some(vec![0, 2])]);
}

#[test]
fn a_memory_threshold_counts_what_the_task_itself_takes() {
    let limited = |memory_mib, percent| Request {
        rules: PlacementRules { memory_threshold_percent: Some(percent), ..PlacementRules::default() },
        ..request(1, 1, 100, memory_mib, &[])
    };
    // 16,000 MiB each; 80 % of that are 12,800 MiB.
    let ten = request(1, 1, 100, 10_000, &[]);
    let placed = on_one_node(node("n", 96, 2, "A"), &[ten, limited(2801, 80), limited(2800, 80), limited(0, 79)]);
    assert_eq!(placed, [Some(vec![0]), Some(vec![1]), Some(vec![0]), Some(vec![1])]);
    assert_eq!(on_one_node(node("n", 96, 1, "A"), &[limited(12_801, 80)]), [None]);
}

#[test]
fn a_memory_threshold_leaves_room_for_what_nobody_was_given() {
    let limited = |memory_mib| Request {
        rules: PlacementRules { memory_threshold_percent: Some(80), ..PlacementRules::default() },
        ..request(1, 1, 100, memory_mib, &[])
    };
    let mut spec = node("n", 96, 1, "A");
    spec.devices[0].memory_outside = Bytes::from_mib(2800);
    let unlimited = request(1, 1, 100, 5000, &[]);
    // 12,800 of 16,000 MiB are 80 %.
    let placed = on_one_node(spec.clone(), &[limited(10_001), limited(5000), unlimited, limited(1)]);
    assert_eq!(placed, [None, Some(vec![0]), Some(vec![0]), None]);
    spec.devices[0].memory_outside = Bytes::from_mib(17_000);
    assert_eq!(on_one_node(spec, &[limited(0)]), [None]);
}

#[test]
fn rules_that_can_never_be_met_are_refused() {
    let rules = |percent| PlacementRules { memory_threshold_percent: Some(percent), ..PlacementRules::default() };
    let whole = |percent| Request { devices: DeviceRequest::whole(1), rules: rules(percent), ..Request::default() };
    assert_eq!(whole(101).validate(), Err(RequestError::MemoryThreshold { percent: 101 }));
    assert_eq!(whole(0).validate(), Err(RequestError::MemoryThreshold { percent: 0 }));
    let above = RequestError::AboveMemoryThreshold { thousandths: 1000, percent: 90 };
    assert_eq!(whole(90).validate(), Err(above));
    assert_eq!(whole(100).validate(), Ok(()));
}

/// A node with devices that are used to these parts, in hundredths; some of them are not healthy.
fn used(parts: &[(u32, bool)], groups: &[(u16, u16)]) -> (Cluster, NodeId) {
    let connections: Vec<(u16, u16, u16)> =
        groups.iter().take(parts.len()).map(|(nvlink, switch)| (*nvlink, *switch, 0)).collect();
    let mut cluster = Cluster::new();
    let id = cluster.add_node(connected("n", &connections));
    for (device, (hundredths, healthy)) in (0u16..).zip(parts) {
        let core = DeviceCore::new(hundredths * 10);
        let request = Request { devices: DeviceRequest::share(core), ..Request::default() };
        let claim = crate::cases::add(&mut cluster, &request);
        let part = aliquot_scheduler_core::DeviceAllocation { device, core, memory: Default::default() };
        let at = aliquot_scheduler_core::Allocation { node: id, devices: vec![part], alternative: 0 };
        cluster.apply(Event::ClaimPlaced(claim, at)).expect("the device is free");
        let health = if *healthy { Health::Healthy } else { Health::Unhealthy };
        cluster.apply(Event::DeviceHealthChanged { node: id, device, health }).expect("there is such a device");
    }
    (cluster, id)
}

fn alignment() -> impl Strategy<Value = Alignment> {
    prop_oneof![Just(Alignment::Any), Just(Alignment::Preferred), Just(Alignment::Required)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn room_is_what_an_exhaustive_search_finds_and_what_the_default_policy_uses(
        parts in vec((1u32..100, proptest::bool::weighted(0.9)), 1..6),
        groups in vec((0u16..2, 0u16..2), 6),
        count in 1u16..4,
        core in prop_oneof![Just(1000u32), 240u32..600],
        rules in (alignment(), alignment()),
    ) {
        let (mut cluster, id) = used(&parts, &groups);
        let request = with_rules(
            Request {
                devices: DeviceRequest { count, core: DeviceCore::new(core), memory: DeviceMemory::default() },
                ..Request::default()
            },
            rules.0,
            rules.1,
        );
        let books = cluster.node(id).expect("the node is there");
        let free = |device: u16| {
            let device = books.devices().get(usize::from(device)).filter(|device| device.is_healthy());
            device.map_or(0, |device| device.core_free().get())
        };
        // The group that a task with a required alignment must stay within.
        let group = |device: u16| {
            let (nvlink, switch) = groups[usize::from(device)];
            let of = |rule: Alignment, group: u16| if rule == Alignment::Required && count > 1 { group } else { 0 };
            (of(rules.0, nvlink), of(rules.1, switch))
        };
        let mut expected = 0;
        for wanted in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let devices = (0..).take(parts.len()).filter(|device| group(*device) == wanted);
            expected += most_rounds(&devices.map(|device| free(device) / core).collect::<Vec<u32>>(), count);
        }
        prop_assert_eq!(room(books, &request), expected);
        prop_assert_eq!(fits(books, &request).is_ok(), expected > 0);
        if [rules.0, rules.1].contains(&Alignment::Preferred) {
            // Preferences may cost room.
            return Ok(());
        }
        let mut engine = Engine::new(ExpectedWaste::new(&Mix::of([&request]), Weights::default()));
        for left in (1..=expected).rev() {
            prop_assert!(place(&mut cluster, &mut engine, &request).is_some(), "{} more should fit", left);
        }
        prop_assert_eq!(place(&mut cluster, &mut engine, &request), None);
    }
}

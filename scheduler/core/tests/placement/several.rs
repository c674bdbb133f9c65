//! Tasks with several device requests.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::placement::{BestFit, Engine, Misfit, fits, room};
use aliquot_scheduler_core::{
    Alignment, Allocation, Bytes, Cluster, Comparison, DeviceCore, DeviceLink, DeviceMemory, DeviceProperty,
    DeviceRequest, DeviceSpec, FurtherRequest, FurtherRequests, Node, NodeSpec, PlacementRules, Request, RequestError,
};
use aliquot_scheduler_kit::Build;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::cases::{devices, node, place, request};

/// A request for this many devices, with this much time (in thousandths) and this many MiB of each.
fn of(count: u16, core: u32, mib: u64) -> DeviceRequest {
    DeviceRequest { count, core: DeviceCore::new(core), memory: DeviceMemory::Bytes(Bytes::from_mib(mib)) }
}

/// A task with these device requests, named `a`, `b`, and so on.
fn task(requests: &[DeviceRequest], links: &[(&[u16], DeviceProperty, Comparison)]) -> Request {
    let named = |(name, devices): (char, &DeviceRequest)| FurtherRequest {
        name: name.into(),
        devices: *devices,
        ..FurtherRequest::default()
    };
    let link = |(requests, property, comparison): &(&[u16], DeviceProperty, Comparison)| DeviceLink {
        requests: requests.iter().copied().collect(),
        property: property.clone(),
        comparison: *comparison,
    };
    let further = FurtherRequests {
        first_name: "a".into(),
        requests: ('b'..).zip(&requests[1..]).map(named).collect(),
        links: links.iter().map(link).collect(),
    };
    Request { devices: requests[0], further: Some(Arc::new(further)), ..Request::default() }
}

/// Places tasks one after the other on one node.
fn on(spec: NodeSpec, tasks: &[Request]) -> (Cluster, Vec<Option<Vec<u16>>>) {
    let mut cluster = Cluster::new();
    cluster.add_node(spec);
    let mut engine = Engine::new(BestFit);
    let placed = tasks.iter().map(|task| place(&mut cluster, &mut engine, task).as_ref().map(devices)).collect();
    (cluster, placed)
}

fn only(cluster: &Cluster) -> &Node {
    cluster.nodes().next().expect("a node").1
}

#[test]
fn requests_of_a_task_share_a_device_if_it_has_so_much() {
    let part = task(&[of(1, 1000, 8000), of(1, 200, 2000), of(1, 300, 2000)], &[]);
    let (cluster, placed) = on(node("n", 96, 2, "A"), &[part.clone(), part.clone()]);
    assert_eq!(placed, [Some(vec![0, 1, 1]), None], "no device is whole any more");
    let free: Vec<u32> = only(&cluster).devices().iter().map(|device| device.core_free().get()).collect();
    assert_eq!(free, [0, 500]);
    assert_eq!(fits(only(&cluster), &part), Err(Misfit::Devices { request: Some("a"), fitting: 0 }));
}

#[test]
fn who_does_not_fit_beside_the_others_is_named() {
    let (mut spec, crowded) = (node("n", 96, 2, "A"), task(&[of(2, 600, 0), of(1, 600, 0)], &[]));
    let (cluster, placed) = on(spec.clone(), std::slice::from_ref(&crowded));
    assert_eq!(placed, [None]);
    assert_eq!(fits(only(&cluster), &crowded), Err(Misfit::CrowdedOut { request: "b" }));
    assert_eq!(room(only(&cluster), &crowded), 0);
    spec.devices.push(DeviceSpec { uuid: "more".into(), ..spec.devices[0].clone() });
    assert_eq!(on(spec, &[crowded]).1, [Some(vec![0, 1, 2])]);
}

#[test]
fn the_request_that_leaves_least_is_served_first() {
    // The small part would be put on the whole device if it chose first.
    let spec = node("n", 96, 2, "A");
    let (_, placed) = on(spec, &[request(1, 1, 500, 0, &[]), task(&[of(1, 300, 0), of(1, 1000, 0)], &[])]);
    assert_eq!(placed, [Some(vec![0]), Some(vec![0, 1])]);
}

#[test]
fn links_say_what_devices_of_several_requests_have_in_common() {
    let mut spec = node("n", 96, 4, "A");
    for (device, (switch, rack)) in spec.devices.iter_mut().zip([(0, "x"), (0, "y"), (1, "y"), (1, "x")]) {
        device.switch = Some(switch);
        device.attributes.insert("rack".into(), rack.into());
    }
    let attribute = || DeviceProperty::Attribute("rack".into());
    let parts = [of(1, 600, 0), of(1, 300, 0)];
    for (links, expected) in [
        (vec![], vec![0, 0]),
        (vec![(&[0, 1][..], DeviceProperty::Identity, Comparison::Distinct)], vec![0, 1]),
        (vec![(&[0, 1][..], DeviceProperty::Switch, Comparison::Distinct)], vec![0, 2]),
        (
            vec![
                (&[0, 1][..], attribute(), Comparison::Same),
                (&[0, 1][..], DeviceProperty::Identity, Comparison::Distinct),
            ],
            vec![0, 3],
        ),
        (vec![(&[1][..], DeviceProperty::NvlinkGroup, Comparison::Same)], vec![]),
    ] {
        let (_, placed) = on(spec.clone(), &[task(&parts, &links)]);
        assert_eq!(placed[0].clone().unwrap_or_default(), expected, "{links:?}");
    }
}

#[test]
fn preferences_of_a_task_are_about_all_its_devices() {
    let mut spec = node("n", 96, 4, "A");
    spec.devices.iter_mut().zip([0, 1, 1, 0]).for_each(|(device, group)| device.nvlink_group = Some(group));
    let near = |nvlink| Request {
        rules: PlacementRules { nvlink, ..PlacementRules::default() },
        ..task(&[of(1, 1000, 0), of(1, 1000, 0)], &[])
    };
    let single = request(1, 1, 1000, 0, &[]);
    let tasks = [single, near(Alignment::Preferred), near(Alignment::Required), near(Alignment::Preferred)];
    let (_, placed) = on(spec, &tasks);
    assert_eq!(placed, [Some(vec![0]), Some(vec![1, 2]), None, None]);
}

#[test]
fn several_requests_that_contradict_themselves_are_refused() {
    let nothing = task(&[of(1, 1, 0), of(0, 1, 0)], &[]);
    assert_eq!(nothing.validate(), Err(RequestError::NoDevice { number: 1 }));
    let mut twice = task(&[of(1, 1, 0), of(1, 1, 0)], &[]);
    Arc::make_mut(twice.further.as_mut().expect("it has more")).first_name = "b".into();
    assert_eq!(twice.validate(), Err(RequestError::SameName { number: 1 }));
    let links: &[(&[u16], DeviceProperty, Comparison)] = &[(&[0, 2], DeviceProperty::Identity, Comparison::Same)];
    let unknown = task(&[of(1, 1, 0), of(1, 1, 0)], links);
    assert_eq!(unknown.validate(), Err(RequestError::NoSuchRequest { number: 2, requests: 2 }));
    let too_much = task(&[of(1, 1, 0), of(1, 1001, 0)], &[]);
    assert_eq!(too_much.validate(), Err(RequestError::CorePerDevice { core: DeviceCore::new(1001) }));
}

/// All ways to give each request as many different devices as it wants. A way has one list for each request.
fn ways(requests: &[DeviceRequest], devices: u16) -> Vec<Vec<Vec<u16>>> {
    let sets = |count: u16| {
        let sets = 0..1_u32 << devices;
        let members = |set: u32| (0..devices).filter(|device| set >> device & 1 == 1).collect::<Vec<u16>>();
        sets.filter(|set| set.count_ones() == u32::from(count)).map(members).collect::<Vec<_>>()
    };
    requests.iter().fold(vec![Vec::new()], |ways, of| {
        let sets = sets(of.count);
        ways.into_iter().flat_map(|way| sets.iter().map(move |set| [way.clone(), vec![set.clone()]].concat())).collect()
    })
}

/// Whether a way stays within the free amounts and keeps the links.
fn is_possible(task: &Request, spec: &NodeSpec, free: &[(u32, u64)], way: &[Vec<u16>]) -> bool {
    let mut free = free.to_vec();
    for (wish, taken) in task.wishes().zip(way) {
        let DeviceMemory::Bytes(bytes) = wish.devices.memory else { return false };
        for device in taken {
            let (core, mib) = &mut free[usize::from(*device)];
            let left = core.checked_sub(wish.devices.core.get()).zip(mib.checked_sub(bytes.get() >> 20));
            let Some(left) = left else { return false };
            (*core, *mib) = left;
        }
    }
    let links = task.further.iter().flat_map(|further| &further.links);
    links.into_iter().all(|link| {
        let taken = link.requests.iter().flat_map(|place| &way[usize::from(*place)]);
        let values: Vec<u16> = taken
            .map(|device| match link.property {
                DeviceProperty::Switch => spec.devices[usize::from(*device)].switch.unwrap_or(0),
                _ => *device,
            })
            .collect();
        let different = values.iter().collect::<BTreeSet<_>>().len();
        match link.comparison {
            Comparison::Same => different <= 1,
            Comparison::Distinct => different == values.len(),
        }
    })
}

fn link() -> impl Strategy<Value = (Vec<u16>, DeviceProperty, Comparison)> {
    let property = prop::sample::select(vec![DeviceProperty::Identity, DeviceProperty::Switch]);
    let comparison = prop::sample::select(vec![Comparison::Same, Comparison::Distinct]);
    (vec(0u16..3, 1..3), property, comparison)
}

#[test]
fn a_placement_has_no_more_room_than_its_devices_need() {
    let (mut cluster, mut engine) = (Cluster::new(), Engine::new(BestFit));
    cluster.add_node(node("node", 96, 4, "A"));
    for requests in [&[of(1, 500, 0)][..], &[of(1, 500, 0), of(1, 300, 0)]] {
        let at = place(&mut cluster, &mut engine, &task(requests, &[])).expect("there is room");
        assert_eq!((at.devices.len(), at.devices.capacity()), (requests.len(), requests.len()));
    }
}

proptest! {
    /// The search finds devices exactly if trying everything does, and what it finds is possible.
    #[test]
    fn devices_are_found_wherever_there_are_some(
        requests in vec((1u16..4, 1u32..5, 0u64..4), 3),
        held in vec((0u32..5, 0u64..5), 1..5),
        links in vec(link(), 0..3),
    ) {
        let devices = u16::try_from(held.len()).expect("few devices");
        let mut spec = node("n", 96, held.len(), "A");
        for (number, device) in (0u16..).zip(&mut spec.devices) {
            device.switch = Some(number / 2);
        }
        let requests: Vec<DeviceRequest> =
            requests.into_iter().map(|(count, core, mib)| of(count, core * 200, mib * 4000)).collect();
        let links: Vec<(&[u16], DeviceProperty, Comparison)> =
            links.iter().map(|(requests, property, comparison)| (&requests[..], property.clone(), *comparison)).collect();
        let task = task(&requests, &links);
        let mut cluster = Cluster::new();
        let id = cluster.add_node(spec.clone());
        for (device, (core, mib)) in (0u16..).zip(&held) {
            let holder = request(0, 1, core * 200, mib * 3000, &[]);
            if holder.validate().is_ok() {
                let claim = crate::cases::add(&mut cluster, &holder);
                let part = aliquot_scheduler_core::DeviceAllocation {
                    device, core: holder.devices.core, memory: holder.devices.memory.on(Bytes::ZERO),
                };
                let at = Allocation { node: id, devices: vec![part], alternative: 0 };
                cluster.apply(aliquot_scheduler_core::Event::ClaimPlaced(claim, at)).expect("it is free");
            }
        }
        let free: Vec<(u32, u64)> = only(&cluster).devices().iter()
            .map(|device| (device.core_free().get(), device.memory_free().get() >> 20)).collect();
        let ways = ways(&requests, devices);
        let is_possible = |way: &[Vec<u16>]| is_possible(&task, &spec, &free, way);
        let can_be = ways.iter().any(|way| is_possible(way));
        let found = place(&mut cluster, &mut Engine::new(BestFit), &task);
        prop_assert_eq!(found.is_some(), can_be, "{:?}", fits(only(&cluster), &task));
        if let Some(found) = found {
            let mut taken = found.devices.iter().map(|part| part.device);
            let way: Vec<Vec<u16>> =
                requests.iter().map(|of| taken.by_ref().take(usize::from(of.count)).collect()).collect();
            prop_assert!(is_possible(&way), "{:?}", way);
        }
    }
}

//! Devices of several models, on one node and on several, and models that are gone.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Allowance, Bytes, Constraints, DeviceSpec, Event, NodeSpec, Request, Resource};

use crate::kit::{Kit, node, quota, train, whole};

fn device(model: &str, memory_gib: u64) -> DeviceSpec {
    DeviceSpec { model: model.into(), memory: Bytes::from_mib(memory_gib << 10), ..DeviceSpec::default() }
}

/// Limits of this many devices of each of these models.
fn bounds(of: &[(&str, u64)]) -> BTreeMap<Resource, Allowance> {
    let bound = |devices: u64| Allowance { limit: Some(devices * 1000), ..quota(0) };
    of.iter().map(|(model, devices)| (Resource::ModelCore((*model).into()), bound(*devices))).collect()
}

#[test]
fn a_bound_on_one_model_leaves_devices_of_others_on_the_same_node() {
    let mut kit = Kit::new();
    let devices = ["A", "A", "B", "B"].map(|model| device(model, 80));
    kit.node(NodeSpec { devices: devices.to_vec(), ..node("mixed", 0) });
    kit.queue_of("team", bounds(&[("A", 1)]), |_| {});
    let claims = kit.claims(4, &train("team", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&claims), 3, "one of A, and both of B");
}

#[test]
fn bounds_on_two_models_of_a_node_leave_the_third() {
    let mut kit = Kit::new();
    let devices = ["A", "B", "C"].map(|model| device(model, 80));
    kit.node(NodeSpec { devices: devices.to_vec(), ..node("mixed", 0) });
    kit.queue_of("team", bounds(&[("A", 0), ("B", 0)]), |_| {});
    let of_a_or_b = Constraints { models: ["A", "B"].map(str::to_owned).into(), ..Constraints::default() };
    let none = kit.claim(train("team", Request { constraints: of_a_or_b, ..whole(1) }));
    let claims = kit.claims(2, &train("team", whole(1)));
    kit.converge();
    assert_eq!((kit.running(&[none]), kit.running(&claims)), (0, 1));
}

#[test]
fn what_parts_of_devices_mean_does_not_depend_on_models_that_are_gone() {
    let mut kit = Kit::new();
    let large = kit.node(NodeSpec { devices: vec![device("A", 80)], ..node("large", 0) });
    kit.node(NodeSpec { devices: vec![device("B", 16); 4], ..node("small", 0) });
    for (queue, weight) in [("red", 3), ("blue", 1)] {
        let memory = Allowance { quota: Some(0), weight, ..Allowance::default() };
        let of = [(Resource::DeviceCore, quota(2)), (Resource::DeviceMemory, memory)];
        kit.queue_of(queue, BTreeMap::from(of), |_| {});
    }
    kit.event(Event::NodeRemoved(large));
    kit.claims(2, &train("red", whole(1)));
    let blue = kit.claims(2, &train("blue", whole(1)));
    kit.converge();
    assert_eq!(kit.running(&blue), 2);
    let queue = kit.cluster.queue_named("blue").expect("it was added");
    let standings = kit.scheduler.standings(&kit.cluster, queue);
    let entitled = standings.iter().filter(|standing| standing.is_entitled).count();
    assert_eq!(entitled, 2, "two small devices are all that red asks for, however large others were");
}

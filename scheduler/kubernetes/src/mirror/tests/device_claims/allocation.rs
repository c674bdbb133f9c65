//! What is allocated to claims, and how it is written.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use serde_json::{Value, json};

use super::super::{World, typed};
use crate::dra::DRIVER;

#[test]
fn a_device_is_shared_by_what_claims_ask_for() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    for name in ["a", "b", "c", "d"] {
        world.pod_with_part(name, 25, json!({}));
    }
    world.reconcile();
    world.pod_with_part("e", 25, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c", "d"]);
    assert_eq!(world.allocated(), BTreeMap::from([("n/gpu-0".to_owned(), (100, 4 << 30))]));
    assert!(world.why_waiting("e").contains("25 % gpu-core"), "{}", world.why_waiting("e"));
    // A pod that is gone keeps its part until that is given back.
    world.delete("a");
    world.reconcile();
    assert!(!world.bound().contains_key("e"));
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c", "d", "e"]);
}

#[test]
fn the_devices_of_a_claim_match_as_it_wants() {
    let mut world = World::new();
    world.node_with_driver("n", 4);
    let mut slice = world.slices["n"].clone();
    for (device, root) in slice["spec"]["devices"].as_array_mut().unwrap().iter_mut().zip(["a", "b", "c", "b"]) {
        device["attributes"]["resource.kubernetes.io/pcieRoot"] = json!({"string": root});
    }
    slice["spec"]["pool"]["generation"] = 1_000.into();
    world.mirror.resource_slice(typed::<ResourceSlice>(&slice));
    for name in ["near", "far"] {
        world.claim(name, 100, None, json!({"count": 2}));
        let constraint = json!([{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]);
        world.change_claim(name, |claim| claim["spec"]["devices"]["constraints"] = constraint);
        world.pod_with_claim(name, name, json!({}));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["near"]);
    assert_eq!(world.allocated().into_keys().collect::<Vec<_>>(), ["n/gpu-1", "n/gpu-3"]);
    assert!(world.why_waiting("far").contains("linked"), "{}", world.why_waiting("far"));
}

/// As in Kubernetes' own allocator, a constraint is about a single device, too: the device must have the attribute.
#[test]
fn a_single_device_has_what_a_constraint_compares() {
    let mut world = World::new();
    world.node("n", 0);
    let root = json!({"attributes": {"resource.kubernetes.io/pcieRoot": {"string": "a"}}});
    world.gpus_of("n", &[json!({}), root, json!({})]);
    world.claim("one", 100, None, json!({}));
    let constraint = json!([{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]);
    world.change_claim("one", |claim| claim["spec"]["devices"]["constraints"] = constraint);
    world.pod_with_claim("a", "one", json!({}));
    world.reconcile();
    assert_eq!(world.allocated().into_keys().collect::<Vec<_>>(), ["n/gpu-1"]);
}

#[test]
fn attributes_that_no_device_has_are_not_looked_for() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.reconcile();
    let compare = |world: &mut World, name: &str, attribute: &str| {
        world.claim(name, 10, None, json!({}));
        let constraint = json!([{"matchAttribute": attribute}]);
        world.change_claim(name, |claim| claim["spec"]["devices"]["constraints"] = constraint);
        let told = world.mirror.reconcile();
        told.iter().any(|of| matches!(of, aliquot_scheduler_engine::Observation::Node(_)))
    };
    assert!(!compare(&mut world, "other", "example.com/other"), "no node changes by this");
    assert!(compare(&mut world, "product", "gpu.aliquot.dev/productName"), "devices have this one");
    // It counts as soon as a device has it.
    world.publish("n", 1, json!({"attributes": {"example.com/other": {"string": "x"}}}));
    world.pod_with_claim("a", "other", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

/// A device that NVLink connects with no other one has a clique that no other one has.
#[test]
fn cliques_are_distinct_where_there_is_no_nvlink() {
    let mut world = World::new();
    world.node("n", 0);
    let clique = |name: &str| json!({"attributes": {"nvlinkClique": {"string": name}}});
    world.gpus_of("n", &[clique("a"), clique("b")]);
    let constraint = |word: &str| json!([{word: "gpu.aliquot.dev/nvlinkClique"}]);
    for (name, count, word) in
        [("same", 2, "matchAttribute"), ("one", 1, "matchAttribute"), ("two", 2, "distinctAttribute")]
    {
        world.claim(name, 25, None, json!({"count": count}));
        world.change_claim(name, |claim| claim["spec"]["devices"]["constraints"] = constraint(word));
        world.pod_with_claim(name, name, json!({}));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["one", "two"]);
}

/// The file is what a manager reads: the device's share in whole units, and the parameters of the class before those of
/// the claim.
#[test]
fn an_allocation_is_as_managers_expect_it() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let parameters = |fields: Value| {
        let mut parameters = json!({"apiVersion": "gpu.aliquot.dev/v1alpha1", "kind": "SliceConfig"});
        json_patch::merge(&mut parameters, &fields);
        json!({"driver": DRIVER, "parameters": parameters})
    };
    let class = json!({"metadata": {"name": "batch"}, "spec": {"config": [
        {"opaque": parameters(json!({"priorityClass": "batch", "coreLimitPercent": 100}))},
    ]}});
    world.mirror.device_class(typed::<DeviceClass>(&class));
    let request = json!({"deviceClassName": "batch", "capacity": {"requests": {"core": "24500m", "memory": "2Gi"}}});
    world.claim("c", 25, None, request);
    let config = json!([{"requests": ["gpu"], "opaque": parameters(json!({"coreLimitPercent": 60}))}]);
    world.change_claim("c", |claim| claim["spec"]["devices"]["config"] = config);
    world.pod_with_claim("a", "c", json!({}));
    world.reconcile();
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/claims/allocation.json");
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut allocation = world.claims["c"]["status"]["allocation"].clone();
    let share = allocation["devices"]["results"][0].as_object_mut().unwrap().remove("shareID");
    assert!(share.is_some_and(|share| share.is_string()), "a random name");
    assert_eq!(allocation, expected);
}

#[test]
fn a_tainted_device_is_given_to_who_tolerates_it() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let taint = json!({"taints": [{"key": "gpu.aliquot.dev/unhealthy", "effect": "NoSchedule"}]});
    world.publish("n", 1, taint);
    world.pod_with_part("a", 50, json!({}));
    world.claim("brave", 50, None, json!({"tolerations": [{"operator": "Exists"}]}));
    world.pod_with_claim("b", "brave", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.publish("n", 1, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn several_devices_of_one_request_are_different_ones() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.claim("two", 60, None, json!({"count": 2}));
    world.pod_with_claim("a", "two", json!({}));
    world.claim("again", 60, None, json!({"count": 2}));
    world.pod_with_claim("b", "again", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert_eq!(world.allocated().into_values().collect::<Vec<_>>(), [(60, 1 << 30), (60, 1 << 30)]);
}

#[test]
fn a_gang_with_claims_is_bound_as_a_whole() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let gang = json!({"metadata": {"annotations": {"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "2"}}});
    world.pod_with_part("a", 60, gang.clone());
    world.pod_with_part("b", 60, gang);
    world.reconcile();
    assert!(world.bound().is_empty() && world.allocated().is_empty());
    world.node_with_driver("m", 1);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn units_are_not_given_out_by_a_driver() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod("units", 30, json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.node("p", 1);
    world.reconcile();
    assert_eq!(world.bound()["units"], "p");
}

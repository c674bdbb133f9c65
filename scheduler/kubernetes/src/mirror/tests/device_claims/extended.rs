//! Pods with extended resources for which a device class stands.

use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::{Value, json};

use super::super::{Binding, World, typed};
use crate::dra::{ClaimFacts, DRIVER, Extended};

const RESOURCE: &str = "example.com/gpu";

impl World {
    /// A class of whole devices of our driver that stands for an extended resource.
    fn class_of_resource(&mut self, name: &str, created: &str) {
        let expression = format!("device.driver == {DRIVER:?}");
        let class = json!({
            "metadata": {"name": name, "creationTimestamp": created},
            "spec": {"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": RESOURCE},
        });
        self.mirror.device_class(typed::<DeviceClass>(&class));
    }

    /// What is written before a pod with extended resources is bound: its claim, and the pod's status.
    pub(super) fn make_extended(&mut self, binding: &Binding, name: &str, asked: &Extended) -> ClaimFacts {
        assert!(!self.claims.contains_key(name), "{name} is made twice");
        self.made += 1;
        let owner =
            json!({"apiVersion": "v1", "kind": "Pod", "name": binding.name, "uid": binding.uid, "controller": true});
        let claim = json!({
            "metadata": {
                "name": name, "namespace": "default", "uid": format!("claim-{}", self.made),
                "resourceVersion": self.made.to_string(),
                "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"},
                "ownerReferences": [owner],
            },
            "spec": {"devices": {"requests": asked.requests}},
        });
        let facts = ClaimFacts::of(typed(&claim)).unwrap();
        self.mirror.claim_was_made(&facts);
        self.claims.insert(name.into(), claim);
        self.mirror.resource_claim(facts.clone());
        let status = json!({"resourceClaimName": name, "requestMappings": asked.mappings});
        self.pods.get_mut(&binding.name).unwrap()["status"]["extendedResourceClaimStatus"] = status;
        facts
    }
}

/// Containers that ask for so many units of a resource.
fn asking(resource: &str, units: &[u32]) -> Value {
    let container = |(number, units): (usize, &u32)| json!({"name": format!("c{number}"), "resources": {"limits": {resource: units.to_string()}}});
    json!({"spec": {"containers": units.iter().enumerate().map(container).collect::<Vec<Value>>()}})
}

fn world(devices: usize) -> World {
    let mut world = World::new();
    world.node_with_driver("n", devices);
    world.show_device_claims();
    world.class_of_resource("units", "2026-01-01T00:00:00Z");
    world
}

#[test]
fn a_claim_is_made_for_what_a_class_stands_for() {
    let mut world = world(3);
    world.pod("p", 0, asking(RESOURCE, &[1, 2]));
    world.reconcile();
    assert_eq!(world.bound()["p"], "n");
    let (name, claim) = world.claims.first_key_value().unwrap();
    let uid = world.pods["p"]["metadata"]["uid"].as_str().unwrap();
    assert!(name.starts_with("p-extended-resources-"), "{name}");
    assert_eq!(claim["status"]["reservedFor"][0]["uid"], uid);
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().unwrap();
    let devices: std::collections::BTreeSet<&str> = results.iter().map(|of| of["device"].as_str().unwrap()).collect();
    assert_eq!((results.len(), devices.len()), (3, 3));
    assert_eq!(results[0]["request"], "container-0-request-0");
    // No device is left, neither by this name nor by the resource that every class stands for.
    let own = format!("deviceclass.resource.kubernetes.io/{DRIVER}");
    world.pod("q", 0, asking(&own, &[1]));
    world.reconcile();
    assert!(world.why_waiting("q").contains("too few devices"), "{}", world.why_waiting("q"));
    // The next leader finds what is held, and what is given back when the pod is gone.
    world.change_leader();
    world.class_of_resource("units", "2026-01-01T00:00:00Z");
    world.reconcile();
    assert!(!world.bound().contains_key("q"));
    world.delete("p");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.bound()["q"], "n");
}

#[test]
fn a_claim_whose_pod_was_not_bound_is_deleted_first() {
    let mut world = world(1);
    world.pod("p", 0, asking(RESOURCE, &[1]));
    let uid = world.pods["p"]["metadata"]["uid"].clone();
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true});
    let left = json!({
        "metadata": {
            "name": "p-extended-resources-left", "namespace": "default", "uid": "left", "resourceVersion": "1",
            "annotations": {"resource.kubernetes.io/extended-resource-claim": "true"}, "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": []}},
    });
    world.claims.insert("p-extended-resources-left".into(), left.clone());
    world.mirror.resource_claim(ClaimFacts::of(typed(&left)).unwrap());
    world.hear();
    let why = world.why_waiting("p");
    assert!(why.contains("\"p-extended-resources-left\" was made for its extended resources"), "{why}");
    world.reconcile();
    assert_eq!(world.bound()["p"], "n");
    assert_eq!(world.claims.keys().filter(|name| name.contains("left")).count(), 0);
}

#[test]
fn where_a_device_plugin_offers_the_resource_it_is_counted() {
    let mut world = world(1);
    world.node("plugin", 0);
    let mut node = world.nodes["plugin"].clone();
    node["status"]["allocatable"][RESOURCE] = "1".into();
    world.make_node("plugin", node.clone());
    for name in ["p", "q"] {
        world.pod(name, 0, asking(RESOURCE, &[1]));
    }
    world.reconcile();
    assert_eq!(world.bound().values().collect::<Vec<_>>(), [&"plugin"]);
    assert!(world.claims.is_empty());
    // When it offers none any more, the class stands for it.
    node["status"]["allocatable"][RESOURCE] = "0".into();
    world.make_node("plugin", node);
    world.reconcile();
    assert_eq!((world.bound().len(), world.claims.len()), (2, 1));
}

#[test]
fn what_a_node_would_refuse_of_extended_resources_waits() {
    let mut world = world(3);
    let mut spec = asking(RESOURCE, &[1, 1]);
    let init = json!({"name": "setup", "resources": {"limits": {RESOURCE: "2"}}});
    spec["spec"]["initContainers"] = json!([init]);
    world.pod("p", 0, spec);
    let mut half = asking(RESOURCE, &[1]);
    half["spec"]["containers"][0]["resources"]["limits"][RESOURCE] = "500m".into();
    world.pod("half", 0, half);
    world.reconcile();
    assert!(world.bound().is_empty());
    let why = world.why_waiting("p");
    assert!(why.contains("\"setup\" and \"c0\" have some requests of the claim \"extended resources\""), "{why}");
    assert!(world.why_waiting("half").contains("whole number of devices"), "{}", world.why_waiting("half"));
}

//! Claims for all devices of a node.

use serde_json::{Value, json};

use super::super::{World, typed};
use crate::dra::DRIVER;
use crate::mirror::AboutDevices;

impl World {
    /// A pod with a claim of its name for such a part of each device of a node.
    pub(super) fn pod_with_all(&mut self, name: &str, percent: u32, more: Value) {
        let mut all = json!({"allocationMode": "All"});
        json_patch::merge(&mut all, &more);
        self.claim(name, percent, None, all);
        self.pod_with_claim(name, name, json!({}));
    }

    /// What a claim has: pools and devices.
    fn devices_of(&self, claim: &str) -> Vec<String> {
        let results = self.claims[claim]["status"]["allocation"]["devices"]["results"].as_array();
        let text = |of: &Value| of.as_str().unwrap().to_owned();
        results.into_iter().flatten().map(|of| format!("{}/{}", text(&of["pool"]), text(&of["device"]))).collect()
    }
}

#[test]
fn a_claim_for_all_gets_each_device_of_a_node() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.node_with_driver("m", 3);
    world.pod_with_all("a", 60, json!({}));
    world.reconcile();
    // The smaller node is preferred.
    assert_eq!(world.devices_of("a"), ["n/gpu-0", "n/gpu-1"]);
    world.pod_with_all("b", 60, json!({}));
    world.reconcile();
    assert_eq!(world.devices_of("b"), ["m/gpu-0", "m/gpu-1", "m/gpu-2"]);
    world.pod_with_all("c", 60, json!({}));
    world.pod_with_all("d", 40, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "d"]);
    let why = world.why_waiting("c");
    assert!(why.contains("nearest is node \"m\"") && why.contains("of the 3 devices"), "{why}");
    // The next leader knows what they have.
    world.change_leader();
    world.delete("b");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.devices_of("c"), ["m/gpu-0", "m/gpu-1", "m/gpu-2"]);
}

/// Kubernetes' own allocator would give the claim the other device alone.
#[test]
fn a_device_that_is_taken_is_one_of_all() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.claim("one", 60, None, json!({}));
    world.pod_with_claim("b", "one", json!({}));
    world.reconcile();
    world.pod_with_all("a", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.delete("b");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.devices_of("a"), ["n/gpu-0", "n/gpu-1"]);
}

#[test]
fn a_device_that_will_not_do_keeps_the_claim_from_the_node() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.taint("repair", json!({"pool": "n", "device": "gpu-1"}));
    world.pod_with_all("a", 50, json!({}));
    // A part of the other device alone is free to take.
    world.claim("one", 50, None, json!({}));
    world.pod_with_claim("b", "one", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.untaint("repair");
    world.reconcile();
    assert_eq!(world.devices_of("a"), ["n/gpu-0", "n/gpu-1"]);
}

#[test]
fn a_device_that_is_too_small_is_not_meant_tainted_or_not() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    let mut slice = world.slices["n"].clone();
    slice["spec"]["pool"]["generation"] = json!(100);
    slice["spec"]["devices"][1]["capacity"]["memory"]["value"] = json!("40Gi");
    world.mirror.resource_slice(typed(&slice));
    world.taint("repair", json!({"pool": "n", "device": "gpu-1"}));
    world.pod_with_all("a", 50, json!({"capacity": {"requests": {"memory": "60Gi"}}}));
    world.reconcile();
    assert_eq!(world.devices_of("a"), ["n/gpu-0"]);
}

#[test]
fn only_devices_that_the_expressions_select_are_meant() {
    let mut world = World::new();
    world.node_with_driver("n", 3);
    let mut slice = world.slices["n"].clone();
    slice["spec"]["pool"]["generation"] = json!(100);
    slice["spec"]["devices"][1]["attributes"]["productName"]["string"] = json!("A100");
    world.mirror.resource_slice(typed(&slice));
    let expression = format!("device.attributes[\"{DRIVER}\"].productName == \"H100\"");
    world.pod_with_all("a", 50, json!({"selectors": [{"cel": {"expression": expression}}]}));
    world.reconcile();
    assert_eq!(world.devices_of("a"), ["n/gpu-0", "n/gpu-2"]);
}

#[test]
fn a_list_may_prefer_all_devices() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.claim("a", 100, None, json!({}));
    world.change_claim("a", |claim| {
        let capacity = json!({"requests": {"core": "100", "memory": "1Gi"}});
        claim["spec"]["devices"]["requests"] = json!([{"name": "gpu", "firstAvailable": [
            {"name": "every", "deviceClassName": DRIVER, "capacity": capacity, "allocationMode": "All"},
            {"name": "one", "deviceClassName": DRIVER, "capacity": capacity},
        ]}]);
    });
    let again = world.claims["a"]["spec"].clone();
    world.claim("b", 100, None, json!({}));
    world.change_claim("b", |claim| claim["spec"] = again);
    world.claim("first", 100, None, json!({}));
    world.pod_with_claim("p", "first", json!({}));
    world.reconcile();
    world.pod_with_claim("a", "a", json!({}));
    world.reconcile();
    assert_eq!(world.devices_of("a").len(), 1, "one of the devices is taken");
    world.delete("a");
    world.delete("p");
    world.collect_claims();
    world.pod_with_claim("b", "b", json!({}));
    world.reconcile();
    let results = &world.claims["b"]["status"]["allocation"]["devices"]["results"];
    assert_eq!((world.devices_of("b").len(), &results[0]["request"]), (2, &json!("gpu/every")));
}

#[test]
fn the_number_of_devices_may_change_while_a_pod_waits() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.claim("first", 100, None, json!({}));
    world.pod_with_claim("p", "first", json!({}));
    world.reconcile();
    world.pod_with_all("a", 100, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["p"]);
    world.publish("n", 4, json!({}));
    world.reconcile();
    world.delete("p");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.devices_of("a").len(), 4);
}

#[test]
fn a_device_that_is_too_small_is_none_of_all() {
    let mut world = World::new();
    world.node_with_driver("n", 3);
    let mut slice = world.slices["n"].clone();
    slice["spec"]["pool"]["generation"] = json!(100);
    slice["spec"]["devices"][1]["capacity"]["memory"]["value"] = json!("512Mi");
    world.mirror.resource_slice(typed(&slice));
    world.pod_with_all("a", 50, json!({}));
    world.reconcile();
    assert_eq!(world.devices_of("a"), ["n/gpu-0", "n/gpu-2"], "{}", world.why_waiting("a"));
}

#[test]
fn the_first_entry_of_a_list_counts_more_than_the_number() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.node_with_driver("m", 4);
    world.claim("half", 50, None, json!({}));
    // On the smaller node the first entry of the list has no room beside all.
    world.claim("some", 30, None, json!({"allocationMode": "All"}));
    world.pod_with_claim("p", "some", json!({}));
    world.reconcile();
    let capacity = |core: &str| json!({"requests": {"core": core, "memory": "1Gi"}});
    world.change_claim("half", |claim| {
        claim["spec"]["devices"]["requests"] = json!([
            {"name": "list", "firstAvailable": [
                {"name": "large", "deviceClassName": DRIVER, "capacity": capacity("60")},
                {"name": "small", "deviceClassName": DRIVER, "capacity": capacity("10")},
            ]},
            {"name": "all", "exactly": {
                "deviceClassName": DRIVER, "allocationMode": "All", "capacity": capacity("20"),
            }},
        ]);
    });
    world.pod_with_claim("a", "half", json!({}));
    world.reconcile();
    let results = &world.claims["half"]["status"]["allocation"]["devices"]["results"];
    assert_eq!(results[0]["request"], json!("list/large"), "{}", world.why_waiting("a"));
}

#[test]
fn a_claim_gets_32_devices_at_most() {
    let mut world = World::new();
    world.node_with_driver("n", 20);
    let all = |name: &str| {
        let capacity = json!({"requests": {"core": "10", "memory": "1Gi"}});
        json!({"name": name, "exactly": {
            "deviceClassName": DRIVER, "allocationMode": "All", "capacity": capacity,
        }})
    };
    for (name, requests) in [("two", json!([all("x"), all("y")])), ("one", json!([all("x")]))] {
        world.claim(name, 10, None, json!({}));
        world.change_claim(name, |claim| claim["spec"]["devices"]["requests"] = requests);
        world.pod_with_claim(name, name, json!({}));
    }
    world.node_with_driver("m", 33);
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.devices_of("one").len()), (vec!["one"], 20));
}

#[test]
fn all_devices_of_several_drivers_are_refused() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.nics("n", 1);
    world.class("any", "true");
    world.pod_with_all("a", 50, json!({"deviceClassName": "any", "capacity": null}));
    world.reconcile();
    let why = world.why_waiting("a");
    assert!(world.bound().is_empty() && why.contains("devices of the driver nic.example.com, too"), "{why}");
}

#[test]
fn a_node_with_more_devices_than_a_claim_gets_is_named() {
    let mut world = World::new();
    world.node_with_driver("n", 33);
    world.pod_with_all("a", 50, json!({}));
    world.reconcile();
    let about = |world: &World| world.mirror.about_devices(&world.uid("a"), &mut AboutDevices::default());
    assert!(world.bound().is_empty());
    let said = about(&world);
    let expected = "a request asks for all devices of a node, a claim gets 32 at most, and node n has 33";
    assert_eq!(said, [expected]);
    world.publish("n", 32, json!({}));
    world.reconcile();
    assert_eq!(world.devices_of("a").len(), 32, "{:?}", about(&world));
}

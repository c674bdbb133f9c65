//! When what a claim has is given back, and when not yet.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::{World, Write};

#[test]
fn a_pod_that_has_ended_has_its_part_until_it_is_given_back() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("a", 100, json!({}));
    world.reconcile();
    world.pods.get_mut("a").unwrap()["status"]["phase"] = "Succeeded".into();
    world.show("a");
    world.pod_with_part("b", 100, json!({}));
    world.reconcile();
    assert_eq!(world.log, ["a to n"]);
    let uid = world.pods["a"]["metadata"]["uid"].as_str().unwrap().to_owned();
    world.end_use("a-gpu", &uid);
    world.reconcile();
    assert_eq!(world.log, ["a to n", "b to n"]);
}

#[test]
fn a_pod_that_is_gone_is_no_peer_while_it_has_its_part() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    let labels = json!({"app": "web"});
    world.pod_with_part("a", 50, json!({"metadata": {"labels": labels}}));
    world.reconcile();
    world.delete("a");
    let term = json!({"topologyKey": "metadata.name", "labelSelector": {"matchLabels": labels}});
    let near = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    world.pod_with_part("b", 50, json!({"spec": {"affinity": near}}));
    world.reconcile();
    assert_eq!(world.allocated(), BTreeMap::from([("n/gpu-0".to_owned(), (50, 1 << 30))]));
    assert!(world.why_waiting("b").contains("affinity"), "{}", world.why_waiting("b"));
}

#[test]
fn an_allocation_without_a_binding_is_given_back_by_the_next() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.pod_with_part("a", 60, json!({}));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    assert!(world.reserve(&binding));
    world.change_leader();
    world.pod_with_part("b", 60, json!({}));
    world.reconcile();
    assert_eq!(world.log[0], "a-gpu given back");
    assert_eq!(world.bound().len(), 1);
    assert_eq!(world.allocated().into_values().collect::<Vec<_>>(), [(60, 1 << 30)]);
}

#[test]
fn a_claim_given_back_while_a_pod_waits_for_it_is_made_anew() {
    for order in [["x", "y"], ["y", "x"]] {
        let mut world = World::new();
        world.node_with_driver("n", 1);
        for (name, percent) in [("x", 60), ("y", 30), ("z", 20)] {
            world.claim(name, percent, None, json!({}));
        }
        for (pod, claims) in [("a", ["x", "y"]), ("b", ["y", "z"])] {
            let claims = claims.map(|name| json!({"name": name, "resourceClaimName": name}));
            world.pod(pod, 0, json!({"spec": {"resourceClaims": claims}}));
            world.reconcile();
        }
        assert_eq!(world.names_of_bound(), ["a"], "the device is full");
        let uid = world.pods["a"]["metadata"]["uid"].as_str().unwrap().to_owned();
        // While a's claims are allocated, b has a place on the device and waits there for a to leave. It needs one part.
        world.delete("a");
        world.reconcile();
        for claim in order {
            world.end_use(claim, &uid);
            world.reconcile();
        }
        assert_eq!(world.names_of_bound(), ["b"], "{:?}", world.log);
        assert_eq!(world.log, ["a to n", "b to n"]);
    }
}

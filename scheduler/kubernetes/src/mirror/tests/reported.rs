//! What managers say of their nodes' devices, and which pods it concerns.

use serde_json::json;

use super::World;
use super::policies::{policy, with_policy};
use crate::mirror::{DeviceSaid, DevicesSaid};
use crate::scheduling_policy::Enforcement;

fn said(device: &str, said: DeviceSaid) -> Option<DevicesSaid> {
    Some([(device.to_owned(), said)].into())
}

fn ill() -> DeviceSaid {
    DeviceSaid { problem: Some("XID 79".into()), ..DeviceSaid::default() }
}

#[test]
fn a_device_that_its_manager_calls_ill_gets_nothing_new() {
    let mut world = World::new();
    // The manager may be heard before its node is known.
    world.mirror.manager_says("n", said("n-0", ill()));
    world.node("n", 1);
    world.pod("a", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), [""; 0]);
    let [found] = world.mirror.ill_devices().try_into().unwrap();
    assert_eq!((found.node.as_str(), found.uuid.as_deref(), found.problem.as_str()), ("n", Some("n-0"), "XID 79"));
    world.mirror.manager_says("n", said("n-0", DeviceSaid::default()));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // Bound pods stay, and a silent manager is like no manager.
    world.mirror.manager_says("n", said("n-0", ill()));
    world.pod("b", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.mirror.manager_says("n", None);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    assert!(world.mirror.ill_devices().is_empty());
}

#[test]
fn a_manager_says_nothing_about_another_node() {
    let mut world = World::new();
    world.node("n", 1);
    world.mirror.manager_says("m", said("n-0", ill()));
    world.node("m", 0);
    world.pod("a", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn devices_that_claims_are_for_are_known_by_their_uuid() {
    let mut world = World::new();
    world.node_with_driver("d", 1);
    world.publish("d", 1, json!({"attributes": {"uuid": {"string": "GPU-d"}}}));
    world.mirror.manager_says("d", said("GPU-d", ill()));
    world.pod_with_part("a", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), [""; 0]);
    world.mirror.manager_says("d", said("GPU-d", DeviceSaid::default()));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn memory_in_use_that_nobody_was_given_counts_for_thresholds() {
    let mut world = World::new();
    world.node("n", 1);
    policy(&mut world, "roomy", json!({"memoryPolicy": {"usedPercentMax": 60}}));
    world.mirror.manager_says("n", said("n-0", DeviceSaid { outside_percent: 30, ..DeviceSaid::default() }));
    world.pod("a", 40, with_policy("roomy", json!({})));
    // Without a threshold memory counts as it is given out.
    world.pod("b", 30, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.delete("b");
    world.mirror.manager_says("n", said("n-0", DeviceSaid { outside_percent: 20, ..DeviceSaid::default() }));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn who_wants_parts_to_be_kept_strictly_gets_only_such_devices() {
    let mut world = World::new();
    world.node("n", 1);
    world.node("m", 1);
    policy(&mut world, "exact", json!({"enforcement": "Shares"}));
    policy(&mut world, "apart", json!({"enforcement": "Hardware"}));
    let kept = |enforcement| DeviceSaid { enforcement, ..DeviceSaid::default() };
    // It is not known how parts are kept on the one node, and the other one shares by MPS.
    world.mirror.manager_says("m", said("m-0", kept(Enforcement::Any)));
    world.pod("a", 50, with_policy("exact", json!({})));
    world.pod("b", 50, with_policy("apart", json!({})));
    world.pod("c", 10, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["c"]);
    assert!(world.why_waiting("a").contains("guaranteed shares"), "{}", world.why_waiting("a"));
    world.mirror.manager_says("m", said("m-0", kept(Enforcement::Shares)));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c"]);
    assert_eq!(world.bound()["a"], "m");
    world.mirror.manager_says("n", said("n-0", kept(Enforcement::Hardware)));
    world.reconcile();
    assert_eq!(world.bound()["b"], "n");
    // When a manager is silent for a while, bound pods keep what they have.
    world.mirror.manager_says("n", None);
    world.mirror.manager_says("m", None);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
}

#[test]
fn each_choice_of_a_list_is_kept_as_strictly() {
    let mut world = World::new();
    world.node("n", 0);
    world.publish("n", 1, json!({"attributes": {"uuid": {"string": "GPU-n"}}}));
    policy(&mut world, "exact", json!({"enforcement": "Shares"}));
    world.claim_of_list("a", &[("large", 60), ("small", 20)]);
    world.pod_with_claim("a", "a", with_policy("exact", json!({})));
    world.reconcile();
    assert_eq!(world.names_of_bound(), [""; 0]);
    world
        .mirror
        .manager_says("n", said("GPU-n", DeviceSaid { enforcement: Enforcement::Shares, ..DeviceSaid::default() }));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn the_pod_that_keeps_devices_of_a_node_back_is_named() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("foreign", 10, json!({"spec": {"schedulerName": "other", "nodeName": "n"}}));
    world.pod("a", 50, json!({}));
    world.reconcile();
    let [found] = world.mirror.ill_devices().try_into().unwrap();
    assert_eq!((found.node.as_str(), &found.uuid), ("n", &None));
    assert!(found.problem.contains("pod default/foreign"), "{}", found.problem);
    let why = world.why_waiting("a");
    assert!(why.contains("no node has room") && !why.contains("large enough"), "{why}");
    world.delete("foreign");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert!(world.mirror.ill_devices().is_empty());
}

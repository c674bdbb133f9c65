//! DeviceTaintRules.

use k8s_openapi::api::resource::v1::DeviceClass;
use serde_json::{Value, json};

use super::super::{World, typed};
use super::NIC;
use crate::dra::{DRIVER, TaintRule};
use crate::mirror::{AboutDevices, Access};

impl World {
    /// A rule of this name that taints the selected devices.
    pub(super) fn taint(&mut self, rule: &str, selector: Value) {
        let taint = json!({"key": "repair", "value": "today", "effect": "NoSchedule"});
        let read = TaintRule::of(&json!({"spec": {"deviceSelector": selector, "taint": taint}})).unwrap();
        self.mirror.device_taint_rule(rule, Some(read));
    }

    pub(super) fn untaint(&mut self, rule: &str) {
        self.mirror.device_taint_rule(rule, None);
    }
}

#[test]
fn a_tainted_gpu_is_given_only_to_claims_that_tolerate_it() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.taint("repair", json!({"driver": DRIVER, "pool": "n"}));
    world.claim("plain", 50, None, json!({}));
    world.pod_with_claim("a", "plain", json!({}));
    let toleration = json!({"key": "repair", "operator": "Exists"});
    world.claim("tolerant", 30, None, json!({"tolerations": [toleration]}));
    world.pod_with_claim("b", "tolerant", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    assert!(world.why_waiting("a").contains("DeviceClass"), "{}", world.why_waiting("a"));
    let said = world.mirror.tainted_for(&world.uid("a"), &mut AboutDevices::default()).unwrap();
    assert!(said.contains("n/gpu-0 of gpu.aliquot.dev") && said.contains("repair=today:NoSchedule"), "{said}");
    // Another leader reads the slices and the rule anew.
    world.change_leader();
    world.taint("repair", json!({"driver": DRIVER, "pool": "n"}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.untaint("repair");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_tainted_card_is_not_given_out() {
    let mut world = World::new();
    world.node_with_driver("n", 0);
    world.nics("n", 2);
    world.taint("first", json!({"driver": NIC, "device": "nic-0"}));
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    assert_eq!(world.cards_given_out(), ["nic n-nics/nic-1"]);
    world.pod_with_nic("b", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // The rule now taints a card that has been given out already.
    world.taint("first", json!({"driver": NIC, "device": "nic-1"}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn no_further_pod_shares_a_claim_whose_device_is_tainted() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("shared", 60, None, json!({}));
    world.pod_with_claim("a", "shared", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.taint("repair", json!({"driver": DRIVER, "pool": "n"}));
    world.pod_with_claim("b", "shared", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "the pod that runs stays");
    let why = world.why_waiting("b");
    assert!(why.contains("gpu.aliquot.dev/n/gpu-0 has the taint repair:NoSchedule"), "{why}");
    world.untaint("repair");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_claim_that_tolerates_the_taint_is_shared_on() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("shared", 60, None, json!({"tolerations": [{"key": "repair", "operator": "Exists"}]}));
    world.pod_with_claim("a", "shared", json!({}));
    world.reconcile();
    world.taint("repair", json!({"driver": DRIVER, "pool": "n"}));
    world.pod_with_claim("b", "shared", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_slice_and_several_rules_add_up() {
    let mut world = World::new();
    world.node_with_driver("n", 0);
    let of_driver = json!([{"name": "nic-0", "taints": [{"key": "cable", "effect": "NoSchedule"}]}]);
    world.pool_of_nics("n-nics", json!({"nodeName": "n"}), of_driver);
    world.taint("one", json!({}));
    let tolerations = json!([{"key": "cable", "operator": "Exists"}]);
    world.pod_with_nic("a", json!({"tolerations": tolerations}));
    world.reconcile();
    assert!(world.bound().is_empty(), "the taint of the rule is not tolerated");
    world.taint("two", json!({"pool": "n-nics"}));
    world.untaint("one");
    world.reconcile();
    assert!(world.bound().is_empty(), "the other rule has the same taint");
    world.taint("two", json!({"device": "nic-1"}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_rule_of_1_34_means_devices_of_a_class_and_of_expressions() {
    let mut world = World::new();
    world.node_with_driver("n", 0);
    let card = |name: &str, speed: u32| json!({"name": name, "attributes": {"speed": {"int": speed}}});
    let cards = json!([card("nic-0", 100), card("nic-1", 400), {"name": "nic-2"}]);
    world.pool_of_nics("n-nics", json!({"nodeName": "n"}), cards);
    let expression = |text: &str| json!([{"cel": {"expression": format!("device.attributes['{NIC}'].speed {text}")}}]);
    world.taint("slow", json!({"selectors": expression("< 200")}));
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    assert_eq!(world.cards_given_out(), ["nic n-nics/nic-1"]);
    // The rule does not mean a card without the attribute.
    world.pod_with_nic("b", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.pod_with_nic("c", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    // No device is of a class that is not there.
    world.taint("slow", json!({"deviceClassName": "slow"}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
    ["a", "b", "c"].into_iter().for_each(|name| world.delete(name));
    world.collect_claims();
    let class = |text: &str| json!({"metadata": {"name": "slow"}, "spec": {"selectors": expression(text)}});
    world.mirror.device_class(typed::<DeviceClass>(&class("< 200")));
    world.pod_with_nic("d", json!({}));
    world.reconcile();
    assert_eq!(world.cards_given_out(), ["nic n-nics/nic-1"]);
    world.mirror.device_class(typed::<DeviceClass>(&class("< 900")));
    world.delete("d");
    world.collect_claims();
    world.pod_with_nic("e", json!({}));
    world.reconcile();
    assert_eq!(world.cards_given_out(), ["nic n-nics/nic-2"]);
}

#[test]
fn claims_wait_while_the_rules_may_not_be_read() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.node("m", 1);
    world.mirror.device_taint_rules_are(Access::Forbidden);
    world.claim("gpu", 50, None, json!({}));
    world.pod_with_claim("a", "gpu", json!({}));
    world.pod("b", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    assert!(world.why_waiting("a").contains("may not read devicetaintrules"), "{}", world.why_waiting("a"));
    world.mirror.device_taint_rules_are(Access::Read);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

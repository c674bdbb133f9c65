//! Devices that must be made ready before their pod is bound.

use aliquot_scheduler_engine::ClaimUid;
use serde_json::{Value, json};

use super::super::{Readiness, World, Write, typed};
use super::NIC;
use crate::mirror::DeviceId;

/// Cards that must be made ready.
fn slow_cards(names: &[&str]) -> Value {
    let conditions = json!({"bindingConditions": ["Near"], "bindingFailureConditions": ["Broken"]});
    let card = |name: &&str| {
        let mut card = conditions.clone();
        card["name"] = (*name).into();
        card
    };
    names.iter().map(card).collect()
}

/// Nodes with one such card each.
fn with_slow_cards(nodes: &[&str]) -> World {
    let mut world = World::new();
    for node in nodes {
        world.node(node, 0);
        world.pool_of_nics(&format!("{node}-nics"), json!({"nodeName": node}), slow_cards(&["x"]));
    }
    world
}

impl World {
    /// What the driver says of all devices of a claim.
    fn say_of(&mut self, claim: &str, condition: &str) {
        let condition = json!({
            "type": condition, "status": "True", "reason": "Said", "message": "by the driver",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        self.change_claim(claim, |claim| {
            let status = |of: &Value| {
                let (driver, pool, device) = (&of["driver"], &of["pool"], &of["device"]);
                json!({"driver": driver, "pool": pool, "device": device, "conditions": [condition]})
            };
            let results = claim["status"]["allocation"]["devices"]["results"].as_array().unwrap();
            claim["status"]["devices"] = results.iter().map(status).collect();
        });
    }

    /// The pool of the card that a claim has.
    fn pool_of(&self, claim: &str) -> Option<&str> {
        self.claims[claim]["status"]["allocation"]["devices"]["results"][0]["pool"].as_str()
    }

    /// Why a pod could not be bound.
    fn complaint(&self, name: &str) -> String {
        let claim = self.view.as_ref().unwrap().claim(&ClaimUid::from(self.uid(name).as_str())).unwrap();
        claim.complaint.expect("it could not be bound").to_string()
    }

    /// Looks whether the devices of a waiting pod are ready, and binds it if they are.
    fn look_at(&mut self, name: &str) {
        let place =
            self.unready.iter().position(|binding| binding.name == name).expect("the pod waits for its devices");
        let binding = self.unready.remove(place);
        self.bind_if_ready(binding);
    }

    fn gang_with_slow_cards(&mut self, size: usize) {
        for number in 0..size {
            let name = format!("member-{number}");
            self.pod_with_nic(&name, json!({}));
            self.join_gang(&name, "g", size);
        }
    }
}

#[test]
fn a_pod_is_bound_when_its_card_is_ready() {
    let mut world = with_slow_cards(&["n"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
    let allocation = &world.claims["a"]["status"]["allocation"];
    let result = &allocation["devices"]["results"][0];
    let conditions = (&result["bindingConditions"], &result["bindingFailureConditions"]);
    assert_eq!(conditions, (&json!(["Near"]), &json!(["Broken"])));
    assert!(allocation["allocationTimestamp"].is_string(), "{allocation}");
    // The card is taken meanwhile.
    world.pod_with_nic("b", json!({}));
    world.reconcile();
    assert_eq!(world.pool_of("b"), None);
    world.say_of("a", "Near");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_card_that_fails_is_given_back_and_another_is_tried() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    let first = world.pool_of("a").unwrap().to_owned();
    world.say_of("a", "Broken");
    world.now_ms += 1_000;
    world.hear();
    let binding = world.unready.pop().expect("the pod waits for its card");
    world.bind_if_ready(binding);
    assert_eq!((world.log.last().map(String::as_str), world.pool_of("a")), (Some("a given up"), None));
    world.hear();
    world.poll();
    let why = world.complaint("a");
    assert!(why.contains("\"Broken\"") && why.contains(&first) && why.contains("by the driver"), "{why}");
    world.reconcile();
    let second = world.pool_of("a").unwrap().to_owned();
    assert_ne!(first, second);
    world.say_of("a", "Near");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // The card that failed is free again a while later.
    world.pod_with_nic("b", json!({}));
    world.reconcile();
    assert_eq!(world.pool_of("b"), None);
    world.mirror.shun_devices_no_more([((NIC.to_owned(), first.clone()), "x".to_owned())].into());
    world.reconcile();
    assert_eq!(world.pool_of("b"), Some(first.as_str()));
}

#[test]
fn a_card_is_awaited_for_ten_minutes() {
    let mut world = with_slow_cards(&["n"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    world.now_ms += 570_000;
    world.reconcile();
    assert!(world.log.is_empty(), "{:?}", world.log);
    world.now_ms += 20_000;
    world.reconcile();
    assert_eq!(world.log, ["a given up"]);
    assert_eq!(world.pool_of("a"), None);
    let why = world.complaint("a");
    assert!(why.contains("\"Near\"") && why.contains("after ten minutes"), "{why}");
}

#[test]
fn a_gang_is_bound_when_all_its_cards_are_ready() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.gang_with_slow_cards(2);
    world.reconcile();
    world.say_of("member-0", "Near");
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.say_of("member-1", "Near");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["member-0", "member-1"]);
}

#[test]
fn a_member_without_a_card_waits_for_the_others() {
    let mut world = with_slow_cards(&["n"]);
    world.gang_with_slow_cards(1);
    world.pod("plain", 0, json!({}));
    for name in ["member-0", "plain"] {
        world.join_gang(name, "g", 2);
    }
    world.reconcile();
    assert!(world.pool_of("member-0").is_some() && world.bound().is_empty(), "{:?}", world.log);
    world.say_of("member-0", "Near");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["member-0", "plain"]);
}

#[test]
fn a_gang_is_given_up_with_the_card_of_one_member() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.gang_with_slow_cards(2);
    world.reconcile();
    world.say_of("member-0", "Near");
    world.say_of("member-1", "Broken");
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    assert_eq!((world.pool_of("member-0"), world.pool_of("member-1")), (None, None), "{:?}", world.log);
    let mut given_up = world.log.clone();
    given_up.sort();
    assert_eq!(given_up, ["member-0 given up", "member-1 given up"]);
}

#[test]
fn a_pod_is_not_bound_without_what_was_reserved() {
    type Change = fn(&mut World);
    let changes: [(Change, &str); 4] = [
        (|world| world.remove_claim("a"), "is gone"),
        (
            |world| world.change_claim("a", |claim| claim["status"]["allocation"] = Value::Null),
            "not allocated any more",
        ),
        (|world| world.change_claim("a", |claim| claim["status"]["reservedFor"] = json!([])), "not reserved"),
        (|world| world.change_claim("a", |claim| claim["metadata"]["uid"] = "other".into()), "another one of its name"),
    ];
    for (change, said) in changes {
        let mut world = with_slow_cards(&["n"]);
        world.pod_with_nic("a", json!({}));
        world.reconcile();
        world.say_of("a", "Near");
        change(&mut world);
        let found = world.mirror.readiness(&world.unready[0], world.now_ms.cast_signed(), false);
        let Readiness::GivenUp { why, .. } = found else { panic!("{said}: {found:?}") };
        assert!(why.contains("ResourceClaim \"a\"") && why.contains(said), "{why}");
    }
}

#[test]
fn a_pod_is_not_bound_to_another_node_of_the_name() {
    let mut world = with_slow_cards(&["n"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    world.say_of("a", "Near");
    world.node("n", 0);
    world.look_at("a");
    assert_eq!(world.log, ["a given up"]);
    world.reconcile();
    world.say_of("a", "Near");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_gang_is_given_up_with_a_member_that_is_deleted() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.gang_with_slow_cards(2);
    world.reconcile();
    for name in ["member-0", "member-1"] {
        world.say_of(name, "Near");
    }
    world.delete("member-0");
    // It is looked at before the engine hears of this.
    world.look_at("member-1");
    assert_eq!(world.log, ["member-1 given up"]);
    world.hear();
    world.poll();
    let why = world.complaint("member-1");
    assert!(why.contains("default/member-0") && why.contains("deleted"), "{why}");
}

#[test]
fn a_gang_is_given_up_with_a_member_that_leaves() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.gang_with_slow_cards(2);
    world.reconcile();
    world.say_of("member-0", "Near");
    world.look_at("member-0");
    world.pods.get_mut("member-0").unwrap()["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.show("member-0");
    world.say_of("member-1", "Near");
    world.look_at("member-1");
    assert_eq!(world.log, ["member-1 given up"]);
}

#[test]
fn a_gang_is_given_up_with_the_node_of_one_member() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.gang_with_slow_cards(2);
    world.reconcile();
    for name in ["member-0", "member-1"] {
        world.say_of(name, "Near");
    }
    let node = world.unready.iter().find(|binding| binding.name == "member-0").unwrap().node.clone();
    world.remove_node(&node);
    world.look_at("member-0");
    world.look_at("member-1");
    assert_eq!(world.log, ["member-0 given up", "member-1 given up"]);
}

#[test]
fn a_gang_is_given_up_if_a_claim_is_not_reserved() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.gang_with_slow_cards(2);
    world.wait_for_writes();
    let mut writes = std::mem::take(&mut world.writes);
    let (second, first) = (writes.pop().unwrap(), writes.pop().unwrap());
    let Write::Bind(first) = first else { panic!("{first:?} is no binding") };
    world.carry_out(second);
    world.end_binding(&first, Err("the claim has changed".to_owned()));
    let name = world.unready[0].name.clone();
    world.say_of(&name, "Near");
    world.look_at(&name);
    assert_eq!(world.log, [format!("{name} given up")]);
}

#[test]
fn a_gang_that_runs_goes_on_without_a_new_member() {
    let mut world = with_slow_cards(&["n", "m"]);
    for name in ["plain-0", "plain-1"] {
        world.pod(name, 0, json!({}));
        world.join_gang(name, "g", 2);
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["plain-0", "plain-1"]);
    for name in ["new-0", "new-1"] {
        world.pod_with_nic(name, json!({}));
        world.join_gang(name, "g", 2);
    }
    world.reconcile();
    world.say_of("new-0", "Broken");
    world.say_of("new-1", "Near");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["new-1", "plain-0", "plain-1"], "{:?}", world.log);
}

#[test]
fn a_gang_starts_without_a_member_that_it_does_not_need() {
    let mut world = with_slow_cards(&["n", "m", "o"]);
    for name in ["a", "b", "c"] {
        world.pod_with_nic(name, json!({}));
        world.join_gang(name, "g", 2);
    }
    world.reconcile();
    world.say_of("b", "Broken");
    for name in ["a", "c"] {
        world.say_of(name, "Near");
    }
    world.look_at("a");
    world.look_at("b");
    world.look_at("c");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c"], "{:?}", world.log);
    assert!(!world.log.iter().any(|done| done == "a given up" || done == "c given up"), "{:?}", world.log);
}

#[test]
fn cards_that_are_ready_at_once_go_first() {
    let mut world = World::new();
    world.node("n", 0);
    world.pool_of_nics("a", json!({"nodeName": "n"}), slow_cards(&["x"]));
    world.pool_of_nics("b", json!({"nodeName": "n"}), json!([{"name": "y"}]));
    world.pod_with_nic("p", json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["p"]);
    assert_eq!(world.pool_of("p"), Some("b"));
    assert!(world.claims["p"]["status"]["allocation"]["allocationTimestamp"].is_null());
}

/// Kubernetes' allocator looks at slices, and not at devices.
#[test]
fn a_slow_card_of_another_node_counts_if_it_is_in_the_slice() {
    let mut world = World::new();
    world.node("n", 0);
    let card = |name: &str, node: &str, more: Value| {
        let mut card = json!({"name": name, "nodeName": node});
        json_patch::merge(&mut card, &more);
        card
    };
    let cards = json!([card("x", "n", json!({})), card("z", "m", slow_cards(&["z"])[0].clone())]);
    world.pool_of_nics("a", json!({"perDeviceNodeSelection": true}), cards);
    world.pool_of_nics("b", json!({"nodeName": "n"}), json!([{"name": "y"}]));
    world.pod_with_nic("p", json!({}));
    world.reconcile();
    assert_eq!(world.pool_of("p"), Some("b"), "{}", world.why_waiting("p"));
}

#[test]
fn slow_cards_in_slices_for_other_nodes_do_not_count() {
    let mut world = World::new();
    world.node("n", 0);
    for (name, node, cards) in [("a-n", "n", json!([{"name": "x"}])), ("a-m", "m", slow_cards(&["z"]))] {
        let slice = json!({"metadata": {"name": name}, "spec": {
            "driver": NIC, "nodeName": node, "devices": cards,
            "pool": {"name": "a", "generation": 1, "resourceSliceCount": 2},
        }});
        world.mirror.resource_slice(typed(&slice));
    }
    world.pool_of_nics("b", json!({"nodeName": "n"}), json!([{"name": "y"}]));
    world.pod_with_nic("p", json!({}));
    world.reconcile();
    assert_eq!(world.pool_of("p"), Some("a"), "{}", world.why_waiting("p"));
}

#[test]
fn a_card_that_is_bound_to_a_node_is_used_there_alone() {
    let mut world = World::new();
    world.node("n", 0);
    let cards = json!([{"name": "x", "bindsToNode": true}, {"name": "y"}]);
    world.pool_of_nics("all", json!({"allNodes": true}), cards);
    for name in ["a", "b"] {
        world.pod_with_nic(name, json!({}));
        world.reconcile();
    }
    let selector = |claim: &str| world.claims[claim]["status"]["allocation"]["nodeSelector"].clone();
    assert_eq!(selector("a")["nodeSelectorTerms"][0]["matchFields"][0]["values"], json!(["n"]));
    assert_eq!(selector("b"), Value::Null);
}

#[test]
fn who_waits_for_a_card_makes_room_for_a_higher_priority() {
    let mut world = with_slow_cards(&["n"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    world.pod_with_nic("b", json!({}));
    let mut pod = world.pods["b"].clone();
    pod["spec"]["priority"] = 1000.into();
    world.pods.insert("b".into(), pod);
    world.show("b");
    world.reconcile();
    assert_eq!((world.pool_of("a"), world.pool_of("b")), (None, Some("n-nics")), "{:?}", world.log);
    world.say_of("b", "Near");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

#[test]
fn a_card_is_awaited_by_the_next_leader() {
    for is_ready_before in [false, true] {
        let mut world = with_slow_cards(&["n"]);
        world.pod_with_nic("a", json!({}));
        world.reconcile();
        assert!(world.pool_of("a").is_some());
        if is_ready_before {
            world.say_of("a", "Near");
        }
        world.change_leader();
        world.reconcile();
        if !is_ready_before {
            assert!(world.log.is_empty(), "{:?}", world.log);
            world.say_of("a", "Near");
            world.reconcile();
        }
        assert_eq!(world.log, ["a to n"]);
    }
}

#[test]
fn a_card_that_fails_for_the_next_leader_is_given_back() {
    let mut world = with_slow_cards(&["n"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    world.change_leader();
    world.reconcile();
    world.say_of("a", "Broken");
    world.now_ms += 1_000;
    world.hear();
    world.look_at("a");
    assert_eq!((world.log.last().map(String::as_str), world.pool_of("a")), (Some("a given up"), None));
}

#[test]
fn a_card_whose_node_has_no_room_is_awaited_for_ten_minutes() {
    let mut world = with_slow_cards(&["n"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    // A pod of another scheduler takes the room before the next leader begins.
    world.pod(
        "other",
        0,
        json!({
            "spec": {"schedulerName": "other", "nodeName": "n", "containers": [
                {"name": "main", "resources": {"requests": {"cpu": "16"}}},
            ]},
        }),
    );
    world.change_leader();
    world.reconcile();
    assert!(world.log.is_empty() && world.pool_of("a").is_some(), "{:?}", world.log);
    world.now_ms += 590_000;
    world.reconcile();
    assert_eq!(world.log, ["a given back"]);
    assert_eq!(world.pool_of("a"), None);
    world.delete("other");
    world.reconcile();
    world.say_of("a", "Near");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_card_whose_node_is_gone_is_given_back_by_the_next_leader() {
    let mut world = with_slow_cards(&["n"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    world.remove_node("n");
    world.change_leader();
    world.reconcile();
    assert_eq!(world.log, ["a given back"]);
}

#[test]
fn all_users_of_a_claim_wait_for_its_card() {
    let mut world = with_slow_cards(&["n"]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    world.pod_with_claim("b", "a", json!({}));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    assert_eq!(world.claims["a"]["status"]["reservedFor"].as_array().map(Vec::len), Some(2));
    // The next leader goes on waiting. When the card fails, none of them keeps it.
    world.change_leader();
    world.reconcile();
    world.say_of("a", "Broken");
    world.reconcile();
    assert_eq!(world.pool_of("a"), None, "{:?}", world.log);
}

#[test]
fn a_gang_is_given_up_when_one_member_has_waited_too_long() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.gang_with_slow_cards(2);
    world.reconcile();
    world.say_of("member-0", "Near");
    let binding = world.unready.iter().find(|binding| binding.name == "member-0").unwrap().clone();
    let now_ms = world.now_ms.cast_signed();
    assert!(matches!(world.mirror.readiness(&binding, now_ms, false), Readiness::Waits(_)));
    let last = world.mirror.readiness(&binding, now_ms, true);
    let Readiness::GivenUp { why, .. } = last else { panic!("{last:?}") };
    assert!(why.contains("after ten minutes"), "{why}");
    world.say_of("member-1", "Near");
    world.look_at("member-1");
    assert_eq!(world.log, ["member-1 given up"]);
}

#[test]
fn who_still_waits_is_found_without_a_change() {
    let mut world = with_slow_cards(&["n", "m"]);
    world.gang_with_slow_cards(2);
    world.reconcile();
    let waits = |world: &World, name: &str| {
        let binding = world.unready.iter().find(|binding| binding.name == name).unwrap();
        world.mirror.still_waits(binding, world.now_ms.cast_signed())
    };
    assert!(waits(&world, "member-0").unwrap().contains("\"Near\""));
    world.say_of("member-0", "Near");
    // The others must hear that it is ready.
    assert_eq!(waits(&world, "member-0"), None);
    world.look_at("member-0");
    assert!(waits(&world, "member-0").unwrap().contains("other pods of its gang"));
    world.say_of("member-1", "Near");
    assert_eq!(waits(&world, "member-1"), None);
    world.delete("member-1");
    assert_eq!(waits(&world, "member-0"), None);
    world.look_at("member-0");
    assert_eq!(world.log, ["member-0 given up"]);
}

/// Has a card left out once more.
fn shun(world: &mut World, card: &DeviceId) {
    world.mirror.shun_devices([card.clone()].into());
}

fn shun_no_more(world: &mut World, card: &DeviceId) {
    world.mirror.shun_devices_no_more([card.clone()].into());
}

fn card(name: &str) -> DeviceId {
    ((NIC.to_owned(), "n-nics".to_owned()), name.to_owned())
}

#[test]
fn a_card_that_failed_twice_is_left_out_until_the_last_end() {
    let mut world = with_slow_cards(&["n"]);
    let card = card("x");
    shun(&mut world, &card);
    shun(&mut world, &card);
    shun_no_more(&mut world, &card);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    assert_eq!(world.pool_of("a"), None);
    shun_no_more(&mut world, &card);
    world.reconcile();
    assert_eq!(world.pool_of("a"), Some("n-nics"));
}

#[test]
fn an_administrator_gets_no_card_that_failed_lately() {
    let mut world = World::new();
    world.node("n", 0);
    world.nics("n", 2);
    shun(&mut world, &card("nic-0"));
    world.pod_with_nic("a", json!({"adminAccess": true}));
    world.pod_with_nic("all", json!({"adminAccess": true, "allocationMode": "All"}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    assert_eq!(world.claims["a"]["status"]["allocation"]["devices"]["results"][0]["device"], "nic-1");
    shun_no_more(&mut world, &card("nic-0"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "all"]);
}

#[test]
fn who_waits_for_a_card_that_failed_lately_hears_of_it() {
    let mut world = with_slow_cards(&["n"]);
    shun(&mut world, &card("x"));
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    let said = |world: &World| world.mirror.pod_named("default", "a").unwrap().of_devices;
    let text = format!("device n-nics/x of {NIC} did not become ready lately");
    assert!(said(&world).iter().any(|of| of.contains(&text) && of.contains("five minutes")), "{:?}", said(&world));
    shun_no_more(&mut world, &card("x"));
    assert_eq!(said(&world), [] as [String; 0]);
}

//! When the places with devices of other drivers are counted.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::World;
use super::NIC;

/// Three nodes. Each reaches one card of its own, and two of them reach one more. A pod waits for more cards than there
/// are.
fn with_cards_of_one_pool() -> World {
    let mut world = World::new();
    for node in ["n", "m", "o"] {
        world.node(node, 0);
    }
    for node in ["m", "o"] {
        world.nodes.get_mut(node).unwrap()["metadata"]["labels"] = json!({"zone": "a"});
        let object = world.nodes[node].clone();
        world.make_node(node, object);
    }
    let zone = json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]);
    let devices = json!([
        {"name": "of-n", "nodeName": "n"}, {"name": "of-m", "nodeName": "m"}, {"name": "of-o", "nodeName": "o"},
        {"name": "of-zone", "nodeSelector": {"nodeSelectorTerms": zone}},
    ]);
    world.pool_of_nics("cards", json!({"perDeviceNodeSelection": true}), devices);
    world.pod_with_nic("a", json!({"count": 5}));
    world.reconcile();
    world
}

impl World {
    /// Keeps a card for a pod, or ends that. Returns the nodes that are to be told.
    fn keep_card(&mut self, pod: &str, card: Option<&str>) -> Vec<String> {
        match card {
            Some(card) => {
                let card = ((NIC.to_owned(), "cards".to_owned()), card.to_owned());
                let claim = ("default".to_owned(), pod.to_owned());
                self.mirror.promise(pod, BTreeMap::from([(claim, BTreeMap::from([(card, Default::default())]))]));
            }
            None => self.mirror.end_promise(pod),
        }
        std::mem::take(&mut self.mirror.changed_nodes).into_iter().collect()
    }
}

#[test]
fn only_nodes_that_reach_a_card_hear_of_its_use() {
    let mut world = with_cards_of_one_pool();
    assert_eq!(world.keep_card("x", Some("of-n")), ["n"]);
    assert_eq!(world.keep_card("y", Some("of-zone")), ["m", "o"]);
    // It is taken all the time.
    assert!(world.keep_card("z", Some("of-n")).is_empty());
    assert!(world.keep_card("x", None).is_empty());
    assert_eq!(world.keep_card("z", None), ["n"]);
}

impl World {
    /// A pod that waits for so many cards, more than there are. Its request has this name.
    fn waiting_for_cards(&mut self, name: &str, count: u64, request: &str) {
        let exactly = json!({"deviceClassName": NIC, "count": count});
        self.claim_of_nics(name, json!([{"name": request, "exactly": exactly}]), json!([]));
        self.pod_with_claim(name, name, json!({}));
    }

    /// The name in the books of a place for a pod.
    fn place_of(&self, pod: &str) -> Option<&str> {
        let uid = self.pods[pod]["metadata"]["uid"].as_str()?;
        self.mirror.pods[uid].place()
    }
}

#[test]
fn names_of_requests_make_no_kinds() {
    let mut world = World::new();
    world.node("n", 0);
    world.nics("n", 1);
    for (name, count, request) in [("a", 2, "x"), ("b", 2, "y"), ("c", 3, "x")] {
        world.waiting_for_cards(name, count, request);
    }
    world.reconcile();
    assert!(world.place_of("a").is_some());
    assert_eq!(world.place_of("a"), world.place_of("b"));
    assert_ne!(world.place_of("a"), world.place_of("c"));
    // Each gets its own request all the same.
    world.nics("n", 4);
    world.reconcile();
    for (name, request) in [("a", "x"), ("b", "y")] {
        let results = &world.claims[name]["status"]["allocation"]["devices"]["results"];
        assert_eq!(results[0]["request"], request);
    }
}

#[test]
fn pods_of_too_many_kinds_wait_until_there_are_fewer() {
    let mut world = World::new();
    world.node("n", 0);
    world.nics("n", 1);
    for count in 2..=257 {
        world.waiting_for_cards(&format!("w{count}"), count, "x");
    }
    world.hear();
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    assert!(world.why_waiting("a").contains("256 different ways"), "{}", world.why_waiting("a"));
    assert!(world.bound().is_empty());
    // A pod that asks for the same as another one makes no kind.
    world.waiting_for_cards("same", 2, "x");
    world.reconcile();
    assert_eq!(world.place_of("same"), world.place_of("w2"));
    world.delete("w2");
    world.delete("same");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn places_are_counted_anew_only_when_devices_change() {
    let mut world = with_cards_of_one_pool();
    let counted = |world: &mut World, change: &dyn Fn(&mut World)| {
        let before = world.mirror.counts_made();
        change(world);
        world.reconcile();
        assert!(world.mirror.knows_right_places());
        world.mirror.counts_made() - before
    };
    let plain = |world: &mut World| world.pod("plain", 0, json!({"spec": {"nodeName": "n", "schedulerName": "other"}}));
    assert_eq!(counted(&mut world, &plain), 0);
    assert_eq!(counted(&mut world, &|world| world.waiting_for_cards("same", 5, "other name")), 0);
    let own = json!([{"name": "of-n"}, {"name": "more"}]);
    assert_eq!(counted(&mut world, &|world| world.pool_of_nics("n", json!({"nodeName": "n"}), own.clone())), 1);
    let relabel = |world: &mut World| {
        let mut node = world.nodes["o"].clone();
        node["metadata"]["labels"] = json!({"zone": "b"});
        world.make_node("o", node);
    };
    assert_eq!(counted(&mut world, &relabel), 1);
    // Another kind is counted on all nodes; and both kinds are on one node when a card there is kept for the pod, and when
    // it is allocated.
    assert_eq!(counted(&mut world, &|world| world.pod_with_nic("one", json!({}))), 3 + 2 * 2);
    assert_eq!(counted(&mut world, &|world| world.pool_of_nics("all", json!({"allNodes": true}), json!([]))), 2 * 3);
}

/// The next pod would have to go where the others still are.
#[test]
fn a_pod_whose_claim_others_can_use_is_not_moved() {
    for (is_shared, can_move) in [(false, true), (true, false)] {
        let mut world = World::new();
        ["a", "b"].iter().for_each(|name| world.node_with_driver(name, 1));
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true});
        let made_anew = json!({"metadata": {"ownerReferences": [owner]}});
        match is_shared {
            true => {
                world.claim("shared", 50, None, json!({}));
                ["x", "beside"].iter().for_each(|name| world.pod_with_claim(name, "shared", made_anew.clone()));
            }
            false => world.pod_with_part("x", 50, made_anew),
        }
        world.reconcile();
        for name in ["filler", "y"] {
            world.pod_with_part(name, 50, json!({}));
            world.reconcile();
        }
        world.delete("filler");
        world.reconcile();
        assert_ne!(world.bound()["x"], world.bound()["y"], "{:#?}", world.log);
        world.pod_with_part("large", 100, json!({}));
        world.reconcile();
        let is_moved = world.log.iter().any(|line| line.contains("evicted"));
        assert_eq!(is_moved, can_move, "{:#?}", world.log);
    }
}

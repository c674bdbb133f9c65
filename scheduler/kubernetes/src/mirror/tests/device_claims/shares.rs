//! Devices of other drivers of which several claims have shares.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::random::Dice;
use super::super::{World, Write};
use super::NIC;
use crate::mirror::AboutDevices;

/// A card with shares that has so much bandwidth.
fn card(name: &str, bandwidth: u64, more: Value) -> Value {
    let capacity = json!({"bandwidth": {"value": bandwidth.to_string()}});
    let mut card = json!({"name": name, "allowMultipleAllocations": true, "capacity": capacity});
    json_patch::merge(&mut card, &more);
    card
}

/// A request for so much bandwidth.
fn of_bandwidth(bandwidth: &str) -> Value {
    json!({"capacity": {"requests": {"bandwidth": bandwidth}}})
}

/// A node with these cards.
fn with_cards(cards: Value) -> World {
    let mut world = World::new();
    world.node("n", 0);
    world.cards(cards);
    world
}

impl World {
    fn cards(&mut self, cards: Value) {
        self.pool_of_nics("n-nics", json!({"nodeName": "n"}), cards);
    }

    /// What a claim consumes of each card's capacities.
    fn consumed(&self, claim: &str) -> Vec<(String, Value)> {
        let results = self.claims[claim]["status"]["allocation"]["devices"]["results"].as_array();
        let results = results.into_iter().flatten();
        results.map(|of| (of["device"].as_str().unwrap().to_owned(), of["consumedCapacity"].clone())).collect()
    }

    fn lacking(&self, pod: &str) -> Option<String> {
        self.mirror.lacking_capacity(&self.uid(pod), &mut AboutDevices::default())
    }

    /// Gives a claim of another scheduler a card, or a share of it that consumes this.
    fn give_theirs(&mut self, card: &str, share: Value) {
        if !self.claims.contains_key("theirs") {
            self.claim("theirs", 1, None, json!({}));
        }
        let mut result = json!({"request": "gpu", "driver": NIC, "pool": "n-nics", "device": card});
        json_patch::merge(&mut result, &share);
        self.change_claim("theirs", |claim| {
            claim["status"] = json!({"allocation": {"devices": {"results": [result]}}})
        });
    }
}

#[test]
fn pods_share_a_card_as_long_as_it_has_capacity() {
    let mut world = with_cards(json!([card("x", 10, json!({}))]));
    for name in ["a", "b"] {
        world.pod_with_nic(name, of_bandwidth("4"));
        world.reconcile();
    }
    world.pod_with_nic("c", of_bandwidth("2001m"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(world.consumed(name), [("x".to_owned(), json!({"bandwidth": "4"}))]);
    }
    let share = |world: &World, name: &str| {
        world.claims[name]["status"]["allocation"]["devices"]["results"][0]["shareID"].as_str().unwrap().to_owned()
    };
    assert_ne!(share(&world, "a"), share(&world, "b"));
    let why = "request \"nic\": too little capacity: n-nics/x has 2 of its capacity \"bandwidth\" left, and the request \
               takes 2001m";
    assert_eq!(world.lacking("c").as_deref(), Some(why));
    assert!(world.why_waiting("c").contains(NIC), "{}", world.why_waiting("c"));
    // The next leader knows what is left.
    world.change_leader();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.pod_with_nic("d", of_bandwidth("2"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "d"]);
    assert!(world.mirror.knows_right_places());
    world.delete("a");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c", "d"]);
    assert_eq!(world.consumed("c"), [("x".to_owned(), json!({"bandwidth": "2001m"}))]);
    assert_eq!(world.lacking("c"), None);
}

#[test]
fn amounts_are_rounded_up_as_the_card_says() {
    let policy = json!({"default": "4", "validRange": {"min": "2", "max": "8", "step": "2"}});
    let capacity = json!({"bandwidth": {"requestPolicy": policy}, "queues": {"value": "2"}});
    let mut world = with_cards(json!([card("x", 10, json!({"capacity": capacity})), card("y", 4, json!({}))]));
    world.pod_with_nic("a", json!({"capacity": {"requests": {"bandwidth": "3", "queues": "0"}}}));
    world.reconcile();
    assert_eq!(world.consumed("a"), [("x".to_owned(), json!({"bandwidth": "4", "queues": "0"}))]);
    // The second card has no queues. Without a request for bandwidth, the default counts.
    world.pod_with_nic("b", json!({"capacity": {"requests": {"queues": "1"}}}));
    world.reconcile();
    assert_eq!(world.consumed("b"), [("x".to_owned(), json!({"bandwidth": "4", "queues": "1"}))]);
    // Without a policy a request that names nothing takes all.
    world.pod_with_nic("c", json!({}));
    world.reconcile();
    assert_eq!(world.consumed("c"), [("y".to_owned(), json!({"bandwidth": "4"}))]);
    world.pod_with_nic("d", json!({"capacity": {"requests": {"bandwidth": "9", "queues": "1"}}}));
    world.reconcile();
    let why = world.lacking("d").unwrap();
    assert!(
        why.contains("its policy for requests forbids that") && why.contains("has no capacity \"queues\""),
        "{why}"
    );
}

#[test]
fn a_card_without_capacities_is_shared_without_limit() {
    let mut world = with_cards(json!([{"name": "x", "allowMultipleAllocations": true}]));
    for number in 0..8 {
        world.pod_with_nic(&format!("a{number}"), json!({}));
    }
    world.reconcile();
    assert_eq!(world.bound().len(), 8);
    assert_eq!(world.consumed("a0"), [("x".to_owned(), Value::Null)]);
}

#[test]
fn a_whole_card_must_have_the_capacity() {
    let whole = json!({"allowMultipleAllocations": null});
    let mut world = with_cards(json!([card("small", 3, whole.clone()), card("x", 4, whole.clone())]));
    world.pod_with_nic("a", of_bandwidth("4"));
    world.reconcile();
    assert_eq!(world.consumed("a"), [("x".to_owned(), Value::Null)]);
    assert!(world.claims["a"]["status"]["allocation"]["devices"]["results"][0]["shareID"].is_null());
    world.pod_with_nic("b", of_bandwidth("1k"));
    world.pod_with_nic("c", of_bandwidth("1"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c"]);
    let of_small = "n-nics/small: of its capacity \"bandwidth\" there is 3, and a request takes 1000";
    assert!(world.lacking("b").is_some_and(|why| why.contains(of_small)), "{:?}", world.lacking("b"));
}

#[test]
fn requests_of_a_claim_share_a_card_as_constraints_allow() {
    let cards = json!([
        card("x", 10, json!({"attributes": {"rail": {"int": 1}}})),
        card("y", 10, json!({"attributes": {"rail": {"int": 2}}})),
        card("z", 10, json!({"attributes": {"rail": {"int": 2}}})),
    ]);
    let cards_of = |constraint: Value| {
        let mut world = with_cards(cards.clone());
        let mut exactly = of_bandwidth("4");
        exactly["deviceClassName"] = NIC.into();
        let requests = ["a", "b", "c"].map(|name| json!({"name": name, "exactly": exactly}));
        world.claim_of_nics("near", json!(requests), json!([constraint]));
        world.pod_with_claim("near", "near", json!({}));
        world.reconcile();
        world.consumed("near").into_iter().map(|(card, _)| card).collect::<Vec<String>>()
    };
    // The third share does not fit on the first card.
    assert_eq!(cards_of(json!({"requests": ["a"], "matchAttribute": "nic.example.com/rail"})), ["x", "x", "y"]);
    assert_eq!(cards_of(json!({"matchAttribute": "nic.example.com/rail"})), ["y", "y", "z"]);
    let two = json!({"requests": ["a", "b"], "distinctAttribute": "nic.example.com/rail"});
    assert_eq!(cards_of(two), ["x", "y", "x"]);
    assert!(cards_of(json!({"distinctAttribute": "nic.example.com/rail"})).is_empty());
}

#[test]
fn one_request_has_one_share_of_each_card() {
    let mut world = with_cards(json!([card("x", 10, json!({})), card("y", 1, json!({}))]));
    let mut two = of_bandwidth("1");
    two["count"] = 2.into();
    world.pod_with_nic("a", two.clone());
    world.pod_with_nic("b", two);
    world.reconcile();
    assert_eq!(world.bound().len(), 1, "the second card has no more bandwidth");
    // Of all cards, those without enough bandwidth are left out.
    world.pod_with_nic("all", json!({"allocationMode": "All", "capacity": {"requests": {"bandwidth": "2"}}}));
    world.reconcile();
    assert_eq!(world.consumed("all"), [("x".to_owned(), json!({"bandwidth": "2"}))]);
}

#[test]
fn an_expression_can_ask_for_cards_with_shares() {
    let mut world = with_cards(json!([{"name": "whole"}, card("x", 10, json!({}))]));
    let shared = json!({"selectors": [{"cel": {"expression": "device.allowMultipleAllocations"}}]});
    world.pod_with_nic("a", shared);
    world.reconcile();
    assert_eq!(world.consumed("a"), [("x".to_owned(), json!({"bandwidth": "10"}))]);
}

#[test]
fn shares_of_other_schedulers_count() {
    let mut world = with_cards(json!([card("x", 10, json!({}))]));
    world.give_theirs("x", json!({"shareID": "s", "consumedCapacity": {"bandwidth": "7", "other": "1"}}));
    world.pod_with_nic("a", of_bandwidth("4"));
    world.pod_with_nic("b", of_bandwidth("3"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    // Less of it is consumed, then nothing, then the card is theirs alone.
    world.give_theirs("x", json!({"shareID": "s", "consumedCapacity": {"bandwidth": "3"}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.give_theirs("x", json!({"shareID": "s"}));
    world.pod_with_nic("c", of_bandwidth("3"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
    world.give_theirs("x", json!({"shareID": null}));
    world.pod_with_nic("d", of_bandwidth("0"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
    // A result with admin access takes nothing.
    world.give_theirs("x", json!({"shareID": null, "adminAccess": true}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c", "d"]);
}

#[test]
fn a_card_that_was_shared_too_often_is_seen() {
    let mut world = with_cards(json!([card("x", 10, json!({}))]));
    world.pod_with_nic("a", of_bandwidth("4"));
    world.reconcile();
    for (share, is_too_much) in [
        (json!({"shareID": "s", "consumedCapacity": {"bandwidth": "6"}}), false),
        (json!({"shareID": "s", "consumedCapacity": {"bandwidth": "6001m"}}), true),
        (json!({"shareID": "s", "consumedCapacity": {"bandwidth": "1000E"}}), true),
        // It has the whole card.
        (json!({}), true),
    ] {
        world.give_theirs("x", share.clone());
        world.hear();
        for claim in ["a", "theirs"] {
            let why = world.mirror.has_too_much("default", claim);
            assert_eq!(why.is_some(), is_too_much, "{claim} {share}");
            assert!(why.is_none_or(|why| why.contains("n-nics/x")));
        }
    }
}

#[test]
fn what_a_pod_gets_counts_once_while_it_is_bound() {
    let mut world = with_cards(json!([card("x", 10, json!({}))]));
    world.pod_with_nic("a", of_bandwidth("4"));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    // Nothing is written yet.
    world.pod_with_nic("b", of_bandwidth("7"));
    world.reconcile();
    assert!(world.bound().is_empty(), "4 are promised");
    assert!(world.lacking("b").is_some_and(|why| why.contains("has 6 of its")), "{:?}", world.lacking("b"));
    // The claim is written, and the pod is not bound.
    assert!(world.reserve(&binding));
    world.pod_with_nic("c", of_bandwidth("6"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["c"]);
    world.delete("c");
    world.collect_claims();
    // The binding fails.
    world.give_back(&binding);
    world.delete("a");
    world.mirror.bound(&binding, Err("it is gone".into()));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

#[test]
fn a_share_without_a_binding_is_given_back_by_the_next() {
    let mut world = with_cards(json!([card("x", 10, json!({}))]));
    world.pod_with_nic("a", of_bandwidth("6"));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    assert!(world.reserve(&binding));
    world.change_leader();
    world.pod_with_nic("b", of_bandwidth("6"));
    world.reconcile();
    assert_eq!(world.log[0], "a given back");
    assert_eq!(world.bound().len(), 1);
}

#[test]
fn a_card_with_shares_takes_counters_once() {
    let mut world = World::new();
    world.node("n", 0);
    let counters = json!([{"counterSet": "gpu", "counters": {"slots": {"value": "3"}}}]);
    let cards = json!([
        card("x", 10, json!({"consumesCounters": counters})),
        {"name": "whole", "consumesCounters": counters},
        card("y", 10, json!({"consumesCounters": counters})),
    ]);
    let place = json!({
        "nodeName": "n",
        "sharedCounters": [{"name": "gpu", "counters": {"slots": {"value": "5"}}}],
    });
    world.pool_of_nics("n-nics", place, cards);
    for name in ["a", "b"] {
        world.pod_with_nic(name, of_bandwidth("4"));
        world.reconcile();
    }
    let of_x = [("x".to_owned(), json!({"bandwidth": "4"}))];
    assert_eq!([world.consumed("a"), world.consumed("b")], [of_x.clone(), of_x]);
    // For the second card with shares, and for a whole card, too few slots are left.
    world.pod_with_nic("c", of_bandwidth("4"));
    world.pod_with_nic("d", json!({"selectors": [{"cel": {"expression": "!device.allowMultipleAllocations"}}]}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.delete("a");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c"]);
    assert_eq!(world.consumed("c")[0].0, "x");
    for name in ["b", "c"] {
        world.delete(name);
    }
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["d"], "nobody has a share any more");
    assert!(world.mirror.knows_right_places());
}

/// Whatever comes and goes, no card is shared out beyond its bandwidth, and a pod has a share whenever one is left for it.
#[test]
fn random_shares_never_take_more_than_there_is() {
    for seed in 1..30_u64 {
        let mut dice = Dice::of(seed);
        let sizes: BTreeMap<String, u64> = (0..2).map(|number| (format!("x{number}"), 3 + dice.below(3))).collect();
        let mut world = with_cards(sizes.iter().map(|(name, size)| card(name, *size, json!({}))).collect());
        for step in 0..30 {
            world.step_at_random(&mut dice, step, |dice| of_bandwidth(&(1 + dice.below(5)).to_string()));
            assert!(world.mirror.knows_right_places(), "seed {seed}, step {step}");
            let mut left = sizes.clone();
            for (card, consumed) in world.claims.keys().flat_map(|claim| world.consumed(claim)) {
                let amount: u64 = consumed["bandwidth"].as_str().unwrap().parse().unwrap();
                let of = left.get_mut(&card).unwrap();
                *of = of.checked_sub(amount).unwrap_or_else(|| panic!("seed {seed}, step {step}: too much of {card}"));
            }
            for name in world.pods.keys().filter(|name| !world.bound().contains_key(name.as_str())) {
                let request = &world.claims[name]["spec"]["devices"]["requests"][0]["exactly"];
                let wanted: u64 = request["capacity"]["requests"]["bandwidth"].as_str().unwrap().parse().unwrap();
                assert!(left.values().all(|left| *left < wanted), "seed {seed}, step {step}: {name} waits, {left:?}");
                assert!(world.lacking(name).is_some(), "seed {seed}, step {step}: {name}");
            }
        }
    }
}

#[test]
fn a_card_that_has_shrunk_below_its_shares_gives_no_more() {
    let mut world = with_cards(json!([card("x", 10, json!({}))]));
    world.give_theirs("x", json!({"shareID": "s", "consumedCapacity": {"bandwidth": "8"}}));
    world.cards(json!([card("x", 5, json!({}))]));
    world.pod_with_nic("a", of_bandwidth("0"));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.bound());
    world.cards(json!([card("x", 8, json!({}))]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
}

#[test]
fn a_card_that_has_shrunk_below_its_shares_is_none_of_all() {
    let mut world = with_cards(json!([card("x", 10, json!({})), card("y", 10, json!({}))]));
    world.give_theirs("x", json!({"shareID": "s", "consumedCapacity": {"bandwidth": "8"}}));
    world.cards(json!([card("x", 5, json!({})), card("y", 10, json!({}))]));
    let mut all = of_bandwidth("1");
    all["allocationMode"] = "All".into();
    world.pod_with_nic("a", all);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
    assert_eq!(world.consumed("a"), [("y".to_owned(), json!({"bandwidth": "1"}))]);
}

#[test]
fn a_card_that_is_held_whole_is_one_of_all_if_it_has_enough() {
    let mut world = with_cards(json!([card("x", 10, json!({})), card("y", 10, json!({}))]));
    // The card got its shares when a claim had it already, and then a claim got one of them.
    world.give_theirs("x", json!({}));
    world.change_claim("theirs", |claim| {
        let results = &mut claim["status"]["allocation"]["devices"]["results"];
        let mut share = results[0].clone();
        json_patch::merge(&mut share, &json!({"shareID": "s", "consumedCapacity": {"bandwidth": "8"}}));
        results.as_array_mut().unwrap().push(share);
    });
    for (name, bandwidth) in [("a", "2"), ("b", "3")] {
        let mut all = of_bandwidth(bandwidth);
        all["allocationMode"] = "All".into();
        world.pod_with_nic(name, all);
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"], "{}", world.why_waiting("b"));
    assert_eq!(world.consumed("b"), [("y".to_owned(), json!({"bandwidth": "3"}))]);
}

#[test]
fn access_to_a_card_that_is_held_whole_needs_its_counters() {
    let mut world = World::new();
    world.node("n", 0);
    let counters = json!([{"counterSet": "gpu", "counters": {"slots": {"value": "3"}}}]);
    let place = |slots: &str| {
        let counters = json!([{"name": "gpu", "counters": {"slots": {"value": slots}}}]);
        json!({"nodeName": "n", "sharedCounters": counters})
    };
    // The card got its shares when a claim had it already.
    let card = card("x", 10, json!({"consumesCounters": counters}));
    world.pool_of_nics("n-nics", place("5"), json!([card]));
    world.give_theirs("x", json!({}));
    world.pod_with_nic("a", json!({"adminAccess": true}));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.bound());
    world.pool_of_nics("n-nics", place("6"), json!([card]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
}

#[test]
fn a_full_card_may_be_one_of_all_if_the_expression_fails_on_it() {
    let mut world =
        with_cards(json!([card("full", 10, json!({})), {"name": "new", "attributes": {"speed": {"int": 400}}}]));
    world.give_theirs("full", json!({"shareID": "share", "consumedCapacity": {"bandwidth": "10"}}));
    world.node("m", 0);
    let taints = json!([{"key": "broken", "effect": "NoSchedule"}]);
    let old = json!([{"name": "old", "attributes": {"speed": {"int": 200}}, "taints": taints}]);
    world.pool_of_nics("m-nics", json!({"nodeName": "m"}), old);
    let fast = json!([{"cel": {"expression": r#"device.attributes["nic.example.com"].speed > 100"#}}]);
    world.pod_with_nic("all", json!({"allocationMode": "All", "selectors": fast}));
    world.reconcile();
    assert!(world.bound().is_empty(), "it is not known whether node n's full card is meant");
}

#[test]
fn nobody_has_access_to_an_overdrawn_card() {
    let free = json!({"capacity": {"bandwidth": {"requestPolicy": {"default": "0"}}}});
    let mut world = with_cards(json!([card("over", 10, free)]));
    world.give_theirs("over", json!({"shareID": "share", "consumedCapacity": {"bandwidth": "20"}}));
    world.pod_with_nic("a", json!({"adminAccess": true}));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.bound());
}

//! Claims that ask for devices of our driver and of another one together.

mod brute_force;

use serde_json::{Value, json};

use super::super::{World, Write};
use super::{DRIVER, NIC};
use crate::mirror::DeviceSaid;

pub(super) const ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// What the devices of a claim must have in common.
fn same_root(requests: &[&str]) -> Value {
    json!({"requests": requests, "matchAttribute": ROOT})
}

pub(super) fn of_root(root: &str) -> Value {
    json!({"attributes": {ROOT: {"string": root}}})
}

pub(super) fn percent(percent: u32) -> Value {
    json!({"deviceClassName": DRIVER, "capacity": {"requests": {"core": percent.to_string(), "memory": "1Gi"}}})
}

impl World {
    /// A node with GPUs and network cards, each given by what its driver says of it beside its name.
    pub(super) fn node_of_both(&mut self, node: &str, gpus: &[Value], cards: &[Value]) {
        self.node(node, 0);
        self.gpus_of(node, gpus);
        self.cards_of(node, cards);
    }

    pub(super) fn gpus_of(&mut self, node: &str, gpus: &[Value]) {
        self.publish(node, gpus.len(), json!({}));
        let mut slice = self.slices[node].clone();
        for (device, more) in slice["spec"]["devices"].as_array_mut().unwrap().iter_mut().zip(gpus) {
            json_patch::merge(device, more);
        }
        self.made += 1;
        slice["spec"]["pool"]["generation"] = self.made.into();
        self.mirror.resource_slice(super::typed(&slice));
        self.slices.insert(node.into(), slice);
    }

    fn cards_of(&mut self, node: &str, cards: &[Value]) {
        let named = |(number, more): (usize, &Value)| {
            let mut device = json!({"name": format!("nic-{number}")});
            json_patch::merge(&mut device, more);
            device
        };
        let devices: Vec<Value> = cards.iter().enumerate().map(named).collect();
        self.pool_of_nics(&format!("{node}-nics"), json!({"nodeName": node}), devices.into());
    }

    fn pod_with_two_claims(&mut self, name: &str, first: &str, second: &str) {
        let claim = |claim: &str| json!({"name": claim, "resourceClaimName": claim});
        self.pod(name, 0, json!({"spec": {"resourceClaims": [claim(first), claim(second)]}}));
    }

    fn pod_of_both(&mut self, name: &str, requests: Value, constraints: Value) {
        self.claim_of_nics(name, requests, constraints);
        self.pod_with_claim(name, name, json!({}));
    }

    /// A pod with a part of a GPU and a card of the same root.
    pub(super) fn pod_with_near_card(&mut self, name: &str, part: u32) {
        let requests = json!([
            {"name": "gpu", "exactly": percent(part)}, {"name": "nic", "exactly": {"deviceClassName": NIC}},
        ]);
        self.pod_of_both(name, requests, json!([same_root(&["gpu", "nic"])]));
    }

    /// What a claim has: request and device.
    fn has(&self, claim: &str) -> Vec<String> {
        self.results(claim).into_iter().map(|(request, device, _)| format!("{request} {device}")).collect()
    }
}

/// A node with two GPUs and two cards, one of each at root a and at root b.
fn with_two_roots() -> World {
    let mut world = World::new();
    world.node_of_both("n", &[of_root("a"), of_root("b")], &[of_root("b"), of_root("a")]);
    world
}

#[test]
fn a_gpu_and_a_card_of_one_root_are_one_claim() {
    let mut world = World::new();
    // A node without a pair, and one with a pair.
    world.node_of_both("m", &[of_root("a"), json!({})], &[of_root("b"), json!({})]);
    world.node_of_both("n", &[of_root("a"), of_root("b")], &[of_root("c"), of_root("b")]);
    world.pod_with_near_card("a", 40);
    world.reconcile();
    assert_eq!(world.bound().into_iter().collect::<Vec<_>>(), [("a", "n")], "{}", world.why_waiting("a"));
    assert_eq!(world.has("a"), ["gpu gpu-1", "nic nic-1"]);
    let status = &world.claims["a"]["status"];
    let results = &status["allocation"]["devices"]["results"];
    assert_eq!((&results[0]["driver"], &results[1]["driver"]), (&json!(DRIVER), &json!(NIC)));
    assert_eq!(
        (&results[0]["consumedCapacity"]["core"], &results[1]["consumedCapacity"]),
        (&json!("40"), &Value::Null)
    );
    let field = &status["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!((&field["values"], &status["reservedFor"][0]["name"]), (&json!(["n"]), &json!("a")));
    // The GPU has room, but no card of its root is free.
    world.pod_with_near_card("b", 40);
    world.reconcile();
    let why = world.why_waiting("b");
    assert!(why.contains(NIC) && why.contains(ROOT), "{why}");
    // The next leader knows all this, and the card is given out again when it is given back.
    world.change_leader();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.delete("a");
    world.collect_claims();
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.has("b")), (vec!["b"], vec!["gpu gpu-1".into(), "nic nic-1".into()]));
}

#[test]
fn what_lacks_beside_a_gpu_with_room_is_named() {
    let mut world = with_two_roots();
    world.claim("theirs", 1, None, json!({}));
    world.allocate_by_hand("theirs", "n", "gpu-0", 90, 1 << 30);
    world.claim_of_nics(
        "card",
        json!([{"name": "nic", "exactly": {"deviceClassName": NIC, "selectors": [
            {"cel": {"expression": format!("device.attributes[\"resource.kubernetes.io\"].pcieRoot == \"b\"")}},
        ]}}]),
        json!([]),
    );
    world.pod_with_claim("card", "card", json!({}));
    world.reconcile();
    // Root a has a card and no room on its GPU, and root b has room and no card.
    world.pod_with_near_card("a", 40);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["card"]);
    let why = world.why_waiting("a");
    assert!(why.contains("40 % gpu-core"), "{why}");
    world.change_claim("theirs", |claim| claim["status"] = json!({}));
    world.reconcile();
    assert_eq!(world.has("a"), ["gpu gpu-0", "nic nic-1"]);
}

#[test]
fn parts_go_where_cards_are_left() {
    let mut world = with_two_roots();
    for name in ["a", "b", "c"] {
        world.pod_with_near_card(name, 25);
    }
    world.reconcile();
    // Both would fit on one GPU, but each root has one card.
    let [first, second] = world.names_of_bound().try_into().unwrap_or_else(|_| panic!("{:?}", world.log));
    let mut gpus = [world.has(first)[0].clone(), world.has(second)[0].clone()];
    gpus.sort();
    assert_eq!(gpus, ["gpu gpu-0", "gpu gpu-1"]);
    assert!(world.log.iter().all(|line| !line.contains("evicted")), "{:?}", world.log);
}

impl World {
    fn gang_with_near_cards(&mut self, size: usize, part: u32) {
        for member in 0..size {
            let name = format!("g{member}");
            self.pod_with_near_card(&name, part);
            self.join_gang(&name, "g", size);
        }
    }
}

#[test]
fn a_gang_starts_where_each_member_has_a_near_card() {
    // Two GPUs and one card at each root: two of the GPUs have none.
    for (size, is_bound) in [(2, true), (3, false)] {
        let mut world = World::new();
        let gpus = [of_root("a"), of_root("a"), of_root("b"), of_root("b")];
        world.node_of_both("n", &gpus, &[of_root("a"), of_root("b")]);
        world.gang_with_near_cards(size, 100);
        if is_bound {
            world.wait_for_writes();
            assert_eq!(world.writes.len(), size, "they start together");
        }
        world.reconcile();
        assert_eq!(world.bound().len(), if is_bound { size } else { 0 }, "{size}: {:?}", world.log);
    }
}

#[test]
fn what_drivers_say_later_counts() {
    let mut world = World::new();
    world.node_of_both("n", &[json!({})], &[of_root("a")]);
    world.pod_with_near_card("a", 40);
    world.reconcile();
    assert!(world.bound().is_empty());
    // Our driver learns the root of its GPU, and then the other driver that of a second card.
    world.gpus_of("n", &[of_root("a")]);
    world.reconcile();
    assert_eq!(world.has("a"), ["gpu gpu-0", "nic nic-0"]);
    world.pod_with_near_card("b", 40);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.cards_of("n", &[of_root("a"), of_root("a")]);
    world.reconcile();
    assert_eq!(world.has("b"), ["gpu gpu-0", "nic nic-1"]);
}

#[test]
fn a_gpu_that_is_ill_leaves_its_card_to_the_other_one() {
    let mut world = World::new();
    let gpu = |uuid: &str| {
        let mut gpu = of_root("a");
        gpu["attributes"]["uuid"] = json!({"string": uuid});
        gpu
    };
    world.node_of_both("n", &[gpu("GPU-0"), gpu("GPU-1")], &[of_root("a")]);
    let ill = DeviceSaid { problem: Some("XID 79".into()), ..DeviceSaid::default() };
    world.mirror.manager_says("n", Some([("GPU-0".to_owned(), ill)].into()));
    world.pod_with_near_card("a", 100);
    world.reconcile();
    assert_eq!(world.has("a"), ["gpu gpu-1", "nic nic-0"], "{}", world.why_waiting("a"));
}

#[test]
fn distinct_values_hold_between_drivers() {
    let mut world = World::new();
    world.node_of_both("n", &[of_root("a")], &[of_root("a"), of_root("b"), json!({})]);
    let requests =
        json!([{"name": "nic", "exactly": {"deviceClassName": NIC}}, {"name": "gpu", "exactly": percent(10)}]);
    let distinct = json!([{"distinctAttribute": ROOT}]);
    for name in ["a", "b"] {
        world.pod_of_both(name, requests.clone(), distinct.clone());
    }
    world.reconcile();
    let [bound] = world.names_of_bound().try_into().expect("one of them is bound");
    assert_eq!(world.has(bound), ["nic nic-1", "gpu gpu-0"]);
}

#[test]
fn without_a_constraint_both_are_of_the_node() {
    let mut world = World::new();
    world.node_of_both("m", &[json!({}), json!({})], &[]);
    world.node_of_both("n", &[json!({})], &[json!({}), json!({}), json!({})]);
    let all = json!({"deviceClassName": NIC, "allocationMode": "All"});
    let requests = json!([{"name": "gpu", "exactly": percent(10)}, {"name": "nics", "exactly": all}]);
    for name in ["a", "b"] {
        world.pod_of_both(name, requests.clone(), json!([]));
    }
    world.reconcile();
    let [bound] = world.names_of_bound().try_into().expect("one of them is bound");
    assert_eq!(world.has(bound), ["gpu gpu-0", "nics nic-0", "nics nic-1", "nics nic-2"]);
}

#[test]
fn entries_of_lists_are_tried_in_the_order_of_requests() {
    let mut world = with_two_roots();
    let cards = json!([
        {"name": "two", "deviceClassName": NIC, "count": 2}, {"name": "one", "deviceClassName": NIC},
    ]);
    let mut large = percent(80);
    large["name"] = "large".into();
    let mut small = percent(20);
    small["name"] = "small".into();
    let requests = json!([{"name": "nic", "firstAvailable": cards}, {"name": "gpu", "firstAvailable": [large, small]}]);
    // A GPU and two cards of its root are not there, and of one card all are.
    let constraint = json!([{"requests": ["gpu", "nic/one"], "matchAttribute": ROOT}]);
    world.pod_of_both("a", requests.clone(), constraint.clone());
    world.reconcile();
    assert_eq!(world.has("a"), ["nic/two nic-0", "nic/two nic-1", "gpu/large gpu-0"]);
    world.delete("a");
    world.collect_claims();
    world.claim("theirs", 1, None, json!({}));
    world.allocate_by_hand("theirs", "n", "gpu-0", 50, 1 << 30);
    world.pod_of_both("b", requests, json!([same_root(&[])]));
    world.reconcile();
    assert_eq!(world.has("b"), ["nic/one nic-0", "gpu/large gpu-1"]);
}

#[test]
fn an_entry_of_each_driver_can_be_taken() {
    let mut world = World::new();
    world.node_of_both("n", &[json!({})], &[json!({})]);
    let mut part = percent(60);
    part["name"] = "gpu".into();
    let list = json!([part, {"name": "nic", "deviceClassName": NIC}]);
    let requests = json!([{"name": "base", "exactly": percent(20)}, {"name": "more", "firstAvailable": list}]);
    for name in ["a", "b", "c"] {
        world.pod_of_both(name, requests.clone(), json!([]));
        world.reconcile();
    }
    assert_eq!(world.has("a"), ["base gpu-0", "more/gpu gpu-0"]);
    assert_eq!(world.has("b"), ["base gpu-0", "more/nic nic-0"]);
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    // A pod that asks us for nothing with some of its entries is refused.
    world.pod_of_both("d", json!([requests[1]]), json!([]));
    world.reconcile();
    assert!(world.why_waiting("d").contains("entries of its prioritised lists"), "{}", world.why_waiting("d"));
    // So it is if it has another claim for a part of a GPU.
    world.claim_of_nics("list", json!([requests[1]]), json!([]));
    world.claim("plain", 10, None, json!({}));
    world.pod_with_two_claims("e", "list", "plain");
    world.reconcile();
    assert!(world.why_waiting("e").contains("entries of its prioritised lists"), "{}", world.why_waiting("e"));
}

#[test]
fn an_entry_that_selects_no_device_gives_way_to_the_next() {
    let mut world = World::new();
    world.node_of_both("n", &[json!({})], &[json!({}), json!({})]);
    let entry = |name: &str, expression: &str| {
        let mut entry = percent(60);
        let expression = format!("device.attributes[{DRIVER:?}].{expression}");
        json_patch::merge(&mut entry, &json!({"name": name, "selectors": [{"cel": {"expression": expression}}]}));
        entry
    };
    // The last one fails on each device without the attribute.
    let list =
        json!([entry("spare", "?spare.orValue(false)"), entry("any", "?none.orValue(true)"), entry("old", "old")]);
    let requests =
        json!([{"name": "gpu", "firstAvailable": list}, {"name": "nic", "exactly": {"deviceClassName": NIC}}]);
    for name in ["a", "b"] {
        world.pod_of_both(name, requests.clone(), json!([]));
        world.reconcile();
    }
    assert_eq!(world.has("a"), ["gpu/any gpu-0", "nic nic-0"], "{}", world.why_waiting("a"));
    assert_eq!(world.names_of_bound(), ["a"]);
    // A device comes that the first entry selects.
    world.gpus_of("n", &[json!({}), json!({"attributes": {"spare": {"bool": true}}})]);
    world.reconcile();
    assert_eq!(world.has("b"), ["gpu/spare gpu-1", "nic nic-1"], "{}", world.why_waiting("b"));
    assert!(world.mirror.knows_right_places());
}

#[test]
fn a_near_gpu_is_left_to_the_other_claim_of_the_pod() {
    let mut world = World::new();
    let gpu = |is_spare: bool| {
        let mut gpu = of_root("a");
        gpu["attributes"]["spare"] = json!({"bool": is_spare});
        gpu
    };
    // Both GPUs are near the only card. The other claim can have the first one alone.
    world.node_of_both("n", &[gpu(true), gpu(false)], &[of_root("a")]);
    let requests =
        json!([{"name": "gpu", "exactly": percent(100)}, {"name": "nic", "exactly": {"deviceClassName": NIC}}]);
    world.claim_of_nics("near", requests, json!([same_root(&["gpu", "nic"])]));
    let expression = format!("device.attributes[{DRIVER:?}].spare");
    world.claim("spare", 100, None, json!({"selectors": [{"cel": {"expression": expression}}]}));
    world.pod_with_two_claims("a", "near", "spare");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
    assert_eq!(
        (world.has("near"), world.has("spare")),
        (vec!["gpu gpu-1".into(), "nic nic-0".into()], vec!["gpu gpu-0".into()])
    );
}

#[test]
fn two_pairs_of_one_claim_are_each_of_one_root() {
    let mut world = World::new();
    // The cores' own choice would be two GPUs of root a, which has one card.
    world.node_of_both("n", &[of_root("a"), of_root("a"), of_root("b")], &[of_root("a"), of_root("b")]);
    let nic = json!({"deviceClassName": NIC});
    let requests = json!([
        {"name": "g1", "exactly": percent(100)}, {"name": "n1", "exactly": nic},
        {"name": "g2", "exactly": percent(100)}, {"name": "n2", "exactly": nic},
    ]);
    let pairs = json!([same_root(&["g1", "n1"]), same_root(&["g2", "n2"])]);
    world.pod_of_both("a", requests.clone(), pairs.clone());
    world.reconcile();
    let has = world.has("a");
    assert_eq!(has.len(), 4, "{}", world.why_waiting("a"));
    for of_pair in has.chunks(2) {
        let root_of_gpu = if of_pair[0].ends_with("gpu-2") { "nic-1" } else { "nic-0" };
        assert!(of_pair[1].ends_with(root_of_gpu), "{has:?}");
    }
    // Room on GPUs comes and goes.
    world.delete("a");
    world.collect_claims();
    world.pod_with_part("busy", 100, json!({"spec": {"priority": 10}}));
    world.reconcile();
    world.pod_of_both("b", requests, pairs);
    world.reconcile();
    let is_bound = world.bound().contains_key("b");
    let busy = world.results("busy-gpu")[0].1.clone();
    assert_eq!(is_bound, busy != "gpu-2", "{busy}: {}", world.why_waiting("b"));
    world.delete("busy");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.has("b").len(), 4, "{}", world.why_waiting("b"));
}

#[test]
fn parts_of_one_gpu_are_added_up() {
    let mut world = World::new();
    world.node_of_both("n", &[of_root("a"), json!({}), of_root("b")], &[of_root("a"), of_root("b")]);
    world.claim("theirs", 1, None, json!({}));
    world.allocate_by_hand("theirs", "n", "gpu-0", 30, 1 << 30);
    // The GPU of root a has room for each part, and not for both.
    let nic = json!({"deviceClassName": NIC});
    let requests = json!([
        {"name": "g1", "exactly": percent(60)}, {"name": "nic", "exactly": nic}, {"name": "g2", "exactly": percent(30)},
    ]);
    world.pod_of_both("a", requests, json!([same_root(&["g1", "nic"]), same_root(&["g2", "nic"])]));
    world.reconcile();
    assert_eq!(world.has("a"), ["g1 gpu-2", "nic nic-1", "g2 gpu-2"], "{}", world.why_waiting("a"));
}

#[test]
fn a_claim_of_both_without_a_binding_is_given_back() {
    let mut world = World::new();
    world.node_of_both("n", &[of_root("a")], &[of_root("a")]);
    world.pod_with_near_card("a", 100);
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    assert!(world.reserve(&binding));
    world.change_leader();
    world.pod_with_near_card("b", 100);
    world.reconcile();
    assert_eq!((world.log[0].as_str(), world.bound().len()), ("a given back", 1));
}

#[test]
fn a_pod_makes_room_for_one_of_a_higher_priority() {
    for part in [30, 100] {
        let mut world = World::new();
        world.node_of_both("n", &[of_root("a"), of_root("b")], &[of_root("a")]);
        world.pod_with_near_card("low", part);
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["low"]);
        world.pod_with_near_card("high", part);
        let mut pod = world.pods["high"].clone();
        pod["spec"]["priority"] = 100.into();
        world.pods.insert("high".into(), pod);
        world.show("high");
        world.wait_for_writes();
        let evict = world.writes.pop().expect("a pod is to be evicted");
        world.carry_out(evict);
        assert_eq!(world.log, ["low to n", "low evicted"]);
        // Its owner makes no other pod, and the claim is given back.
        world.delete("low");
        world.collect_claims();
        world.reconcile();
        assert_eq!((world.names_of_bound(), world.has("high").len()), (vec!["high"], 2), "{part}: {:?}", world.log);
    }
}

#[test]
fn containers_may_share_a_card_and_not_the_gpu() {
    let mut world = with_two_roots();
    world.pod_with_near_card("a", 40);
    let of = |name: &str, request: Value| {
        let mut claim = json!({"name": "gpu"});
        json_patch::merge(&mut claim, &request);
        json!({"name": name, "resources": {"claims": [claim]}})
    };
    let containers = json!([of("main", json!({})), of("side", json!({"request": "nic"}))]);
    let mut pod = world.pods["a"].clone();
    pod["spec"]["containers"] = containers;
    world.pods.insert("a".into(), pod);
    world.show("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
}

#[test]
fn a_shared_claim_of_both_keeps_its_users_together() {
    let mut world = World::new();
    for node in ["m", "n"] {
        world.node_of_both(node, &[of_root("a")], &[of_root("a")]);
    }
    world.pod_with_near_card("a", 40);
    world.pod_with_claim("b", "a", json!({}));
    world.reconcile();
    let nodes: Vec<&str> = world.bound().into_values().collect();
    assert!(nodes.len() == 2 && nodes[0] == nodes[1], "{nodes:?}");
    // Another scheduler's allocation is used as it is.
    let allocation = world.claims["a"]["status"]["allocation"].clone();
    for name in ["a", "b"] {
        world.delete(name);
    }
    world.change_claim("a", |claim| claim["status"] = json!({"allocation": allocation}));
    world.pod_with_claim("c", "a", json!({}));
    world.pod_with_near_card("d", 40);
    world.reconcile();
    assert_eq!((world.bound().len(), world.has("d")), (2, vec!["gpu gpu-0".into(), "nic nic-0".into()]));
    assert_ne!(world.bound()["c"], world.bound()["d"], "the card there is taken");
}

#[test]
fn classes_of_both_stand_for_resources_of_one_pod() {
    let mut world = with_two_roots();
    for (class, driver, resource) in [("gpus", DRIVER, "example.com/gpu"), ("nics", NIC, "example.com/nic")] {
        let selectors = json!([{"cel": {"expression": format!("device.driver == {driver:?}")}}]);
        let spec = json!({"selectors": selectors, "extendedResourceName": resource});
        world.mirror.device_class(super::typed(&json!({"metadata": {"name": class}, "spec": spec})));
    }
    let limits = json!({"example.com/gpu": "1", "example.com/nic": "2"});
    let containers = json!([{"name": "main", "resources": {"limits": limits, "requests": limits}}]);
    world.pod("a", 0, json!({"spec": {"containers": containers}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{}", world.why_waiting("a"));
    let claim = world.claims.values().find(|claim| claim["status"]["reservedFor"][0]["name"] == "a").unwrap();
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().unwrap();
    let drivers: Vec<&Value> = results.iter().map(|result| &result["driver"]).collect();
    assert_eq!(drivers, [DRIVER, NIC, NIC]);
}

/// Requests for parts of all GPUs of a node and for a card.
fn all_and_a_card(part: u32) -> Value {
    let mut all = json!({"name": "gpu", "exactly": percent(part)});
    all["exactly"]["allocationMode"] = "All".into();
    json!([all, {"name": "nic", "exactly": {"deviceClassName": NIC}}])
}

#[test]
fn all_gpus_of_a_node_go_with_a_card() {
    let mut world = World::new();
    world.node_of_both("n", &[json!({}), json!({}), json!({})], &[json!({}), json!({})]);
    world.node_of_both("m", &[json!({}), json!({})], &[]);
    world.pod_of_both("a", all_and_a_card(60), json!([]));
    world.reconcile();
    assert_eq!(world.has("a"), ["gpu gpu-0", "gpu gpu-1", "gpu gpu-2", "nic nic-0"], "{}", world.why_waiting("a"));
    // A card is left, and GPUs have too little room. Then a node gets cards.
    world.pod_of_both("b", all_and_a_card(60), json!([]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.cards_of("m", &[json!({})]);
    world.reconcile();
    assert_eq!(world.has("b"), ["gpu gpu-0", "gpu gpu-1", "nic nic-0"]);
    let mut of_cards = all_and_a_card(30);
    of_cards[1]["exactly"]["allocationMode"] = "All".into();
    world.pod_of_both("c", of_cards, json!([]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "a card of each node is taken");
    world.delete("a");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.has("c"), ["gpu gpu-0", "gpu gpu-1", "gpu gpu-2", "nic nic-0", "nic nic-1"]);
    assert!(world.mirror.knows_right_places());
}

#[test]
fn all_gpus_of_a_node_are_near_a_card() {
    let mut world = World::new();
    world.node_of_both("n", &[of_root("a"), of_root("b")], &[of_root("a")]);
    world.node_of_both("m", &[of_root("a"), of_root("a"), of_root("a")], &[of_root("b"), of_root("a")]);
    world.pod_of_both("a", all_and_a_card(40), json!([same_root(&["gpu", "nic"])]));
    world.reconcile();
    assert_eq!(world.has("a"), ["gpu gpu-0", "gpu gpu-1", "gpu gpu-2", "nic nic-1"], "{}", world.why_waiting("a"));
    world.pod_of_both("b", all_and_a_card(40), json!([same_root(&["gpu", "nic"])]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    // The GPUs of a node are near its card by now.
    world.gpus_of("n", &[of_root("a"), of_root("a"), of_root("a"), of_root("a")]);
    world.reconcile();
    assert_eq!(world.has("b"), ["gpu gpu-0", "gpu gpu-1", "gpu gpu-2", "gpu gpu-3", "nic nic-0"]);
    assert!(world.mirror.knows_right_places());
}

#[test]
fn a_claim_for_all_gpus_without_a_binding_is_given_back() {
    let mut world = with_two_roots();
    world.pod_of_both("a", all_and_a_card(60), json!([]));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    assert!(world.reserve(&binding));
    world.change_leader();
    world.reconcile();
    assert_eq!(world.log, ["a given back", "a to n"]);
}

#[test]
fn parts_of_a_gpu_go_with_shares_of_a_card_near_it() {
    let mut world = World::new();
    let mut card = of_root("b");
    let shares = json!({"allowMultipleAllocations": true, "capacity": {"bandwidth": {"value": "10"}}});
    json_patch::merge(&mut card, &shares);
    world.node_of_both("n", &[of_root("a"), of_root("b")], &[json!({}), card]);
    for (name, part) in [("a", 40), ("b", 40), ("c", 20)] {
        let share = json!({"deviceClassName": NIC, "capacity": {"requests": {"bandwidth": "4"}}});
        let requests = json!([{"name": "gpu", "exactly": percent(part)}, {"name": "nic", "exactly": share}]);
        world.pod_of_both(name, requests, json!([same_root(&["gpu", "nic"])]));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    for name in ["a", "b"] {
        assert_eq!(world.has(name), ["gpu gpu-1", "nic nic-1"]);
        let result = &world.claims[name]["status"]["allocation"]["devices"]["results"][1];
        assert_eq!(result["consumedCapacity"], json!({"bandwidth": "4"}));
    }
    world.delete("a");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c"]);
    assert!(world.mirror.knows_right_places());
}

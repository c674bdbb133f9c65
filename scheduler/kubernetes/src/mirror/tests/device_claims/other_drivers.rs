//! Claims for devices of other drivers.

use k8s_openapi::api::resource::v1::{DeviceClass, ResourceSlice};
use serde_json::{Value, json};

use super::super::{World, Write, typed};
use super::{DRIVER, NIC};

impl World {
    /// A pool of another driver. `place` says where its devices can be used.
    pub(super) fn pool_of_nics(&mut self, pool: &str, place: Value, devices: Value) {
        self.made += 1;
        let mut slice = json!({"metadata": {"name": pool}, "spec": {
            "driver": NIC, "devices": devices,
            "pool": {"name": pool, "generation": self.made, "resourceSliceCount": 1},
        }});
        json_patch::merge(&mut slice["spec"], &place);
        self.mirror.resource_slice(typed::<ResourceSlice>(&slice));
        self.slices.insert(pool.into(), slice);
    }

    /// So many network cards of a node.
    pub(super) fn nics(&mut self, node: &str, count: usize) {
        let devices: Vec<Value> = (0..count).map(|number| json!({"name": format!("nic-{number}")})).collect();
        self.pool_of_nics(&format!("{node}-nics"), json!({"nodeName": node}), devices.into());
    }

    /// A claim with these requests for network cards.
    pub(super) fn claim_of_nics(&mut self, name: &str, requests: Value, constraints: Value) {
        self.claim(name, 0, None, json!({}));
        self.change_claim(name, |claim| {
            claim["spec"]["devices"] = json!({"requests": requests, "constraints": constraints});
        });
    }

    /// A pod with a claim of its name for a network card. `more` is merged into the request.
    pub(super) fn pod_with_nic(&mut self, name: &str, more: Value) {
        let mut exactly = json!({"deviceClassName": NIC});
        json_patch::merge(&mut exactly, &more);
        self.claim_of_nics(name, json!([{"name": "nic", "exactly": exactly}]), json!([]));
        self.pod_with_claim(name, name, json!({}));
    }

    /// All network cards that are given out.
    pub(super) fn cards_given_out(&self) -> Vec<String> {
        let of_claim = |claim: &String| self.nics_of(claim).into_iter().filter(|of| of.contains("-nics/"));
        self.claims.keys().flat_map(of_claim).collect()
    }

    /// What a claim has: request, pool and device.
    fn nics_of(&self, claim: &str) -> Vec<String> {
        let results = self.claims[claim]["status"]["allocation"]["devices"]["results"].as_array();
        let text = |of: &Value| of.as_str().unwrap().to_owned();
        let result = |of: &Value| format!("{} {}/{}", text(&of["request"]), text(&of["pool"]), text(&of["device"]));
        results.into_iter().flatten().map(result).collect()
    }
}

fn with_nics(counts: &[usize]) -> World {
    let mut world = World::new();
    for (node, count) in ["n", "m", "o"].iter().zip(counts) {
        world.node_with_driver(node, 1);
        world.nics(node, *count);
    }
    world
}

#[test]
fn a_pod_gets_a_card_beside_its_part_of_a_gpu() {
    let mut world = with_nics(&[0, 1]);
    let add = |world: &mut World, name: &str| {
        let nic = json!({"name": "nic", "exactly": {"deviceClassName": NIC}});
        world.claim_of_nics(name, json!([nic]), json!([]));
        world.claim(&format!("{name}-gpu"), 40, None, json!({}));
        let claims = json!([{"name": "x", "resourceClaimName": name}, {"name": "y", "resourceClaimName": format!("{name}-gpu")}]);
        let both = json!([{"name": "main", "resources": {"claims": [{"name": "x"}, {"name": "y"}]}}]);
        world.pod_with_claim(name, name, json!({"spec": {"resourceClaims": claims, "containers": both}}));
    };
    add(&mut world, "a");
    world.reconcile();
    assert_eq!(world.bound().into_iter().collect::<Vec<_>>(), [("a", "m")]);
    assert_eq!(world.nics_of("a"), ["nic m-nics/nic-0"]);
    assert_eq!(world.results("a-gpu").len(), 1);
    let claim = &world.claims["a"]["status"];
    let field = &claim["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!((&field["values"], &claim["reservedFor"][0]["name"]), (&json!(["m"]), &json!("a")));
    add(&mut world, "b");
    world.reconcile();
    let why = world.why_waiting("b");
    assert!(why.contains(NIC) && why.contains("DeviceClass"), "{why}");
    // The next leader knows what is allocated.
    world.change_leader();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.delete("a");
    world.reconcile();
    assert!(world.bound().is_empty(), "the card is not given back yet");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

#[test]
fn units_and_a_card_go_together() {
    let mut world = World::new();
    world.node("n", 1);
    world.nics("n", 1);
    world.pod_with_nic("a", json!({}));
    let spec = world.pods["a"]["spec"].clone();
    world.delete("a");
    world.pod("a", 50, json!({"spec": {"resourceClaims": spec["resourceClaims"]}}));
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.nics_of("a").len(), world.promised().len()), (vec!["a"], 1, 1));
}

#[test]
fn who_is_bound_first_has_the_last_card() {
    let mut world = with_nics(&[1]);
    // Two kinds: the books do not know that they want the same device.
    world.class("other", r#"device.driver == "nic.example.com" && true"#);
    world.pod_with_nic("a", json!({}));
    world.pod_with_nic("b", json!({"deviceClassName": "other"}));
    world.reconcile();
    let [bound] = world.names_of_bound().try_into().expect("one of them is bound");
    let waits = if bound == "a" { "b" } else { "a" }.to_owned();
    assert!(world.why_waiting(&waits).contains(NIC), "{}", world.why_waiting(&waits));
    assert!(world.nics_of(&waits).is_empty());
    let bound = bound.to_owned();
    world.delete(&bound);
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), [waits]);
}

#[test]
fn a_gang_starts_only_where_there_are_cards_for_all() {
    let mut world = with_nics(&[1, 2]);
    for (gang, size) in [("small", 3), ("large", 4)] {
        for member in 0..size {
            let name = format!("{gang}-{member}");
            world.pod_with_nic(&name, json!({}));
            world.join_gang(&name, gang, size);
        }
        if gang == "small" {
            world.reconcile();
            assert_eq!(world.names_of_bound().len(), 3, "{:?}", world.log);
            for member in 0..size {
                world.delete(&format!("{gang}-{member}"));
            }
            world.collect_claims();
        }
    }
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
}

#[test]
fn constraints_compare_lists_by_their_elements() {
    let mut world = World::new();
    world.node("n", 0);
    let device = |name: &str, roots: &[&str]| json!({"name": name, "attributes": {"roots": {"strings": roots}}});
    let devices = json!([
        device("a", &["0", "1"]),
        device("b", &["1", "2"]),
        device("c", &["0", "2"]),
        {"name": "d", "attributes": {"roots": {"string": "2"}}},
    ]);
    world.pool_of_nics("nics", json!({"nodeName": "n"}), devices);
    let three = json!([{"name": "x", "exactly": {"deviceClassName": NIC, "count": 3}}]);
    // Each two of the first three have an element in common, but not all of them.
    world.claim_of_nics("same", three, json!([{"matchAttribute": "nic.example.com/roots"}]));
    world.pod_with_claim("same", "same", json!({}));
    world.reconcile();
    assert_eq!(world.nics_of("same"), ["x nics/b", "x nics/c", "x nics/d"]);
    world.delete("same");
    world.collect_claims();
    let two = json!([{"name": "x", "exactly": {"deviceClassName": NIC, "count": 2}}]);
    world.claim_of_nics("apart", two, json!([{"distinctAttribute": "nic.example.com/roots"}]));
    world.pod_with_claim("apart", "apart", json!({}));
    world.reconcile();
    assert_eq!(world.nics_of("apart"), ["x nics/a", "x nics/d"]);
}

#[test]
fn requests_constraints_and_taints_are_heeded() {
    let mut world = World::new();
    world.node("n", 0);
    let device = |name: &str, rail: i64, more: Value| {
        let mut device = json!({"name": name, "attributes": {"rail": {"int": rail}, "fast": {"bool": rail == 2}}});
        json_patch::merge(&mut device, &more);
        device
    };
    let broken = json!({"taints": [{"key": "broken", "effect": "NoSchedule"}]});
    let devices = json!([
        device("a", 1, broken),
        device("b", 1, json!({})),
        device("c", 2, json!({})),
        device("d", 2, json!({})),
    ]);
    world.pool_of_nics("nics", json!({"nodeName": "n"}), devices);
    let fast = json!([{"cel": {"expression": r#"device.attributes["nic.example.com"].fast"#}}]);
    let requests = json!([
        {"name": "x", "exactly": {"deviceClassName": NIC}},
        {"name": "y", "exactly": {"deviceClassName": NIC, "selectors": fast}},
    ]);
    let same = json!([{"matchAttribute": "nic.example.com/rail"}]);
    world.claim_of_nics("near", requests, same);
    world.pod_with_claim("near", "near", json!({}));
    world.reconcile();
    assert_eq!(world.nics_of("near"), ["x nics/c", "y nics/d"]);
    // "all" waits: devices are taken or tainted. Of "list" only the second choice can be had, with one device.
    world.pod_with_nic("all", json!({"allocationMode": "All"}));
    let list = json!([
        {"name": "two", "deviceClassName": NIC, "count": 2}, {"name": "one", "deviceClassName": NIC},
    ]);
    world.claim_of_nics("list", json!([{"name": "nic", "firstAvailable": list}]), json!([]));
    world.pod_with_claim("list", "list", json!({}));
    world.reconcile();
    assert_eq!(world.nics_of("list"), ["nic/one nics/b"]);
    world.delete("list");
    world.delete("near");
    world.collect_claims();
    world.reconcile();
    assert!(!world.bound().contains_key("all"), "one has a taint");
    world.delete("all");
    world.pod_with_nic("every", json!({"allocationMode": "All", "tolerations": [{"operator": "Exists"}]}));
    world.reconcile();
    assert_eq!(world.nics_of("every").len(), 4);
    assert_eq!(
        world.claims["every"]["status"]["allocation"]["devices"]["results"][0]["tolerations"][0]["operator"],
        "Exists"
    );
}

#[test]
fn all_cards_of_a_node_wait_only_for_pools_that_reach_it() {
    let mut world = with_nics(&[2]);
    let zone = |name: &str| {
        let expression = json!({"key": "zone", "operator": "In", "values": [name]});
        json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]})
    };
    let mut node = world.nodes["n"].clone();
    node["metadata"]["labels"] = json!({"zone": "a"});
    world.make_node("n", node);
    // A slice of each of these pools is missing. The pool of zone a has no devices yet.
    let one_of_two = |place: Value| json!({"nodeSelector": place, "pool": {"resourceSliceCount": 2}});
    world.pool_of_nics("far", one_of_two(zone("b")), json!([{"name": "x"}]));
    world.pool_of_nics("near", one_of_two(zone("a")), json!([]));
    world.pod_with_nic("all", json!({"allocationMode": "All"}));
    world.reconcile();
    assert!(world.bound().is_empty(), "the pool near the node may get a card");
    world.pool_of_nics("near", json!({"nodeSelector": zone("a")}), json!([{"name": "y"}]));
    world.reconcile();
    assert_eq!(world.nics_of("all"), ["nic n-nics/nic-0", "nic n-nics/nic-1", "nic near/y"]);
}

/// Drivers can say by the names of pools and slices, and by the order in a slice, which devices go first.
#[test]
fn cards_are_tried_in_the_order_that_their_driver_says() {
    let mut world = World::new();
    world.node("n", 0);
    let cards = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<Value>>();
    world.pool_of_nics("b", json!({"nodeName": "n"}), json!(cards(&["10", "9"])));
    world.pool_of_nics("a", json!({"allNodes": true}), json!(cards(&["z"])));
    world.pool_of_nics("c", json!({"allNodes": true}), json!(cards(&["y"])));
    for (name, card) in [("p", "a/z"), ("q", "b/10"), ("r", "b/9"), ("s", "c/y")] {
        world.pod_with_nic(name, json!({}));
        world.reconcile();
        assert_eq!(world.nics_of(name), [format!("nic {card}")]);
    }
}

#[test]
fn devices_that_several_nodes_reach_are_given_out_once() {
    let mut world = World::new();
    for node in ["n", "m"] {
        world.node(node, 0);
    }
    world.nodes.get_mut("m").unwrap()["metadata"]["labels"] = json!({"zone": "a"});
    let node = world.nodes["m"].clone();
    world.make_node("m", node);
    let zone =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]});
    world.pool_of_nics("zone", json!({"nodeSelector": zone}), json!([{"name": "z"}]));
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    assert_eq!(world.bound().into_iter().collect::<Vec<_>>(), [("a", "m")]);
    assert_eq!(world.claims["a"]["status"]["allocation"]["nodeSelector"], zone);
    world.pool_of_nics("all", json!({"allNodes": true}), json!([{"name": "x"}]));
    for name in ["b", "c"] {
        world.pod_with_nic(name, json!({}));
    }
    world.reconcile();
    assert_eq!(world.bound().len(), 2);
    let bound = if world.bound().contains_key("b") { "b" } else { "c" };
    assert_eq!(world.nics_of(bound), ["nic all/x"]);
    assert!(world.claims[bound]["status"]["allocation"]["nodeSelector"].is_null());
    // The pool's only device is taken. Then a second one is published.
    world.pool_of_nics("all", json!({"allNodes": true}), json!([{"name": "x"}, {"name": "y"}]));
    world.reconcile();
    assert_eq!(world.bound().len(), 3);
}

#[test]
fn an_allocation_says_which_calls_on_the_node_are_left_out() {
    let mut world = with_nics(&[1]);
    let place = json!({"nodeName": "n", "skipNodeOperations": ["*"]});
    world.pool_of_nics("quiet", place, json!([{"name": "card", "attributes": {"kind": {"string": "quiet"}}}]));
    let expression = format!("\"kind\" in device.attributes[{NIC:?}]");
    world.pod_with_nic("quiet", json!({"selectors": [{"cel": {"expression": expression}}]}));
    world.pod_with_nic("plain", json!({"selectors": [{"cel": {"expression": format!("!({expression})")}}]}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["plain"], "the node does not say that it can leave out calls");
    let mut node = world.nodes["n"].clone();
    node["status"]["declaredFeatures"] = json!(["DRAOptionalNodeOperations"]);
    world.make_node("n", node);
    world.reconcile();
    let skipped = |claim: &str| {
        let result = &world.claims[claim]["status"]["allocation"]["devices"]["results"][0];
        assert!(result.is_object(), "{claim}: {}", world.why_waiting(claim));
        result["skipNodeOperations"].clone()
    };
    assert_eq!([skipped("quiet"), skipped("plain")], [json!(["*"]), Value::Null]);
}

/// Allocated by hand, or by kube-scheduler.
#[test]
fn a_pod_does_not_share_a_claim_with_what_is_not_supported_or_not_declared() {
    let mut world = with_nics(&[1]);
    let of_node = json!({"cpu": {"mapping": {"deviceMultiplier": "1"}}});
    world.pool_of_nics(
        "of-node",
        json!({"nodeName": "n"}),
        json!([{"name": "s", "nodeAllocatableResources": of_node}]),
    );
    world.pool_of_nics("quiet", json!({"nodeName": "n", "skipNodeOperations": ["*"]}), json!([{"name": "q"}]));
    for (claim, pool, device) in [("cores", "of-node", "s"), ("silent", "quiet", "q")] {
        let request = json!([{"name": "nic", "exactly": {"deviceClassName": NIC}}]);
        world.claim_of_nics(claim, request, json!([]));
        world.change_claim(claim, |claim| {
            let mut result = json!({"request": "nic", "driver": NIC, "pool": pool, "device": device});
            if pool == "quiet" {
                result["skipNodeOperations"] = json!(["*"]);
            }
            let user = json!({"resource": "pods", "name": "theirs", "uid": "theirs"});
            claim["status"] = json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]});
        });
        world.pod_with_claim(claim, claim, json!({}));
    }
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.bound());
    let why = world.why_waiting("cores");
    assert!(why.contains("of-node/s has resources of the node"), "{why}");
    let why = world.why_waiting("silent");
    assert!(why.contains("declaredFeatures/DRAOptionalNodeOperations"), "{why}");
    let mut node = world.nodes["n"].clone();
    node["status"]["declaredFeatures"] = json!(["DRAOptionalNodeOperations"]);
    world.make_node("n", node);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["silent"]);
}

#[test]
fn what_is_not_supported_of_other_drivers_is_named() {
    let mut world = with_nics(&[1]);
    let of_node = json!({"cpu": {"mapping": {"deviceMultiplier": "1"}}});
    let attributes = json!({"kind": {"string": "of-node"}});
    let cards = json!([{"name": "s", "nodeAllocatableResources": of_node, "attributes": attributes}]);
    world.pool_of_nics("of-node", json!({"nodeName": "n"}), cards);
    let kind = |kind: &str| {
        let attributes = r#"device.attributes["nic.example.com"]"#;
        json!({"selectors": [{"cel": {"expression": format!("{attributes}.?kind.orValue(\"\") == {kind:?}")}}]})
    };
    world.pod_with_nic("of-node", kind("of-node"));
    world.pod_with_nic("two", json!({"count": 2}));
    world.pod_with_nic("all", json!({"allocationMode": "All"}));
    world.pod_with_nic("fails", json!({"selectors": [{"cel": {"expression": "device.colour == 1"}}]}));
    world.reconcile();
    for (name, text) in [
        ("of-node", "resources of the node"),
        ("two", "does not support"),
        ("all", "does not support"),
        ("fails", "device.colour == 1"),
    ] {
        assert!(world.why_waiting(name).contains(text), "{name}: {}", world.why_waiting(name));
    }
    assert!(world.bound().is_empty());
    world.pod_with_nic("plain", json!({}));
    world.reconcile();
    assert_eq!(world.nics_of("plain"), ["nic n-nics/nic-0"]);
}

#[test]
fn gpus_that_are_too_small_keep_no_pod_from_other_choices() {
    let mut world = with_nics(&[1]);
    let list = json!([
        {"name": "card", "deviceClassName": NIC},
        {"name": "gpus", "deviceClassName": DRIVER, "allocationMode": "All", "capacity": {"requests": {"memory": "200Gi"}}},
    ]);
    world.claim_of_nics("list", json!([{"name": "any", "firstAvailable": list}]), json!([]));
    world.pod_with_claim("list", "list", json!({}));
    world.reconcile();
    assert_eq!(world.nics_of("list"), ["any/card n-nics/nic-0"]);
}

#[test]
fn parameters_of_a_class_are_written_once_for_all_its_requests() {
    let mut world = with_nics(&[2]);
    let config = json!([{"opaque": {"driver": NIC, "parameters": {"mtu": 9000}}}]);
    let class = json!({"metadata": {"name": "jumbo"}, "spec": {"config": config}});
    world.mirror.device_class(typed::<DeviceClass>(&class));
    let driver = json!([{"cel": {"expression": format!("device.driver == {NIC:?}")}}]);
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "jumbo", "selectors": driver}});
    world.claim_of_nics("two", json!([request("x"), request("y")]), json!([]));
    world.pod_with_claim("two", "two", json!({}));
    world.reconcile();
    let config = &world.claims["two"]["status"]["allocation"]["devices"]["config"];
    assert_eq!(config.as_array().map(Vec::len), Some(1), "{config}");
    assert_eq!(config[0]["requests"], json!(["x", "y"]));
}

#[test]
fn a_failure_on_one_node_keeps_no_pod_from_another() {
    let mut world = with_nics(&[1]);
    world.node("m", 0);
    let cards = json!([{"name": "new", "attributes": {"speed": {"int": 400}}}]);
    world.pool_of_nics("m-nics", json!({"nodeName": "m"}), cards);
    // The cards of node n do not say how fast they are.
    let fast = json!([{"cel": {"expression": r#"device.attributes["nic.example.com"].speed > 100"#}}]);
    world.pod_with_nic("all", json!({"allocationMode": "All", "selectors": fast}));
    world.reconcile();
    assert_eq!(world.nics_of("all"), ["nic m-nics/new"]);
}

#[test]
fn a_card_without_a_binding_is_given_back_by_the_next() {
    let mut world = with_nics(&[1]);
    world.pod_with_nic("a", json!({}));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    assert!(world.reserve(&binding));
    world.change_leader();
    world.pod_with_nic("b", json!({}));
    world.reconcile();
    assert_eq!(world.log[0], "a given back");
    assert_eq!(world.bound().len(), 1);
}

#[test]
fn a_card_that_was_given_out_twice_is_seen() {
    let mut world = with_nics(&[1]);
    world.pod_with_nic("a", json!({}));
    world.reconcile();
    assert!(world.mirror.has_too_much("default", "a").is_none());
    let allocation = world.claims["a"]["status"]["allocation"].clone();
    world.claim("theirs", 1, None, json!({}));
    world.change_claim("theirs", |claim| claim["status"]["allocation"] = allocation);
    world.hear();
    assert!(world.mirror.has_too_much("default", "a").is_some_and(|why| why.contains("n-nics/nic-0")));
    // Shares are not whole devices: their driver lets several claims have shares of one device.
    for (claim, share) in [("a", "x"), ("theirs", "y")] {
        world.change_claim(claim, |claim| {
            claim["status"]["allocation"]["devices"]["results"][0]["shareID"] = share.into();
        });
    }
    world.hear();
    assert!(world.mirror.has_too_much("default", "a").is_none());
}

#[test]
fn a_binding_that_fails_frees_the_card() {
    let mut world = with_nics(&[1]);
    world.pod_with_nic("a", json!({}));
    world.wait_for_writes();
    let Some(Write::Bind(binding)) = world.writes.pop() else { panic!("a is to be bound") };
    world.pod_with_nic("b", json!({}));
    world.reconcile();
    assert!(world.bound().is_empty(), "the card is promised");
    world.delete("a");
    world.mirror.bound(&binding, Err("it is gone".into()));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

#[test]
fn a_class_of_another_driver_stands_for_a_resource() {
    let mut world = with_nics(&[2]);
    let expression = r#"device.driver == "nic.example.com""#;
    let spec = json!({"selectors": [{"cel": {"expression": expression}}], "extendedResourceName": "example.com/nic"});
    world.mirror.device_class(typed::<DeviceClass>(&json!({"metadata": {"name": "nics"}, "spec": spec})));
    let limits = json!({"example.com/nic": "2"});
    let containers = json!([{"name": "main", "resources": {"limits": limits, "requests": limits}}]);
    for name in ["a", "b"] {
        world.pod(name, 0, json!({"spec": {"containers": containers}}));
    }
    world.reconcile();
    let [bound] = world.names_of_bound().try_into().expect("one of them is bound");
    let claim = world.claims.values().find(|claim| claim["status"]["reservedFor"][0]["name"] == bound);
    let results = claim.unwrap()["status"]["allocation"]["devices"]["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["driver"]), (2, &json!(NIC)));
}

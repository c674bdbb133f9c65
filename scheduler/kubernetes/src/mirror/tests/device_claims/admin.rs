//! Claims for administrative access to devices of other drivers.

use serde_json::{Value, json};

use super::super::World;
use super::{DRIVER, NIC};
use crate::mirror::AboutDevices;

/// A request for administrative access.
fn access() -> Value {
    json!({"adminAccess": true})
}

/// A node with two cards, and pods that have both.
fn with_cards_in_use() -> World {
    let mut world = World::new();
    world.node("n", 0);
    world.nics("n", 2);
    for name in ["a", "b"] {
        world.pod_with_nic(name, json!({}));
    }
    world.reconcile();
    assert_eq!(world.cards_given_out().len(), 2);
    world
}

impl World {
    /// The results of a claim: the device, and whether the access is administrative.
    fn access_of(&self, claim: &str) -> Vec<(&str, bool)> {
        let results = self.claims[claim]["status"]["allocation"]["devices"]["results"].as_array();
        let results = results.into_iter().flatten();
        results.map(|of| (of["device"].as_str().unwrap(), of["adminAccess"] == true)).collect()
    }
}

#[test]
fn administrators_have_access_to_cards_in_use() {
    let mut world = with_cards_in_use();
    world.pod_with_nic("one", access());
    let mut all = access();
    all["allocationMode"] = "All".into();
    for name in ["all", "all-too"] {
        world.pod_with_nic(name, all.clone());
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "all", "all-too", "b", "one"], "{:?}", world.log);
    assert_eq!(world.access_of("one"), [("nic-0", true)]);
    assert_eq!(world.access_of("all"), [("nic-0", true), ("nic-1", true)]);
    for claim in ["a", "one", "all"] {
        assert_eq!(world.mirror.has_too_much("default", claim), None);
    }
    assert!(world.mirror.knows_right_places());
    // The cards are free as soon as those who use them are gone.
    for name in ["a", "b"] {
        world.delete(name);
    }
    world.collect_claims();
    world.change_leader();
    world.pod_with_nic("c", json!({"count": 2}));
    world.reconcile();
    assert_eq!(world.access_of("c"), [("nic-0", false), ("nic-1", false)]);
}

#[test]
fn an_administrator_needs_the_tolerations_of_others() {
    let mut world = World::new();
    world.node("n", 0);
    let broken = json!([{"key": "broken", "effect": "NoExecute"}]);
    world.pool_of_nics("n-nics", json!({"nodeName": "n"}), json!([{"name": "x", "taints": broken}]));
    world.pod_with_nic("a", access());
    let mut tolerates = access();
    tolerates["tolerations"] = json!([{"operator": "Exists"}]);
    world.pod_with_nic("b", tolerates);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

/// Kubernetes' own allocator looks at capacities and counters for access, too. It does not look at them for others then.
#[test]
fn access_needs_room_and_leaves_it_to_others() {
    let mut world = World::new();
    world.node("n", 0);
    let takes = json!([{"counterSet": "set", "counters": {"slots": {"value": "4"}}}]);
    let shared =
        json!({"name": "shared", "allowMultipleAllocations": true, "capacity": {"bandwidth": {"value": "10"}}});
    let [part, other] = ["part", "other"].map(|name| json!({"name": name, "consumesCounters": takes}));
    let counters = json!([{"name": "set", "counters": {"slots": {"value": "8"}}}]);
    let devices = json!([part, other, shared]);
    world.pool_of_nics("n-nics", json!({"nodeName": "n", "sharedCounters": counters}), devices);
    world.pod_with_nic("user", json!({}));
    world.reconcile();
    assert_eq!(world.access_of("user"), [("part", false)]);
    // There are counters for one more device, and access takes them from nobody.
    for name in ["x", "y"] {
        world.pod_with_nic(name, access());
    }
    world.reconcile();
    assert_eq!((world.access_of("x"), world.access_of("y")), (vec![("part", true)], vec![("part", true)]));
    let half = json!({"capacity": {"requests": {"bandwidth": "5"}}});
    let mut look_at_half = access();
    json_patch::merge(&mut look_at_half, &half);
    world.pod_with_nic("z", look_at_half.clone());
    world.pod_with_nic("half", half.clone());
    world.reconcile();
    assert_eq!((world.access_of("z"), world.access_of("half")), (vec![("shared", true)], vec![("shared", false)]));
    // A share has a name, also if an administrator has it.
    let result = &world.claims["z"]["status"]["allocation"]["devices"]["results"][0];
    assert!(result["shareID"].is_string() && result["consumedCapacity"]["bandwidth"] == "5", "{result}");
    world.pod_with_nic("other-half", half);
    world.pod_with_nic("rest", json!({}));
    world.reconcile();
    assert_eq!(world.access_of("other-half"), [("shared", false)]);
    assert_eq!(world.access_of("rest"), [("other", false)]);
    // Now neither counters nor capacity are left.
    world.pod_with_nic("late", access());
    world.pod_with_nic("late-half", look_at_half);
    world.reconcile();
    assert!(world.access_of("late").is_empty() && world.access_of("late-half").is_empty(), "{:?}", world.log);
    let why = world.mirror.about_devices(&world.uid("late-half"), &mut AboutDevices::default()).concat();
    assert!(why.contains("n-nics/shared has 0 of its capacity \"bandwidth\" left"), "{why}");
}

/// As in Kubernetes' own allocator, which goes through all claims of a pod together.
#[test]
fn a_later_claim_of_the_pod_has_another_card() {
    let mut world = World::new();
    world.node("n", 0);
    world.nics("n", 2);
    let request = |more: Value| {
        let mut exactly = json!({"deviceClassName": NIC});
        json_patch::merge(&mut exactly, &more);
        json!([{"name": "nic", "exactly": exactly}])
    };
    world.claim_of_nics("look", request(access()), json!([]));
    world.claim_of_nics("use", request(json!({})), json!([]));
    let claims = json!([{"name": "look", "resourceClaimName": "look"}, {"name": "use", "resourceClaimName": "use"}]);
    world.pod("a", 0, json!({"spec": {"resourceClaims": claims}}));
    world.reconcile();
    assert_eq!(world.access_of("look"), [("nic-0", true)]);
    assert_eq!(world.access_of("use"), [("nic-1", false)]);
}

#[test]
fn a_gang_of_administrators_is_on_one_card() {
    let mut world = World::new();
    world.node("n", 0);
    world.nics("n", 1);
    for number in 0..3 {
        let name = format!("member-{number}");
        world.pod_with_nic(&name, access());
        world.join_gang(&name, "g", 3);
    }
    world.reconcile();
    assert_eq!(world.names_of_bound().len(), 3, "{:?}", world.log);
}

#[test]
fn a_claim_has_a_card_and_looks_at_the_others() {
    let mut world = World::new();
    world.node("n", 0);
    world.nics("n", 2);
    let request = |name: &str, more: Value| {
        let mut exactly = json!({"deviceClassName": NIC});
        json_patch::merge(&mut exactly, &more);
        json!({"name": name, "exactly": exactly})
    };
    let requests = json!([request("look", access()), request("use", json!({}))]);
    world.claim_of_nics("a", requests, json!([]));
    world.pod_with_claim("a", "a", json!({}));
    world.reconcile();
    assert_eq!(world.access_of("a"), [("nic-0", true), ("nic-1", false)]);
}

#[test]
fn there_is_no_access_to_devices_of_ours() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("a", 10, None, access());
    world.pod_with_claim("a", "a", json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
    let why = world.why_waiting("a");
    assert!(why.contains("adminAccess") && why.contains("gpu.aliquot.dev"), "{why}");
}

/// Kube-scheduler allocates such claims, and only it could allocate them anew.
#[test]
fn access_to_devices_of_ours_that_is_there_is_left_alone() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    for (name, driver, is_given_back) in [("ours", DRIVER, false), ("theirs", NIC, true)] {
        world.claim(name, 10, None, access());
        world.pod_with_claim(name, name, json!({"spec": {"schedulingGates": [{"name": "later"}]}}));
        let user = json!({"resource": "pods", "name": name, "uid": world.uid(name)});
        let result = json!({"request": "gpu", "driver": driver, "pool": "n", "device": "x", "adminAccess": true});
        world.change_claim(name, |claim| {
            claim["status"] = json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]});
        });
        let left_over = world.mirror.left_over_claims();
        assert_eq!(left_over.iter().any(|of| of.claim.name == name), is_given_back, "{name}");
    }
}

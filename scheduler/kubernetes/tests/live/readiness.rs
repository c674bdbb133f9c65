//! Pods with devices of other drivers that must be made ready, and pods with administrative access to such devices.

use aliquot_test_api_server::{CLAIMS, NAMESPACES};
use serde_json::{Value, json};

use crate::kit::Cluster;
use crate::other_drivers::DRIVER;

impl Cluster {
    /// A pod with a claim of its name for a card. `more` is merged into the request.
    fn pod_with_card(&self, name: &str, more: Value) {
        let mut exactly = json!({"deviceClassName": DRIVER});
        json_patch::merge(&mut exactly, &more);
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "nic", "exactly": exactly}]}},
        });
        self.objects.create(&CLAIMS, "default", claim);
        let claims = json!([{"name": "nic", "resourceClaimName": name}]);
        let containers = json!([{"name": "main", "image": "none", "resources": {"claims": [{"name": "nic"}]}}]);
        self.pod(name, 0, json!({"spec": {"resourceClaims": claims, "containers": containers}}));
    }

    /// The result of a claim for one card, if it is allocated.
    fn result_of(&self, claim: &str) -> Option<Value> {
        let results = self.status_of_claim(claim)["allocation"]["devices"]["results"].as_array()?.clone();
        let [result] = <[Value; 1]>::try_from(results).expect("the claim is for one card");
        Some(result)
    }

    /// What the driver says of the card of a claim.
    fn say_of(&self, claim: &str, condition: &str) {
        let result = self.result_of(claim).expect("the claim is allocated");
        let condition = json!({
            "type": condition, "status": "True", "reason": "Said", "message": "by the driver",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let (driver, pool, device) = (&result["driver"], &result["pool"], &result["device"]);
        let device = json!({"driver": driver, "pool": pool, "device": device, "conditions": [condition]});
        self.objects.merge_status(&CLAIMS, "default", claim, &json!({"status": {"devices": [device]}}));
    }
}

#[test]
fn a_pod_is_bound_when_a_card_is_ready_for_it() {
    let mut cluster = Cluster::start();
    cluster.class_of_cards();
    let card = json!({"name": "nic-0", "bindingConditions": ["Near"], "bindingFailureConditions": ["Broken"]});
    for node in ["n", "m"] {
        cluster.node_with_driver(node, &["H100"]);
        cluster.pool_of_cards(node, json!([card]));
    }
    let _scheduler = cluster.scheduler();
    cluster.pod_with_card("a", json!({}));
    cluster.wait_until("the pod waits for its card", |cluster| {
        let is_said = |event: &String| event.contains("DevicesNotReady") && event.contains("Near");
        cluster.events_about("a").iter().any(is_said)
    });
    let first = cluster.result_of("a").unwrap();
    assert_eq!(first["bindingConditions"], card["bindingConditions"]);
    let nominated = cluster.get("a")["status"]["nominatedNodeName"].clone();
    assert_eq!(first["pool"], format!("{}-nics", nominated.as_str().unwrap()));
    assert!(cluster.status_of_claim("a")["allocation"]["allocationTimestamp"].is_string());
    assert!(cluster.bound().is_empty());
    cluster.say_of("a", "Broken");
    cluster.wait_until("another card is tried", |cluster| {
        cluster.result_of("a").is_some_and(|result| result["pool"] != first["pool"])
    });
    assert!(cluster.status_of_claim("a")["devices"].is_null(), "what was said of the first card is gone");
    cluster.say_of("a", "Near");
    cluster.wait_until_bound(&["a"]);
    let node = cluster.bound()["a"].clone();
    assert_eq!(cluster.result_of("a").unwrap()["pool"], format!("{node}-nics"));
}

#[test]
fn an_administrator_has_access_to_a_card_in_use() {
    let mut cluster = Cluster::start();
    let labels = json!({"resource.kubernetes.io/admin-access": "true"});
    let metadata = json!({"name": "default", "labels": labels});
    cluster.objects.replace(&NAMESPACES, "", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    cluster.node_with_driver("n", &["H100"]);
    cluster.cards("n", 1);
    let _scheduler = cluster.scheduler();
    cluster.pod_with_card("a", json!({}));
    cluster.wait_until_bound(&["a"]);
    cluster.pod_with_card("b", json!({"adminAccess": true, "allocationMode": "All"}));
    cluster.wait_until_bound(&["a", "b"]);
    let result = cluster.result_of("b").unwrap();
    assert_eq!((&result["device"], &result["adminAccess"]), (&json!("nic-0"), &json!(true)));
    cluster.pod_with_card("c", json!({}));
    cluster.wait_until("the card is in use", |cluster| cluster.why_waiting("c").is_some());
    assert_eq!(cluster.result_of("c"), None);
}

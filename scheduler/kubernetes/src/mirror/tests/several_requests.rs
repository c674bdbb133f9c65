//! Claims with several requests, and pods with several claims.

use k8s_openapi::api::resource::v1::ResourceSlice;
use serde_json::{Value, json};

use super::{World, typed};
use crate::dra::DRIVER;

impl World {
    /// A claim with these requests, by name and percent, and these constraints.
    pub(super) fn claim_of_several(&mut self, name: &str, requests: &[(&str, u32)], constraints: Value) {
        self.claim(name, 0, None, json!({}));
        let request = |(name, percent): &(&str, u32)| {
            let capacity = json!({"requests": {"core": percent.to_string(), "memory": "1Gi"}});
            json!({"name": name, "exactly": {"deviceClassName": DRIVER, "capacity": capacity}})
        };
        let requests: Vec<Value> = requests.iter().map(request).collect();
        self.change_claim(name, |claim| {
            claim["spec"]["devices"] = json!({"requests": requests, "constraints": constraints});
        });
    }

    /// What a claim was allocated: request, device and percent.
    pub(super) fn results(&self, claim: &str) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let results = self.claims[claim]["status"]["allocation"]["devices"]["results"].as_array();
        let result = |of: &Value| (text(&of["request"]), text(&of["device"]), text(&of["consumedCapacity"]["core"]));
        results.into_iter().flatten().map(result).collect()
    }
}

#[test]
fn each_request_of_a_claim_gets_its_own_part() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    world.pod_with_part("busy", 30, json!({}));
    world.reconcile();
    world.claim_of_several("c", &[("side", 20), ("train", 100)], json!([]));
    let containers = json!([
        {"name": "train", "resources": {"claims": [{"name": "gpu", "request": "train"}]}},
        {"name": "side", "resources": {"claims": [{"name": "gpu", "request": "side"}]}},
    ]);
    world.pod_with_claim("a", "c", json!({"spec": {"containers": containers}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "busy"]);
    let of = |request: &str, device: &str, core: &str| (request.to_owned(), device.to_owned(), core.to_owned());
    assert_eq!(world.results("c"), [of("side", "gpu-0", "20"), of("train", "gpu-1", "100")]);
    // The next leader knows what the pod holds.
    world.change_leader();
    world.pod_with_part("b", 60, json!({}));
    world.reconcile();
    assert!(world.why_waiting("b").contains("60 % gpu-core"), "{}", world.why_waiting("b"));
    world.pod_with_part("d", 50, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "busy", "d"]);
}

#[test]
fn which_request_of_a_claim_does_not_fit_is_named() {
    let mut world = World::new();
    world.node_with_driver("n", 2);
    let distinct = json!([{"distinctAttribute": "gpu.aliquot.dev/uuid"}]);
    world.claim_of_several("c", &[("x", 10), ("y", 10), ("z", 10)], distinct);
    world.pod_with_claim("a", "c", json!({}));
    world.claim_of_several("d", &[("x", 10), ("y", 101)], json!([]));
    world.pod_with_claim("b", "d", json!({}));
    world.reconcile();
    assert!(world.bound().is_empty());
    assert!(world.why_waiting("a").contains("request \"z\" beside"), "{}", world.why_waiting("a"));
    assert!(world.why_waiting("b").contains("\"y\""), "{}", world.why_waiting("b"));
}

#[test]
fn constraints_compare_devices_of_several_requests() {
    let mut world = World::new();
    world.node("n", 0);
    world.publish("n", 4, json!({}));
    let mut slice = world.slices["n"].clone();
    for (device, rack) in slice["spec"]["devices"].as_array_mut().unwrap().iter_mut().zip(1..) {
        device["attributes"]["rack"] = json!({"int": rack / 3});
    }
    slice["spec"]["pool"]["generation"] = 1_000.into();
    world.mirror.resource_slice(typed::<ResourceSlice>(&slice));
    let same = |other: Value| json!([{"matchAttribute": "gpu.aliquot.dev/rack"}, other]);
    let distinct = json!({"requests": ["x", "y"], "distinctAttribute": "gpu.aliquot.dev/uuid"});
    for name in ["c", "d"] {
        world.claim_of_several(name, &[("x", 60), ("y", 60), ("z", 40)], same(distinct.clone()));
        world.pod_with_claim(name, name, json!({}));
        world.reconcile();
    }
    assert_eq!(world.names_of_bound(), ["c", "d"]);
    for (claim, devices) in [("c", ["gpu-0", "gpu-1"]), ("d", ["gpu-2", "gpu-3"])] {
        let results = world.results(claim);
        assert_eq!([&results[0].1, &results[1].1], devices, "{results:?}");
        assert!(devices.contains(&results[2].1.as_str()), "{results:?}");
    }
    let missing = json!([{"matchAttribute": "example.com/none"}]);
    world.claim_of_several("e", &[("x", 1), ("y", 1)], missing);
    world.pod_with_claim("e", "e", json!({}));
    world.reconcile();
    assert!(!world.bound().contains_key("e"));
}

#[test]
fn a_pod_has_several_claims_of_its_own_and_of_others() {
    let mut world = World::new();
    world.node_with_driver("n", 1);
    world.claim("shared", 10, None, json!({}));
    let mine = json!([
        {"name": "x", "resourceClaimTemplateName": "t"}, {"name": "y", "resourceClaimTemplateName": "t"},
        {"name": "z", "resourceClaimName": "shared"},
    ]);
    let made = json!([{"name": "x", "resourceClaimName": "a-x"}, {"name": "y", "resourceClaimName": "a-y"}]);
    world.pod("a", 0, json!({"spec": {"resourceClaims": mine}, "status": {"resourceClaimStatuses": made}}));
    let uid = world.pods["a"]["metadata"]["uid"].as_str().unwrap().to_owned();
    for (claim, percent) in [("a-x", 30), ("a-y", 20)] {
        world.claim(claim, percent, Some(&uid), json!({}));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    let of = |percent: &str| vec![("gpu".to_owned(), "gpu-0".to_owned(), percent.to_owned())];
    assert_eq!([world.results("a-x"), world.results("a-y"), world.results("shared")], [of("30"), of("20"), of("10")]);
    for _ in 0..2 {
        world.pod_with_part("b", 50, json!({}));
        world.reconcile();
        assert!(!world.bound().contains_key("b"), "{:?}", world.log);
        world.delete("b");
        world.collect_claims();
        world.change_leader();
    }
    // A pod's own claims are deleted with the pod, and their devices become free.
    world.pod_with_part("b", 50, json!({}));
    world.delete("a");
    world.collect_claims();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
}

//! Pods with resource claims for devices of other drivers.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_dialects::quantity;
use aliquot_test_api_server::{CLAIMS, DEVICE_CLASSES, DEVICE_TAINT_RULES, Fault, PODS, SLICES};
use serde_json::{Value, json};

use crate::kit::Cluster;
use crate::kubectl::json_of;

pub(crate) const DRIVER: &str = "nic.example.com";

impl Cluster {
    /// A class for this driver's devices, and so many of them on a node.
    pub(crate) fn cards(&self, node: &str, count: usize) {
        self.class_of_cards();
        let devices: Vec<Value> = (0..count).map(|number| json!({"name": format!("nic-{number}")})).collect();
        self.pool_of_cards(node, devices.into());
    }

    pub(crate) fn class_of_cards(&self) {
        let expression = format!("device.driver == {DRIVER:?}");
        let class = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        });
        self.objects.create(&DEVICE_CLASSES, "", class);
    }

    /// The cards of a node.
    pub(crate) fn pool_of_cards(&self, node: &str, devices: Value) {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": format!("{node}-nics")},
            "spec": {
                "driver": DRIVER, "nodeName": node, "devices": devices,
                "pool": {"name": format!("{node}-nics"), "generation": 1, "resourceSliceCount": 1},
            },
        });
        self.objects.create(&SLICES, "", slice);
    }

    /// The pod of the example, with claims made by hand, as Kubernetes' controller makes them.
    fn pod_of_example(&self, name: &str) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("../../deploy/kubernetes/examples/scheduler/other-driver.yaml");
        let example = std::fs::read_to_string(path).unwrap();
        let [gpu, card, pod] =
            serde_saphyr::from_multiple::<Value>(&example).unwrap().try_into().expect("three objects");
        for (of, template) in [("gpu", gpu), ("nic", card)] {
            let claim = json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                "metadata": {"name": format!("{name}-{of}")}, "spec": template["spec"]["spec"],
            });
            self.objects.create(&CLAIMS, "default", claim);
        }
        let mut spec = pod["spec"].clone();
        spec["resourceClaims"] = json!([
            {"name": "gpu", "resourceClaimName": format!("{name}-gpu")},
            {"name": "nic", "resourceClaimName": format!("{name}-nic")},
        ]);
        self.pod(name, 0, json!({"spec": spec}));
    }

    pub(crate) fn status_of_claim(&self, name: &str) -> Value {
        self.objects.get(&CLAIMS, "default", name)["status"].clone()
    }

    /// What Kubernetes' controller of claims does when their only user is gone.
    pub(crate) fn give_back(&self, claim: &str) {
        let status = json!({"status": {"reservedFor": null, "allocation": null}});
        self.objects.merge_status(&CLAIMS, "default", claim, &status);
    }
}

#[test]
fn a_pod_gets_a_card_beside_its_part_of_a_gpu() {
    let mut cluster = Cluster::start();
    cluster.device_classes();
    cluster.node_with_driver("n", &["H100"]);
    cluster.cards("n", 1);
    let leader = cluster.scheduler();
    cluster.pod_of_example("a");
    cluster.wait_until_bound(&["a"]);
    let status = cluster.status_of_claim("a-nic");
    let result = json!({"request": "nic", "driver": DRIVER, "pool": "n-nics", "device": "nic-0"});
    assert_eq!(status["allocation"]["devices"]["results"], json!([result]));
    let field = &status["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!((&field["values"], &status["reservedFor"][0]["name"]), (&json!(["n"]), &json!("a")));
    let finalizers = &cluster.objects.get(&CLAIMS, "default", "a-nic")["metadata"]["finalizers"];
    assert_eq!(*finalizers, json!(["resource.kubernetes.io/delete-protection"]));
    assert!(cluster.status_of_claim("a-gpu")["allocation"].is_object());
    // The next leader knows who has it, and says to the other one what is missing.
    leader.kill();
    let _next = cluster.scheduler();
    cluster.pod_of_example("b");
    cluster.wait_until("b says what is missing", |cluster| {
        let said = cluster.why_waiting("b");
        said.is_some_and(|(reason, text)| {
            reason == "Unschedulable" && text.contains(DRIVER) && text.contains("DeviceClass")
        })
    });
    assert!(cluster.status_of_claim("b-nic")["allocation"].is_null());
    cluster.objects.delete(&PODS, "default", "a");
    ["a-nic", "a-gpu"].into_iter().for_each(|claim| cluster.give_back(claim));
    cluster.wait_until_bound(&["b"]);
}

#[test]
fn pods_share_a_card_and_a_third_one_waits_for_capacity() {
    let mut cluster = Cluster::start();
    cluster.node_with_driver("n", &["H100"]);
    cluster.class_of_cards();
    let capacity = json!({"bandwidth": {"value": "10G"}});
    cluster.pool_of_cards("n", json!([{"name": "nic-0", "allowMultipleAllocations": true, "capacity": capacity}]));
    let _scheduler = cluster.scheduler();
    let of_claim = |claim: &str| {
        let claims = json!([{"name": "nic", "resourceClaimName": claim}]);
        let containers = json!([{"name": "main", "image": "none", "resources": {"claims": [{"name": "nic"}]}}]);
        json!({"spec": {"resourceClaims": claims, "containers": containers}})
    };
    let add = |cluster: &Cluster, name: &str| {
        let exactly = json!({"deviceClassName": DRIVER, "capacity": {"requests": {"bandwidth": "4G"}}});
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [{"name": "nic", "exactly": exactly}]}},
        });
        cluster.objects.create(&CLAIMS, "default", claim);
        cluster.pod(name, 0, of_claim(name));
    };
    ["a", "b"].into_iter().for_each(|name| add(&cluster, name));
    cluster.wait_until_bound(&["a", "b"]);
    let share = |cluster: &Cluster, name: &str| {
        let results = cluster.status_of_claim(name)["allocation"]["devices"]["results"].clone();
        let [result] = <[Value; 1]>::try_from(results.as_array().unwrap().clone()).unwrap();
        assert_eq!((&result["device"], &result["pool"]), (&json!("nic-0"), &json!("n-nics")));
        // A real API server writes "4G".
        let bandwidth = result["consumedCapacity"]["bandwidth"].as_str().unwrap();
        assert_eq!(quantity::thousandths(bandwidth).ok(), Some(4_000_000_000_000));
        result["shareID"].as_str().unwrap().to_owned()
    };
    assert_ne!(share(&cluster, "a"), share(&cluster, "b"));
    add(&cluster, "c");
    let lacks = "n-nics/nic-0 has 2000000000 of its capacity \"bandwidth\" left, and the request takes 4000000000";
    cluster.wait_until("c says what the card lacks", |cluster| {
        cluster.why_waiting("c").is_some_and(|(reason, text)| reason == "Unschedulable" && text.contains(lacks))
    });
    assert!(cluster.status_of_claim("c")["allocation"].is_null());
    cluster.objects.delete(&PODS, "default", "a");
    cluster.give_back("a");
    cluster.wait_until_bound(&["b", "c"]);
    share(&cluster, "c");
    // The card gets smaller than its shares. A further user of a claim takes nothing more of it.
    let smaller =
        json!([{"name": "nic-0", "allowMultipleAllocations": true, "capacity": {"bandwidth": {"value": "5G"}}}]);
    cluster.objects.merge(&SLICES, "", "n-nics", &json!({"spec": {"devices": smaller, "pool": {"generation": 2}}}));
    add(&cluster, "d");
    cluster.wait_until("d says that nothing is left", |cluster| {
        cluster.why_waiting("d").is_some_and(|(_, text)| text.contains("n-nics/nic-0 has 0 of its capacity"))
    });
    cluster.pod("e", 0, of_claim("c"));
    cluster.wait_until_bound(&["b", "c", "e"]);
}

#[test]
fn a_card_is_given_back_if_its_pod_is_not_bound() {
    let mut cluster = Cluster::with_faults();
    cluster.device_classes();
    cluster.node_with_driver("n", &["H100"]);
    cluster.cards("n", 1);
    let first = AtomicBool::new(true);
    cluster.server().set_fault(move |_, path| match path.ends_with("/a/binding") {
        true if first.swap(false, Ordering::SeqCst) => Fault::Refused,
        _ => Fault::None,
    });
    let _scheduler = cluster.scheduler();
    cluster.pod_of_example("a");
    cluster.wait_until_bound(&["a"]);
    let results = &cluster.status_of_claim("a-nic")["allocation"]["devices"]["results"];
    assert_eq!((results.as_array().map(Vec::len), &results[0]["device"]), (Some(1), &json!("nic-0")));
}

#[test]
fn explain_says_of_cards_what_the_condition_says() {
    let mut cluster = Cluster::with_faults();
    cluster.device_classes();
    cluster.node_with_driver("n", &["H100"]);
    cluster.cards("n", 1);
    let scheduler = cluster.scheduler();
    cluster.make_pod_of(1, &scheduler);
    cluster.pod_of_example("a");
    cluster.wait_until_bound(&["a"]);
    cluster.pod_of_example("b");
    let of_cards = "devices that are allocated already do not count as there";
    cluster.wait_until("b says what does not count", |cluster| {
        cluster.why_waiting("b").is_some_and(|(_, why)| why.contains(of_cards))
    });
    let reasons = json_of::<Value>(&cluster, &["explain", "b"])["reasons"].to_string();
    assert!(reasons.contains(of_cards) && reasons.contains(DRIVER), "{reasons}");
}

#[test]
fn a_rule_taints_a_card_until_it_is_deleted() {
    let mut cluster = Cluster::start();
    cluster.device_classes();
    cluster.node_with_driver("n", &["H100"]);
    cluster.cards("n", 1);
    let rule = json!({
        "apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "repair"},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "device": "nic-0"},
            "taint": {"key": "example.com/repair", "effect": "NoSchedule"},
        },
    });
    cluster.objects.create(&DEVICE_TAINT_RULES, "", rule);
    let _scheduler = cluster.scheduler();
    cluster.pod_of_example("a");
    cluster.wait_until("a says that devices are tainted", |cluster| {
        cluster.why_waiting("a").is_some_and(|(_, why)| why.contains("the taint example.com/repair:NoSchedule"))
    });
    cluster.objects.delete(&DEVICE_TAINT_RULES, "", "repair");
    cluster.wait_until_bound(&["a"]);
}

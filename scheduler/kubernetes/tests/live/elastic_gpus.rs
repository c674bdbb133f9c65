//! Claims for parts of GPUs, from the first pod to the end of the claim.

use std::path::PathBuf;

use aliquot_api_server::{INVENTORY, Inventory, InventoryDevice};
use aliquot_dialects::{Dialect, NodeFacts, Spoken};
use aliquot_test_api_server::{CORE_EVENTS, ELASTIC_GPU_CLAIMS, ELASTIC_GPU_CLASSES, ELASTIC_GPUS, Fault, NODES, PODS};
use serde_json::{Value, json};

use crate::kit::Cluster;

impl Cluster {
    /// A node whose manager speaks the dialect of claims for parts.
    pub(crate) fn node_with_elastic_gpus(&self, name: &str, devices: usize) {
        self.node(name, devices);
        self.speaks(name, devices, Dialect::ElasticGpu);
    }

    /// The manager of a node with so many devices speaks this dialect.
    pub(crate) fn speaks(&self, name: &str, devices: usize, dialect: Dialect) {
        let device = |number: usize| InventoryDevice {
            uuid: format!("GPU-{name}-{number}"),
            model: "NVIDIA H100".into(),
            memory_bytes: 80 << 30,
            ..InventoryDevice::default()
        };
        let devices = (0..devices).map(device).collect();
        let spoken = Spoken::new([dialect]).unwrap();
        let inventory = Inventory::new(devices, &spoken, &NodeFacts::default());
        let annotations = json!({INVENTORY: serde_json::to_string(&inventory).unwrap()});
        self.objects.merge(&NODES, "", name, &json!({"metadata": {"annotations": annotations}}));
    }

    /// Makes the class, the claim and the pod of the example: all but those of the kinds that are named here.
    pub(crate) fn elastic_gpu_example(&self, without: &[&str]) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let path = path.join("../../deploy/kubernetes/examples/scheduler/elastic-gpu.yaml");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
        for object in objects {
            let (resource, namespace) = match object["kind"].as_str().unwrap() {
                kind if without.contains(&kind) => continue,
                "ElasticGPUClass" => (&ELASTIC_GPU_CLASSES, ""),
                "ElasticGPUClaim" => (&ELASTIC_GPU_CLAIMS, "default"),
                _ => (&PODS, "default"),
            };
            self.objects.create(resource, namespace, object);
        }
    }

    fn claim_of_part(&self, name: &str) {
        let spec = json!({"elasticGPUClassName": "fast", "resources": {"requests": {"core": 10}}});
        let (api, kind) = ("aliquot.dev/v1alpha1", "ElasticGPUClaim");
        let claim = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec});
        self.objects.create(&ELASTIC_GPU_CLAIMS, "default", claim);
    }

    /// A part of a device of a node, without a claim.
    pub(crate) fn part_made_before(&self, name: &str, node: &str, device: usize) {
        let part = json!({
            "apiVersion": "aliquot.dev/v1alpha1", "kind": "ElasticGPU", "metadata": {"name": name},
            "spec": {
                "capacity": {"core": 60, "memoryBytes": 16_u64 << 30}, "nodeName": node,
                "device": format!("GPU-{node}-{device}"), "model": "NVIDIA H100", "elasticGPUClassName": "fast",
            },
        });
        self.objects.create(&ELASTIC_GPUS, "", part);
    }

    fn claim_status(&self) -> Value {
        self.objects.get(&ELASTIC_GPU_CLAIMS, "default", "notebook")["status"].clone()
    }

    /// The types and reasons of the events about an ElasticGPUClaim.
    fn events_about_claim(&self, name: &str) -> Vec<(String, String)> {
        let events = self.objects.list(&CORE_EVENTS).into_iter().filter(|event| {
            let about = &event["involvedObject"];
            (&about["kind"], &about["name"]) == (&json!("ElasticGPUClaim"), &json!(name)) && about["uid"].is_string()
        });
        let text = |of: &Value| of.as_str().unwrap().to_owned();
        events.map(|event| (text(&event["type"]), text(&event["reason"]))).collect()
    }

    pub(crate) fn wait_until_claim_is(&self, phase: &str, reason: &str) {
        self.wait_until("the claim's phase", |cluster| {
            let status = cluster.claim_status();
            status["phase"] == phase && status["conditions"][0]["reason"] == reason
        });
    }
}

#[test]
fn a_claim_is_bound_with_its_pod_and_goes_after_it() {
    let mut cluster = Cluster::start();
    cluster.node_with_elastic_gpus("n", 1);
    let scheduler = cluster.scheduler();
    cluster.elastic_gpu_example(&["ElasticGPUClass", "ElasticGPUClaim"]);
    cluster.wait_until("the pod says that its claim is not there", |cluster| {
        cluster.why_waiting("notebook").is_some_and(|(_, why)| why.contains("there is no ElasticGPUClaim"))
    });
    cluster.elastic_gpu_example(&["ElasticGPUClass", "Pod"]);
    cluster.wait_until_claim_is("Pending", "ClassNotFound");
    cluster.elastic_gpu_example(&["ElasticGPUClaim", "Pod"]);
    cluster.wait_until_bound(&["notebook"]);
    let decision = cluster.get("notebook")["metadata"]["annotations"]["aliquot.dev/devices"].clone();
    assert_eq!(decision, format!("main=GPU-n-0/300/{}", 8_u64 << 30));
    cluster.wait_until_claim_is("Bound", "Bound");
    cluster.wait_until("events tell the claim's way", |cluster| {
        let events = cluster.events_about_claim("notebook");
        let told = |kind: &str, reason: &str| events.iter().any(|of| *of == (kind.to_owned(), reason.to_owned()));
        told("Warning", "ClassNotFound") && told("Normal", "Bound")
    });
    let status = cluster.claim_status();
    assert_eq!(status["capacity"], json!({"core": 30, "memoryBytes": 8_u64 << 30}));
    cluster.wait_until("the part says that it is bound", |cluster| {
        cluster.objects.list(&ELASTIC_GPUS).iter().all(|gpu| gpu["status"]["phase"] == "Bound")
    });
    let gpu = cluster.objects.list(&ELASTIC_GPUS).remove(0);
    assert_eq!(status["elasticGPUName"], gpu["metadata"]["name"]);
    assert_eq!((&gpu["spec"]["nodeName"], &gpu["spec"]["device"]), (&json!("n"), &json!("GPU-n-0")));
    assert_eq!(gpu["spec"]["claimRef"]["name"], "notebook");
    // Another leader finds all of it, and a pod has it still.
    scheduler.kill();
    let _scheduler = cluster.scheduler();
    cluster.objects.delete(&ELASTIC_GPU_CLAIMS, "default", "notebook");
    cluster.pod(
        "later",
        0,
        json!({
            "metadata": {"annotations": {"elastic-gpu-claim.aliquot.dev/main": "notebook"}},
            "spec": {"containers": [{
                "name": "main", "image": "none", "resources": {"limits": {"aliquot.dev/elastic-gpu": "1"}},
            }]},
        }),
    );
    cluster.wait_until("a later pod says that its claim is being deleted", |cluster| {
        cluster.why_waiting("later").is_some_and(|(_, why)| why.contains("is being deleted"))
    });
    assert_eq!(cluster.objects.list(&ELASTIC_GPUS).len(), 1);
    cluster.objects.delete(&PODS, "default", "notebook");
    cluster.wait_until("the claim is gone", |cluster| cluster.objects.list(&ELASTIC_GPU_CLAIMS).is_empty());
    cluster.wait_until("the part is gone", |cluster| cluster.objects.list(&ELASTIC_GPUS).is_empty());
}

#[test]
fn an_answer_that_comes_late_brings_no_deleted_claim_back() {
    let mut cluster = Cluster::with_faults();
    cluster.node_with_elastic_gpus("n", 2);
    let _scheduler = cluster.scheduler();
    cluster.server().set_fault(|method, path| match path.ends_with("/elasticgpuclaims/notebook/status") {
        true if method == "PATCH" => Fault::AnswerHeld,
        _ => Fault::None,
    });
    cluster.elastic_gpu_example(&["ElasticGPUClass", "Pod"]);
    cluster.wait_until_claim_is("Pending", "ClassNotFound");
    cluster.objects.delete(&ELASTIC_GPU_CLAIMS, "default", "notebook");
    let none = json!({"metadata": {"finalizers": null}});
    cluster.objects.merge(&ELASTIC_GPU_CLAIMS, "default", "notebook", &none);
    cluster.elastic_gpu_example(&["ElasticGPUClass", "ElasticGPUClaim"]);
    cluster.wait_until("the pod says that its claim is gone", |cluster| {
        cluster.why_waiting("notebook").is_some_and(|(_, why)| why.contains("there is no ElasticGPUClaim"))
    });
    cluster.server().set_fault(|_, _| Fault::None);
    // The claim would be bound now, if it were there.
    cluster.elastic_gpu_example(&["ElasticGPUClaim", "Pod"]);
    cluster.claim_of_part("later");
    cluster.wait_until("a later claim has a status", |cluster| {
        let status = &cluster.objects.get(&ELASTIC_GPU_CLAIMS, "default", "later")["status"];
        status["conditions"][0]["reason"] == "WaitForFirstConsumer"
    });
    cluster.pod("a", 50, json!({}));
    cluster.wait_until("a is bound", |cluster| cluster.bound().contains_key("a"));
    assert_eq!(cluster.bound().keys().collect::<Vec<_>>(), ["a"]);
}

/// A pod that uses this claim.
fn user_of(cluster: &Cluster, pod: &str, claim: &str) {
    let limits = json!({"aliquot.dev/elastic-gpu": "1"});
    let more = json!({
        "metadata": {"annotations": {"elastic-gpu-claim.aliquot.dev/main": claim}},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
    });
    cluster.pod(pod, 0, more);
}

#[test]
fn the_room_of_a_claim_is_kept_also_by_the_next_leader() {
    let mut cluster = Cluster::start();
    cluster.node_with_elastic_gpus("n", 1);
    let scheduler = cluster.scheduler();
    cluster.elastic_gpu_example(&[]);
    cluster.wait_until_claim_is("Bound", "Bound");
    cluster.wait_until("the room is reserved", |cluster| {
        cluster.objects.list(&ELASTIC_GPUS).iter().all(|gpu| gpu["status"]["reserved"] == true)
    });
    cluster.objects.delete(&PODS, "default", "notebook");
    cluster.pod("waits", 80, json!({}));
    let says_why = |cluster: &Cluster| {
        let kept = "are kept for ElasticGPUClaim default/notebook";
        cluster.why_waiting("waits").is_some_and(|(_, why)| why.contains(kept))
    };
    cluster.wait_until("the pod says what is kept", says_why);
    scheduler.kill();
    let _scheduler = cluster.scheduler();
    user_of(&cluster, "later", "notebook");
    cluster.wait_until_bound(&["later"]);
    let decision = cluster.get("later")["metadata"]["annotations"]["aliquot.dev/devices"].clone();
    assert_eq!(decision, format!("main=GPU-n-0/300/{}", 8_u64 << 30));
}

#[test]
fn a_claim_is_bound_to_a_part_that_was_made_before() {
    let mut cluster = Cluster::start();
    cluster.node_with_elastic_gpus("n", 1);
    let _scheduler = cluster.scheduler();
    cluster.part_made_before("static", "n", 0);
    let phase = |cluster: &Cluster, name: &str| cluster.objects.get(&ELASTIC_GPUS, "", name)["status"]["phase"].clone();
    cluster.wait_until("the part is available", |cluster| phase(cluster, "static") == "Available");
    cluster.part_made_before("second", "n", 0);
    cluster.wait_until("the second part has no room", |cluster| phase(cluster, "second") == "Failed");
    cluster.elastic_gpu_example(&[]);
    cluster.wait_until_claim_is("Bound", "Bound");
    cluster.wait_until_bound(&["notebook"]);
    let decision = cluster.get("notebook")["metadata"]["annotations"]["aliquot.dev/devices"].clone();
    assert_eq!(decision, format!("main=GPU-n-0/600/{}", 16_u64 << 30));
    cluster.wait_until("the part is bound", |cluster| phase(cluster, "static") == "Bound");
    let bound = cluster.objects.get(&ELASTIC_GPUS, "", "static");
    assert_eq!(bound["spec"]["claimRef"]["name"], "notebook");
}

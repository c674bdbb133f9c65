//! Pods with resource claims, where managers run as DRA drivers.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};

use aliquot_test_api_server::{CLAIMS, DEVICE_CLASSES, Fault, POD_GROUPS, PODS, SLICES};
use serde_json::{Value, json};

use crate::kit::{Cluster, Scheduler};

const DRIVER: &str = "gpu.aliquot.dev";
const GIB: u64 = 1 << 30;

impl Cluster {
    /// The device classes that are shipped.
    pub(crate) fn device_classes(&self) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/dra/device-classes.yaml");
        let classes: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
        for class in classes {
            self.objects.create(&DEVICE_CLASSES, "", class);
        }
    }

    /// A node whose manager publishes devices of these models as a DRA driver.
    pub(crate) fn node_with_driver(&self, name: &str, models: &[&str]) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        self.ready_node(name, node);
        let capacity = |value: &str, step: &str| {
            let range = json!({"min": step, "step": step, "max": value});
            json!({"value": value, "requestPolicy": {"default": value, "validRange": range}})
        };
        let device = |(number, model): (usize, &&str)| {
            json!({
                "name": format!("gpu-{number}"),
                "allowMultipleAllocations": true,
                "attributes": {"type": {"string": "gpu"}, "productName": {"string": model}},
                "capacity": {"core": capacity("100", "1"), "memory": capacity("80Gi", "1Mi")},
            })
        };
        let devices: Vec<Value> = models.iter().enumerate().map(device).collect();
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": format!("{name}-slice")},
            "spec": {
                "driver": DRIVER, "nodeName": name, "devices": devices,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            },
        });
        self.objects.create(&SLICES, "", slice);
    }

    /// A claim for a part of a GPU. `more` is merged into its request.
    pub(crate) fn claim(&self, name: &str, core: &str, more: Value) {
        self.make_claim(json!({"name": name}), core, more);
    }

    pub(crate) fn make_claim(&self, metadata: Value, core: &str, more: Value) -> String {
        let mut exactly = json!({"deviceClassName": DRIVER, "capacity": {"requests": {"core": core, "memory": "2Gi"}}});
        json_patch::merge(&mut exactly, &more);
        let name = metadata["name"].as_str().unwrap().to_owned();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        });
        self.objects.create(&CLAIMS, "default", claim);
        name
    }

    /// A pod that uses a claim of this name.
    pub(crate) fn pod_with_claim(&self, name: &str, claim: &str, more: Value) {
        let mut spec = json!({"metadata": {}, "spec": {
            "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}],
        }});
        json_patch::merge(&mut spec, &more);
        self.pod(name, 0, spec);
    }

    /// A pod with a template for a claim, and the claim that is made for it.
    pub(crate) fn pod_with_template(&self, name: &str, core: &str, more: Value) {
        self.pod_with_claim(
            name,
            "",
            json!({"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "part"}]},
                "metadata": more["metadata"]}),
        );
        let uid = self.get(name)["metadata"]["uid"].clone();
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true});
        let annotations = json!({"resource.kubernetes.io/pod-claim-name": "gpu"});
        let metadata = json!({"name": format!("{name}-gpu-x"), "ownerReferences": [owner], "annotations": annotations});
        let claim = self.make_claim(metadata, core, json!({}));
        let status = json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": claim}]}});
        self.objects.merge_status(&PODS, "default", name, &status);
    }

    /// What a claim has of devices: the device, the percent of its time, and bytes.
    pub(crate) fn allocated(&self, claim: &str) -> Vec<(String, String, u64)> {
        let claim = self.objects.get(&CLAIMS, "default", claim);
        let results = claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
        let part = |result: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let consumed = &result["consumedCapacity"];
            let memory = aliquot_test_api_server::Quantity::parse(&text(&consumed["memory"])).unwrap();
            (text(&result["device"]), text(&consumed["core"]), u64::try_from(memory.units()).unwrap())
        };
        results.iter().map(part).collect()
    }

    fn is_allocated(&self, claim: &str) -> bool {
        !self.allocated(claim).is_empty()
    }

    fn users(&self, claim: &str) -> Vec<String> {
        let claim = self.objects.get(&CLAIMS, "default", claim);
        let users = claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
        users.iter().map(|user| user["name"].as_str().unwrap().to_owned()).collect()
    }

    /// What Kubernetes' controller of claims does: takes claims back from pods and PodGroups that are gone.
    pub(crate) fn collect_claims(&self) {
        let (pods, groups) = (self.objects.list(&PODS), self.objects.list(&POD_GROUPS));
        let there: Vec<&Value> = pods.iter().chain(&groups).map(|of| &of["metadata"]["uid"]).collect();
        for claim in self.objects.list(&CLAIMS) {
            let users = claim["status"]["reservedFor"].as_array().cloned().unwrap_or_default();
            let left: Vec<&Value> = users.iter().filter(|user| there.contains(&&user["uid"])).collect();
            if left.len() < users.len() {
                let mut status = json!({"reservedFor": left});
                if left.is_empty() {
                    status = json!({"reservedFor": null, "allocation": null});
                }
                let name = claim["metadata"]["name"].as_str().unwrap();
                self.objects.merge_status(&CLAIMS, "default", name, &json!({"status": status}));
            }
        }
    }

    #[track_caller]
    fn wait_until_it_says(&self, pod: &str, text: &str) -> String {
        self.wait_until(&format!("{pod} says {text}"), |cluster| {
            cluster.why_waiting(pod).is_some_and(|(_, message)| message.contains(text))
        });
        self.why_waiting(pod).unwrap().0
    }
}

/// A cluster with one node of these devices, and a scheduler.
pub(crate) fn with_devices(models: &[&str]) -> (Cluster, Scheduler) {
    let mut cluster = Cluster::start();
    cluster.device_classes();
    cluster.node_with_driver("n", models);
    let scheduler = cluster.scheduler();
    (cluster, scheduler)
}

#[test]
fn a_claim_for_all_gets_a_part_of_each_gpu_of_a_node() {
    let (cluster, _scheduler) = with_devices(&["H100", "H100", "H100"]);
    cluster.claim("all", "60", json!({"allocationMode": "All"}));
    cluster.pod_with_claim("a", "all", json!({}));
    cluster.wait_until_bound(&["a"]);
    let part = |device: &str| (device.to_owned(), "60".to_owned(), 2 * GIB);
    assert_eq!(cluster.allocated("all"), [part("gpu-0"), part("gpu-1"), part("gpu-2")]);
    cluster.claim("again", "60", json!({"allocationMode": "All"}));
    cluster.pod_with_claim("b", "again", json!({}));
    cluster.wait_until("b says why it waits", |cluster| {
        cluster
            .why_waiting("b")
            .is_some_and(|(reason, text)| reason == "Unschedulable" && text.contains("60 % gpu-core"))
    });
}

#[test]
fn four_quarters_share_a_gpu_and_the_fifth_waits() {
    let (cluster, _scheduler) = with_devices(&["H100"]);
    for name in ["a", "b", "c", "d"] {
        cluster.pod_with_template(name, "25", json!({}));
    }
    cluster.wait_until_bound(&["a", "b", "c", "d"]);
    cluster.pod_with_template("e", "25", json!({}));
    cluster.wait_until("e says why it waits", |cluster| {
        cluster.why_waiting("e").is_some_and(|(reason, _)| reason == "Unschedulable")
    });
    let (_, message) = cluster.why_waiting("e").unwrap();
    assert!(message.contains("25 % gpu-core"), "{message}");
    let mut shares = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let claim = cluster.objects.get(&CLAIMS, "default", &format!("{name}-gpu-x"));
        assert_eq!(cluster.allocated(&format!("{name}-gpu-x")), [("gpu-0".to_owned(), "25".to_owned(), 2 * GIB)]);
        let result = &claim["status"]["allocation"]["devices"]["results"][0];
        assert_eq!(
            (&result["driver"], &result["pool"], &result["request"]),
            (&json!(DRIVER), &json!("n"), &json!("gpu"))
        );
        shares.push(result["shareID"].as_str().unwrap().to_owned());
        let field = &claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
        assert_eq!(field["values"], json!(["n"]));
        assert_eq!(claim["status"]["reservedFor"][0]["uid"], cluster.get(name)["metadata"]["uid"]);
        assert_eq!(claim["metadata"]["finalizers"], json!(["resource.kubernetes.io/delete-protection"]));
        assert!(cluster.get(name)["metadata"]["annotations"]["aliquot.dev/devices"].is_null());
    }
    shares.sort();
    shares.dedup();
    assert_eq!(shares.len(), 4, "each share has a name of its own");
    // A pod that is gone has its part until the claim is given back.
    cluster.objects.delete(&PODS, "default", "a");
    cluster.pod("plain", 0, json!({"spec": {"containers": [{"name": "main", "image": "none"}]}}));
    cluster.wait_until("the pod without devices is bound", |cluster| cluster.bound().contains_key("plain"));
    assert!(!cluster.bound().contains_key("e"));
    cluster.collect_claims();
    cluster.wait_until_bound(&["b", "c", "d", "e", "plain"]);
}

#[test]
fn a_shared_claim_is_allocated_once() {
    let (cluster, _scheduler) = with_devices(&["H100"]);
    cluster.node_with_driver("m", &["H100"]);
    cluster.claim("shared", "60", json!({}));
    cluster.pod_with_claim("a", "shared", json!({}));
    cluster.wait_until_bound(&["a"]);
    for name in ["b", "c"] {
        cluster.pod_with_claim(name, "shared", json!({}));
    }
    cluster.wait_until_bound(&["a", "b", "c"]);
    let nodes = cluster.bound();
    assert!(nodes.values().all(|node| *node == nodes["a"]), "{nodes:?}");
    let mut users = cluster.users("shared");
    users.sort();
    assert_eq!(users, ["a", "b", "c"]);
    assert_eq!(cluster.allocated("shared").len(), 1);
    // When the first of them is gone, the others have it still.
    cluster.objects.delete(&PODS, "default", "a");
    cluster.collect_claims();
    for (number, name) in ["x", "y"].into_iter().enumerate() {
        cluster.pod_with_template(name, "60", json!({}));
        cluster.wait_until("one of both is bound", |cluster| cluster.bound().len() == 3 || number == 1);
    }
    cluster.wait_until("the other one waits", |cluster| {
        ["x", "y"].iter().any(|name| cluster.why_waiting(name).is_some_and(|(reason, _)| reason == "Unschedulable"))
    });
    assert_eq!(cluster.bound().len(), 3);
}

/// The example, with its template's claim made by hand, as Kubernetes' controller makes it.
#[test]
fn each_container_gets_its_request_of_a_claim() {
    let (cluster, _scheduler) = with_devices(&["H100", "H100"]);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../../deploy/kubernetes/examples/scheduler/two-requests.yaml");
    let example = std::fs::read_to_string(path).unwrap();
    let [template, pod] = serde_saphyr::from_multiple::<Value>(&example).unwrap().try_into().expect("two objects");
    cluster.claim("busy", "30", json!({}));
    cluster.pod_with_claim("first", "busy", json!({}));
    cluster.wait_until_bound(&["first"]);
    let name = json!({"name": "both"});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": name, "spec": template["spec"]["spec"]});
    cluster.objects.create(&CLAIMS, "default", claim);
    let mut spec = pod["spec"].clone();
    spec["resourceClaims"] = json!([{"name": "gpus", "resourceClaimName": "both"}]);
    cluster.pod("train", 0, json!({"spec": spec}));
    cluster.wait_until_bound(&["first", "train"]);
    let allocated = cluster.allocated("both");
    let of = |device: &str, core: &str, bytes: u64| (device.to_owned(), core.to_owned(), bytes);
    let busy = cluster.allocated("busy").remove(0).0;
    let free = if busy == "gpu-0" { "gpu-1" } else { "gpu-0" };
    assert_eq!(allocated, [of(free, "100", 80 * GIB), of(&busy, "20", 4 * GIB)]);
    let results = cluster.objects.get(&CLAIMS, "default", "both")["status"]["allocation"]["devices"]["results"].clone();
    assert_eq!((&results[0]["request"], &results[1]["request"]), (&json!("train"), &json!("watch")));
    // Another one waits, and says for which request.
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "more"},
        "spec": template["spec"]["spec"],
    });
    cluster.objects.create(&CLAIMS, "default", claim);
    cluster.pod_with_claim("more", "more", json!({}));
    assert_eq!(cluster.wait_until_it_says("more", "request \"train\""), "Unschedulable");
}

/// The example, with claims made by hand, as Kubernetes' controller makes them.
#[test]
fn a_pod_takes_the_first_of_its_list_that_can_be_had() {
    let (mut cluster, leader) = with_devices(&["H100", "H100", "H100"]);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../../deploy/kubernetes/examples/scheduler/first-available.yaml");
    let example = std::fs::read_to_string(path).unwrap();
    let [template, _] = serde_saphyr::from_multiple::<Value>(&example).unwrap().try_into().expect("two objects");
    let add = |cluster: &Cluster, name: &str| {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": template["spec"]["spec"],
        });
        cluster.objects.create(&CLAIMS, "default", claim);
        cluster.pod_with_claim(name, name, json!({}));
    };
    cluster.claim("busy", "10", json!({}));
    cluster.pod_with_claim("busy", "busy", json!({}));
    cluster.wait_until_bound(&["busy"]);
    add(&cluster, "a");
    cluster.wait_until_bound(&["a", "busy"]);
    add(&cluster, "b");
    cluster.wait_until_bound(&["a", "b", "busy"]);
    add(&cluster, "c");
    for request in ["\"gpus/two\"", "\"gpus/one\"", "\"gpus/half\""] {
        assert_eq!(cluster.wait_until_it_says("c", request), "Unschedulable");
    }
    let devices =
        |claim: &str| cluster.objects.get(&CLAIMS, "default", claim)["status"]["allocation"]["devices"].clone();
    let taken = |claim: &str| {
        let results = devices(claim)["results"].as_array().cloned().unwrap_or_default();
        results.iter().map(|result| result["request"].clone()).collect::<Vec<Value>>()
    };
    assert_eq!((taken("a"), taken("b")), (vec![json!("gpus/two"), json!("gpus/two")], vec![json!("gpus/half")]));
    assert_eq!(devices("a")["config"], Value::Null, "what is said of half a GPU is not about two");
    assert_eq!(devices("b")["config"][0]["requests"], json!(["gpus/half"]));
    // Another leader finds what they have, and goes on.
    leader.kill();
    let _next = cluster.scheduler();
    cluster.objects.delete(&PODS, "default", "b");
    cluster.collect_claims();
    cluster.wait_until_bound(&["a", "busy", "c"]);
}

#[test]
fn a_pod_gets_several_claims_or_none() {
    let (cluster, _scheduler) = with_devices(&["H100"]);
    for (name, core) in [("x", "60"), ("y", "30"), ("z", "20")] {
        cluster.claim(name, core, json!({}));
    }
    let pod = |claims: [&str; 2]| {
        let named = claims.map(|name| json!({"name": name, "resourceClaimName": name}));
        let container = |name: &str| json!({"name": name, "image": "none", "resources": {"claims": [{"name": name}]}});
        json!({"spec": {"containers": claims.map(container), "resourceClaims": named}})
    };
    cluster.pod("a", 0, pod(["x", "y"]));
    cluster.wait_until_bound(&["a"]);
    assert_eq!((cluster.users("x"), cluster.users("y")), (vec!["a".to_owned()], vec!["a".to_owned()]));
    cluster.pod("b", 0, pod(["y", "z"]));
    cluster.wait_until_it_says("b", "gpu-core");
    assert!(!cluster.is_allocated("z") && cluster.users("y") == ["a"], "b gets none of both");
    cluster.objects.delete(&PODS, "default", "a");
    cluster.collect_claims();
    cluster.wait_until_bound(&["b"]);
}

#[test]
fn a_selector_chooses_the_model() {
    let (cluster, _scheduler) = with_devices(&["H100", "A100"]);
    cluster.node_with_driver("m", &["B200"]);
    let selectors = |model: &str| {
        let expression = format!(r#"device.attributes["gpu.aliquot.dev"].productName == "{model}""#);
        json!({"selectors": [{"cel": {"expression": expression}}]})
    };
    cluster.claim("b200", "100", selectors("B200"));
    cluster.claim("a100", "100", selectors("A100"));
    cluster.claim("none", "100", selectors("T4"));
    for name in ["b200", "a100", "none"] {
        cluster.pod_with_claim(name, name, json!({}));
    }
    cluster.wait_until_bound(&["a100", "b200"]);
    assert_eq!((cluster.bound()["b200"].as_str(), cluster.bound()["a100"].as_str()), ("m", "n"));
    assert_eq!(cluster.allocated("a100")[0].0, "gpu-1");
    cluster.wait_until_it_says("none", "productName == \"T4\"");
}

#[test]
fn what_another_scheduler_has_allocated_is_respected() {
    let (cluster, _scheduler) = with_devices(&["H100", "H100"]);
    cluster.claim("theirs", "50", json!({}));
    let consumed = json!({"core": "50", "memory": "70Gi"});
    let result = json!({
        "request": "gpu", "driver": DRIVER, "pool": "n", "device": "gpu-0", "consumedCapacity": consumed,
        "shareID": aliquot_test_api_server::random_uuid(),
    });
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
    let allocation = json!({
        "devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    });
    cluster.objects.merge_status(&CLAIMS, "default", "theirs", &json!({"status": {"allocation": allocation}}));
    for (name, core) in [("a", "60"), ("b", "50")] {
        cluster.pod_with_template(name, core, json!({}));
    }
    cluster.wait_until_bound(&["a", "b"]);
    assert_eq!(
        (cluster.allocated("a-gpu-x")[0].0.as_str(), cluster.allocated("b-gpu-x")[0].0.as_str()),
        ("gpu-1", "gpu-0")
    );
    cluster.pod_with_template("c", "50", json!({}));
    cluster.wait_until("c says why it waits", |cluster| cluster.why_waiting("c").is_some());
    // A pod that names the allocated claim needs nothing more.
    cluster.pod_with_claim("d", "theirs", json!({}));
    cluster.wait_until_bound(&["a", "b", "d"]);
    assert_eq!(cluster.users("theirs"), ["d"]);
    let nothing = json!({"status": {"allocation": null, "reservedFor": null}});
    cluster.objects.delete(&PODS, "default", "d");
    cluster.objects.merge_status(&CLAIMS, "default", "theirs", &nothing);
    cluster.wait_until_bound(&["a", "b", "c"]);
}

#[test]
fn a_gang_with_claims_starts_together() {
    let (cluster, _scheduler) = with_devices(&["H100"]);
    let annotations = json!({"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "3"});
    for name in ["a", "b", "c"] {
        cluster.pod_with_template(name, "50", json!({"metadata": {"annotations": annotations}}));
    }
    cluster.wait_until_it_says("a", "2 of 3 members that must be placed together find room");
    assert!(cluster.bound().is_empty());
    assert!(["a", "b", "c"].iter().all(|name| !cluster.is_allocated(&format!("{name}-gpu-x"))));
    cluster.node_with_driver("m", &["H100"]);
    cluster.wait_until_bound(&["a", "b", "c"]);
}

#[test]
fn an_expression_that_fails_is_the_reason() {
    let (cluster, _scheduler) = with_devices(&["H100"]);
    let expression = r#"device.attributes["gpu.aliquot.dev"].colour == "red""#;
    cluster.claim("bad", "50", json!({"selectors": [{"cel": {"expression": expression}}]}));
    cluster.pod_with_claim("bad", "bad", json!({}));
    assert_eq!(cluster.wait_until_it_says("bad", "colour"), "NotSupported");
    cluster.claim("unknown", "50", json!({"deviceClassName": "none.example.com"}));
    cluster.pod_with_claim("unknown", "unknown", json!({}));
    cluster.wait_until_it_says("unknown", "there is no DeviceClass \"none.example.com\"");
    assert!(cluster.bound().is_empty());
}

#[test]
fn units_and_claims_are_given_out_by_their_own_nodes() {
    let (cluster, _scheduler) = with_devices(&["H100"]);
    cluster.pod("units", 30, json!({}));
    cluster.wait_until("units says why it waits", |cluster| cluster.why_waiting("units").is_some());
    cluster.node("p", 1);
    cluster.wait_until_bound(&["units"]);
    assert_eq!(cluster.bound()["units"], "p");
    for name in ["a", "b"] {
        cluster.pod_with_template(name, "60", json!({}));
    }
    cluster.wait_until("one lacks room", |cluster| {
        let lacks_room = |name: &&str| cluster.why_waiting(name).is_some_and(|(reason, _)| reason == "Unschedulable");
        cluster.bound().len() == 2 && ["a", "b"].iter().any(lacks_room)
    });
}

#[test]
fn a_leader_killed_before_the_binding_leaves_nothing() {
    let mut cluster = Cluster::with_faults();
    cluster.device_classes();
    cluster.node_with_driver("n", &["H100"]);
    // The leader writes the allocation, and cannot bind the pod or find out whether it is bound.
    cluster.server().set_fault(|_, path| match path.contains("/pods/a") {
        true => Fault::Refused,
        false => Fault::None,
    });
    let leader = cluster.scheduler();
    cluster.pod_with_template("a", "60", json!({}));
    cluster.wait_until("the claim is allocated", |cluster| cluster.is_allocated("a-gpu-x"));
    leader.kill();
    cluster.outdate_bindings_of("a");
    cluster.server().set_fault(|_, _| Fault::None);
    assert!(cluster.bound().is_empty());
    let before = cluster.objects.get(&CLAIMS, "default", "a-gpu-x");
    let _next = cluster.scheduler();
    cluster.wait_until_bound(&["a"]);
    let after = cluster.objects.get(&CLAIMS, "default", "a-gpu-x");
    let share = |claim: &Value| claim["status"]["allocation"]["devices"]["results"][0]["shareID"].clone();
    assert_ne!(share(&before), share(&after), "it was given back, and allocated anew");
    assert_eq!(cluster.users("a-gpu-x"), ["a"]);
    // The books know what it has.
    cluster.pod_with_template("b", "60", json!({}));
    cluster.wait_until("b says why it waits", |cluster| cluster.why_waiting("b").is_some());
}

#[test]
fn another_leader_knows_what_bound_pods_have() {
    let (mut cluster, leader) = with_devices(&["H100"]);
    cluster.pod_with_template("a", "60", json!({}));
    cluster.claim("shared", "30", json!({}));
    cluster.pod_with_claim("b", "shared", json!({}));
    cluster.wait_until_bound(&["a", "b"]);
    leader.kill();
    let _next = cluster.scheduler();
    cluster.pod_with_template("c", "20", json!({}));
    cluster.wait_until("c says why it waits", |cluster| cluster.why_waiting("c").is_some());
    cluster.pod_with_template("d", "10", json!({}));
    cluster.wait_until_bound(&["a", "b", "d"]);
    cluster.objects.delete(&PODS, "default", "b");
    cluster.collect_claims();
    cluster.wait_until_bound(&["a", "c", "d"]);
}

#[test]
fn a_binding_that_is_refused_undoes_the_allocation() {
    let mut cluster = Cluster::with_faults();
    cluster.device_classes();
    cluster.node_with_driver("n", &["H100"]);
    let first = AtomicBool::new(true);
    let (look, looked) = mpsc::channel::<()>();
    let looked = Mutex::new(looked);
    // Somebody changes the pod under way, and the binding is not even tried again. The allocation is looked at before.
    cluster.server().set_fault(move |_, path| match path.ends_with("/a/binding") {
        true if first.swap(false, Ordering::SeqCst) => {
            _ = looked.lock().unwrap().recv();
            Fault::Refused
        }
        _ => Fault::None,
    });
    let _scheduler = cluster.scheduler();
    cluster.pod_with_template("a", "60", json!({}));
    cluster.wait_until("the claim is allocated", |cluster| cluster.is_allocated("a-gpu-x"));
    let before = cluster.objects.get(&CLAIMS, "default", "a-gpu-x");
    drop(look);
    cluster.wait_until_bound(&["a"]);
    let after = cluster.objects.get(&CLAIMS, "default", "a-gpu-x");
    let share = |claim: &Value| claim["status"]["allocation"]["devices"]["results"][0]["shareID"].clone();
    assert_ne!(share(&before), share(&after));
}

#[test]
fn a_claim_of_another_scheduler_says_what_it_lacks() {
    let (cluster, _scheduler) = with_devices(&["H100"]);
    cluster.claim("ours", "60", json!({}));
    cluster.pod_with_claim("a", "ours", json!({}));
    cluster.wait_until_bound(&["a"]);
    cluster.claim("theirs", "60", json!({}));
    cluster.pod_with_claim("b", "theirs", json!({"spec": {"schedulerName": "default-scheduler"}}));
    cluster.wait_until("the event about the claim", |cluster| !cluster.events_about("theirs").is_empty());
    let said = cluster.events_about("theirs");
    assert!(said[0].contains("DevicesNotFree") && said[0].contains("n/gpu-0 has core 40 and"), "{said:?}");
    assert_eq!(cluster.events_about("ours"), [""; 0]);
}

//! That the manifests allow what the scheduler asks the API server for.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_test_api_server::{ELASTIC_GPU_CLAIMS, ELASTIC_GPUS, Fault, POD_GROUPS, PODS, QUEUES};
use serde_json::{Value, json};

use crate::kit::Cluster;

/// Group, resource and verb.
pub(crate) type Right = (String, String, String);

/// What a file below `deploy/kubernetes` allows.
pub(crate) fn allowed(file: &str) -> BTreeSet<Right> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes").join(file);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut rights = BTreeSet::new();
    for rule in documents.iter().flat_map(|document| document["rules"].as_array().cloned().unwrap_or_default()) {
        let texts = |field: &str| -> Vec<String> { serde_json::from_value(rule[field].clone()).unwrap() };
        for group in texts("apiGroups") {
            for resource in texts("resources") {
                rights.extend(texts("verbs").into_iter().map(|verb| (group.clone(), resource.clone(), verb)));
            }
        }
    }
    rights
}

/// What was asked for by HTTP.
pub(crate) fn used(cluster: &Cluster) -> BTreeSet<Right> {
    let calls = cluster.server().calls().into_iter();
    calls.map(|call| (call.group.to_owned(), call.resource, call.verb.to_owned())).collect()
}

#[test]
fn the_scheduler_has_exactly_the_rights_that_it_uses() {
    let mut cluster = Cluster::with_faults();
    cluster.node_with_elastic_gpus("n", 1);
    cluster.device_classes();
    cluster.node_with_driver("m", &["H100", "H100"]);
    let (first_of_e, first_of_f, first_of_data) = (AtomicBool::new(true), AtomicBool::new(true), AtomicBool::new(true));
    cluster.server().set_fault(move |method, path| match path {
        _ if path.ends_with("/a/binding") => Fault::AnswerLost,
        _ if path.ends_with("/e/binding") && first_of_e.swap(false, Ordering::SeqCst) => Fault::Refused,
        _ if path.ends_with("/f/binding") && first_of_f.swap(false, Ordering::SeqCst) => Fault::Refused,
        _ if method == "PATCH" && path.ends_with("/data") && first_of_data.swap(false, Ordering::SeqCst) => {
            Fault::AnswerLost
        }
        _ => Fault::None,
    });
    let scheduler = cluster.scheduler();
    cluster.job("j");
    cluster.pod_of_job("a", "j", json!({"spec": {"priority": 0}}));
    cluster.wait_until_bound(&["a"]);
    cluster.pod("b", 100, json!({"spec": {"priority": 50}}));
    cluster.wait_until("the job is suspended", |cluster| cluster.is_suspended("j"));
    cluster.objects.delete(&PODS, "default", "a");
    cluster.wait_until_bound(&["b"]);
    cluster.wait_until("the job is resumed", |cluster| !cluster.is_suspended("j"));
    cluster.pod("x", 100, json!({"spec": {"priority": 60}}));
    cluster.wait_until_bound(&["x"]);
    cluster.pod("c", 100, json!({"spec": {"priority": 0}}));
    cluster.wait_until("the event about c", |cluster| !cluster.events_about("c").is_empty());
    cluster.claim_for_node("data");
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    let containers = json!([{"name": "main", "image": "none"}]);
    cluster.pod("d", 0, json!({"spec": {"volumes": volumes, "containers": containers}}));
    let has_looked = |cluster: &Cluster| {
        let calls = cluster.server().calls();
        calls.iter().any(|call| (call.verb, call.resource.as_str()) == ("get", "persistentvolumeclaims"))
    };
    cluster.wait_until("the scheduler looks at the claim", has_looked);
    cluster.claim("part", "50", json!({}));
    cluster.pod_with_claim("e", "part", json!({}));
    cluster.wait_until("e is bound", |cluster| cluster.bound().contains_key("e"));
    let limits = json!({"deviceclass.resource.kubernetes.io/gpu.aliquot.dev": "1"});
    let containers = json!([{"name": "main", "image": "none", "resources": {"limits": limits}}]);
    cluster.pod("f", 0, json!({"spec": {"containers": containers}}));
    cluster.wait_until("f is bound", |cluster| cluster.bound().contains_key("f"));
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup", "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}},
    });
    cluster.objects.create(&POD_GROUPS, "default", group);
    let containers = json!([{"name": "main", "image": "none"}]);
    cluster.pod("g", 0, json!({"spec": {"containers": containers, "schedulingGroup": {"podGroupName": "g"}}}));
    cluster.wait_until("the group has started", |cluster| cluster.has_started("g"));
    let spec = json!({"resources": {"gpu": {"quota": -1, "limit": -1}}});
    let queue = json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec});
    cluster.objects.create(&QUEUES, "", queue);
    cluster.wait_until("the queue has a status", |cluster| {
        cluster.objects.get(&QUEUES, "", "q")["status"]["conditions"].is_array()
    });
    // One for the pod that waits, and one for the claim.
    cluster.node_with_elastic_gpus("o", 2);
    cluster.elastic_gpu_example(&[]);
    cluster.wait_until_claim_is("Bound", "Bound");
    cluster.wait_until("the part is bound", |cluster| {
        cluster.objects.list(&ELASTIC_GPUS).iter().all(|gpu| gpu["status"]["phase"] == "Bound")
    });
    cluster.objects.delete(&PODS, "default", "notebook");
    cluster.objects.delete(&ELASTIC_GPU_CLAIMS, "default", "notebook");
    cluster.wait_until("the part is gone", |cluster| cluster.objects.list(&ELASTIC_GPUS).is_empty());
    cluster.part_made_before("static", "o", 1);
    // The default queue has no quota beside others.
    let labels = json!({"metadata": {"labels": {"aliquot.dev/queue": "q"}}});
    cluster.objects.merge(&ELASTIC_GPUS, "", "static", &labels);
    cluster.elastic_gpu_example(&["ElasticGPUClass", "Pod"]);
    cluster.wait_until_claim_is("Bound", "Bound");
    scheduler.stop();
    let mut used = used(&cluster);
    let mut allowed = allowed("scheduler/rbac.yaml");
    // An event that comes again is counted. Here hardly any comes again.
    for verb in ["get", "patch"] {
        let right = (String::new(), "events".into(), verb.into());
        assert!(allowed.remove(&right), "{verb} events");
        used.remove(&right);
    }
    // Other workloads are suspended like this Job.
    let is_suspended = |(group, resource, verb): &Right| {
        let is_workload =
            resource.ends_with("jobs") && resource != "jobs" || ["jobsets", "rayclusters"].contains(&&**resource);
        is_workload && !group.is_empty() && ["get", "patch"].contains(&&**verb)
    };
    let (of_others, rest): (BTreeSet<Right>, BTreeSet<Right>) = allowed.into_iter().partition(is_suspended);
    assert_eq!(of_others.len(), 20, "{of_others:?}");
    assert_eq!(used, rest);
}

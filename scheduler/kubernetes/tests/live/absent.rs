//! Resources that the cluster lacks, gets while the scheduler runs, and loses again.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use aliquot_test_api_server::{
    CLAIMS, DEVICE_CLASSES, ELASTIC_GPU_CLAIMS, ELASTIC_GPU_CLASSES, ELASTIC_GPUS, Fault, KAI_QUEUES, PODS, RESOURCES,
    Resource, SLICES,
};
use serde_json::json;

use crate::kit::Cluster;
use crate::rights::used;

const ELASTIC: [&Resource; 3] = [&ELASTIC_GPU_CLASSES, &ELASTIC_GPU_CLAIMS, &ELASTIC_GPUS];

/// What a cluster may lack: other projects' resources, groups of pods, and claims for devices.
fn optional() -> Vec<&'static Resource> {
    let is_always_there = |of: &Resource| !of.group.contains('.') || of.group.ends_with(".k8s.io");
    let is_new = |of: &Resource| of.plural == "podgroups" || of.group == CLAIMS.group;
    RESOURCES.into_iter().filter(|of| !is_always_there(of) || is_new(of)).collect()
}

fn wait_until_pod_lacks(cluster: &Cluster, words: &str) {
    cluster.wait_until("the pod says what is missing", |cluster| {
        cluster.why_waiting("notebook").is_some_and(|(_, why)| why.contains(words))
    });
}

#[test]
fn the_scheduler_works_without_optional_resources() {
    let mut cluster = Cluster::with_faults();
    cluster.server().set_absent(&optional());
    cluster.node("n", 1);
    let _scheduler = cluster.scheduler();
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
}

#[test]
fn elastic_gpus_are_watched_when_they_are_defined() {
    let mut cluster = Cluster::with_faults();
    cluster.server().set_absent(&ELASTIC);
    cluster.node_with_elastic_gpus("n", 1);
    let _scheduler = cluster.scheduler();
    cluster.elastic_gpu_example(&["ElasticGPUClass", "ElasticGPUClaim"]);
    wait_until_pod_lacks(&cluster, "this cluster has no such kind of object");
    cluster.server().set_absent(&[]);
    cluster.elastic_gpu_example(&["Pod"]);
    cluster.wait_until_bound(&["notebook"]);
    cluster.wait_until_claim_is("Bound", "Bound");
}

#[test]
fn objects_of_a_removed_resource_do_not_count() {
    let mut cluster = Cluster::with_faults();
    cluster.node_with_elastic_gpus("n", 1);
    // Without a class the pod waits.
    cluster.elastic_gpu_example(&["ElasticGPUClass"]);
    let _scheduler = cluster.scheduler();
    wait_until_pod_lacks(&cluster, "there is no ElasticGPUClass");
    cluster.server().set_absent(&ELASTIC);
    wait_until_pod_lacks(&cluster, "this cluster has no such kind of object");
}

#[test]
fn queues_of_kai_are_watched_while_their_kind_is_there() {
    let mut cluster = Cluster::with_faults();
    cluster.server().set_absent(&[&KAI_QUEUES]);
    cluster.node("n", 1);
    let all = json!({"quota": -1, "limit": -1, "overQuotaWeight": 1});
    let spec = json!({"resources": {"gpu": {"quota": 0.5, "limit": 0.5}, "cpu": all, "memory": all}});
    let queue = json!({"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec});
    let scheduler = cluster.scheduler();
    let labels = json!({"metadata": {"labels": {"kai.scheduler/queue": "q"}}});
    for name in ["a", "b"] {
        cluster.pod(name, 50, labels.clone());
    }
    cluster.wait_until("a waits", |cluster| cluster.why_waiting("a").is_some());
    cluster.server().set_absent(&[]);
    cluster.objects.create(&KAI_QUEUES, "", queue);
    // The queue has room for one.
    cluster.wait_until("one is bound, and the other one waits for the quota", |cluster| {
        let bound = cluster.bound();
        let other = if bound.contains_key("a") { "b" } else { "a" };
        bound.len() == 1 && cluster.why_waiting(other).is_some_and(|(_, why)| why.starts_with("quota"))
    });
    let of_kai =
        used(&cluster).into_iter().filter(|(group, resource, _)| group == "scheduling.run.ai" && resource == "queues");
    assert!(of_kai.map(|(.., verb)| verb).all(|verb| verb == "list" || verb == "watch"), "nothing is written to it");
    // A queue that has pods stays.
    let limit = "queue_limit_gpus{queue=\"q\"}";
    cluster.wait_until("the queue has its limit", |_| scheduler.metric(limit) == Some(0.5));
    for name in ["a", "b"] {
        cluster.objects.delete(&PODS, "default", name);
    }
    cluster.server().set_absent(&[&KAI_QUEUES]);
    cluster.wait_until("there is no such queue any more", |_| scheduler.metric(limit).is_none());
}

#[test]
fn claims_that_may_not_be_read_hold_up_no_other_pod() {
    let mut cluster = Cluster::with_faults();
    cluster.server().set_fault(|_, path| if path.contains("elasticgpu") { Fault::Forbidden } else { Fault::None });
    cluster.node_with_elastic_gpus("n", 1);
    cluster.elastic_gpu_example(&[]);
    let _scheduler = cluster.scheduler();
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
    wait_until_pod_lacks(&cluster, "the scheduler has no right to read such claims");
    cluster.server().set_fault(|_, _| Fault::None);
    cluster.wait_until_bound(&["a", "notebook"]);
}

#[test]
fn claims_for_devices_are_watched_when_they_are_served() {
    let mut cluster = Cluster::with_faults();
    cluster.server().set_absent(&[&CLAIMS, &DEVICE_CLASSES, &SLICES]);
    let _scheduler = cluster.scheduler();
    cluster.node("m", 1);
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
    cluster.device_classes();
    cluster.node_with_driver("n", &["H100"]);
    let limits = json!({"deviceclass.resource.kubernetes.io/gpu.aliquot.dev": "1"});
    let containers = json!([{"name": "main", "image": "none", "resources": {"limits": limits}}]);
    cluster.pod("b", 0, json!({"spec": {"containers": containers}}));
    cluster.wait_until("b waits", |cluster| cluster.why_waiting("b").is_some());
    cluster.server().set_absent(&[]);
    cluster.wait_until_bound(&["a", "b"]);
}

#[test]
fn a_group_that_does_not_answer_holds_up_no_new_leader() {
    let mut cluster = Cluster::with_faults();
    let is_discovery = |path: &str| path.starts_with("/apis/jobset.x-k8s.io/") && path.matches('/').count() == 3;
    cluster.server().set_fault(move |_, path| if is_discovery(path) { Fault::Refused } else { Fault::None });
    cluster.node("n", 1);
    let _scheduler = cluster.scheduler();
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
}

#[test]
fn a_resource_that_is_only_named_holds_up_no_new_leader() {
    let mut cluster = Cluster::with_faults();
    cluster.server().set_fault(|_, path| if path.ends_with("/jobsets") { Fault::NotFound } else { Fault::None });
    cluster.node("n", 1);
    let _scheduler = cluster.scheduler();
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
}

#[test]
fn a_new_leader_waits_for_claims_that_are_only_named() {
    let mut cluster = Cluster::with_faults();
    let (is_there, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let is_bound_early = Arc::new(AtomicBool::new(false));
    let (is_served, count, is_early) = (Arc::clone(&is_there), Arc::clone(&asked), Arc::clone(&is_bound_early));
    cluster.server().set_fault(move |_, path| {
        if is_served.load(SeqCst) {
            return Fault::None;
        }
        is_early.fetch_or(path.ends_with("/binding"), SeqCst);
        match path.ends_with("/resourceclaims") {
            true => {
                count.fetch_add(1, SeqCst);
                Fault::NotFound
            }
            false => Fault::None,
        }
    });
    cluster.node("n", 1);
    cluster.pod("a", 50, json!({}));
    let _scheduler = cluster.scheduler();
    // Without the claims it does not know which devices are given out.
    cluster.wait_until("the scheduler has asked for claims several times", |_| asked.load(SeqCst) > 3);
    is_there.store(true, SeqCst);
    cluster.wait_until_bound(&["a"]);
    assert!(!is_bound_early.load(SeqCst), "the pod was bound while the claims were not known");
}

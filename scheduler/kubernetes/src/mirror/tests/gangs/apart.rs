//! Workloads with pods that do not start with the others.

use serde_json::{Value, json};

use crate::gang::GangKind;
use crate::mirror::tests::World;
use crate::mirror::tests::chosen::KUBE;

fn of_cluster(node_type: &str, more: Value) -> Value {
    let labels = json!({"ray.io/cluster": "c", "ray.io/node-type": node_type});
    let mut pod = json!({"metadata": {"labels": labels}});
    json_patch::merge(&mut pod, &more);
    pod
}

/// A Ray cluster with two workers, and room for these.
fn with_ray_cluster() -> World {
    let mut world = World::new();
    world.node("n", 2);
    world.gang(GangKind::RayCluster, "c", json!({"workerGroupSpecs": [{"replicas": 2, "minReplicas": 2}]}));
    for name in ["w1", "w2"] {
        world.pod(name, 100, of_cluster("worker", json!({})));
    }
    world.reconcile();
    assert!(world.bound().is_empty(), "the head is not there yet: {:?}", world.log);
    world
}

#[test]
fn workers_start_beside_a_head_that_another_scheduler_places() {
    let mut world = with_ray_cluster();
    world.pod("head", 0, of_cluster("head", json!({"spec": {"schedulerName": KUBE}})));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["w1", "w2"], "{}", world.why_waiting("w1"));
    // They run on while their head is made anew.
    world.delete("head");
    world.now_ms += 120_000;
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["w1", "w2"], "{:?}", world.log);
}

#[test]
fn workers_start_beside_a_head_that_starts_by_itself() {
    let mut world = with_ray_cluster();
    let by_itself = [
        json!({"metadata": {"annotations": {"aliquot.dev/gang": "none"}}}),
        json!({"metadata": {"annotations": {"aliquot.dev/gang": "heads", "aliquot.dev/gang-size": "1"}}}),
    ];
    for more in by_itself {
        world.pod("head", 0, of_cluster("head", more));
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["head", "w1", "w2"], "{}", world.why_waiting("w1"));
        ["head", "w1", "w2"].into_iter().for_each(|name| world.delete(name));
        world.reconcile();
        for name in ["w1", "w2"] {
            world.pod(name, 100, of_cluster("worker", json!({})));
        }
        world.reconcile();
        assert!(world.bound().is_empty(), "{:?}", world.log);
    }
}

#[test]
fn a_gang_waits_for_the_successor_of_a_pod_of_another_scheduler() {
    let mut world = with_ray_cluster();
    let of_kube = |more: Value| {
        let mut pod = of_cluster("head", json!({"spec": {"schedulerName": KUBE}}));
        json_patch::merge(&mut pod, &more);
        pod
    };
    // The last worker comes later, so that nothing has started yet.
    world.delete("w2");
    for gone in
        [json!({"status": {"phase": "Failed"}}), json!({"metadata": {"deletionTimestamp": super::super::LEAVES}})]
    {
        world.pod("old", 0, of_kube(gone));
        world.pod("w2", 100, of_cluster("worker", json!({})));
        world.reconcile();
        assert!(world.bound().is_empty(), "{:?}", world.log);
        world.delete("w2");
    }
    world.pod("w2", 100, of_cluster("worker", json!({})));
    world.pod("head", 0, of_kube(json!({})));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["w1", "w2"], "{}", world.why_waiting("w1"));
}

#[test]
fn a_part_of_a_workload_counts_its_own_pods_alone() {
    let mut world = World::new();
    world.node("n", 2);
    let job = |name: &str, replicas: u32| json!({"name": name, "replicas": replicas, "template": {}});
    let in_order = json!({"startupPolicyOrder": "InOrder"});
    let jobs = json!([job("driver", 1), job("worker", 2)]);
    world.gang(GangKind::JobSet, "s", json!({"replicatedJobs": jobs, "startupPolicy": in_order}));
    let of_job = |name: &str, scheduler: &str| {
        let labels = json!({"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/replicatedjob-name": name});
        json!({"metadata": {"labels": labels}, "spec": {"schedulerName": scheduler}})
    };
    world.pod("driver", 0, of_job("driver", KUBE));
    world.pod("w1", 100, of_job("worker", "aliquot"));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.pod("w2", 100, of_job("worker", "aliquot"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["w1", "w2"]);
}

#[test]
fn plain_pods_of_kueue_start_beside_those_of_another_scheduler() {
    let mut world = World::new();
    world.node("n", 1);
    let metadata = json!({
        "labels": {"kueue.x-k8s.io/pod-group-name": "g"},
        "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
    });
    world.pod("worker", 100, json!({"metadata": metadata}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.pod("driver", 0, json!({"metadata": metadata, "spec": {"schedulerName": KUBE}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["worker"], "{}", world.why_waiting("worker"));
}

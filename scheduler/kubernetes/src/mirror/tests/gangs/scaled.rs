//! Gangs that are to have more pods while they run.

use serde_json::{Value, json};

use super::{gang_of, in_pod_group};
use crate::gang::GangKind;
use crate::mirror::Access;
use crate::mirror::tests::World;

/// Lets so much time pass that the rest of a gang would be evicted.
fn wait_long(world: &mut World) {
    world.now_ms += 120_000;
    world.reconcile();
}

fn with_members(names: &[&str], pod: Value) -> World {
    let mut world = World::new();
    world.node("n", 3);
    names.iter().for_each(|name| world.pod(name, 100, pod.clone()));
    world
}

#[test]
fn a_pod_group_that_is_to_grow_runs_on_and_the_others_follow() {
    let mut world = with_members(&["a", "b"], in_pod_group("g"));
    world.gang(GangKind::Native, "g", gang_of(2));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.gang(GangKind::Native, "g", gang_of(4));
    ["c", "d"].iter().for_each(|name| world.pod(name, 100, in_pod_group("g")));
    wait_long(&mut world);
    assert_eq!(world.names_of_bound(), ["a", "b", "c"], "{}", world.why_waiting("c"));
    // It has said that it has started, so the next leader lets it run, too.
    let started = json!({"type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled",
                         "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let object = world.gangs.get_mut(&(GangKind::Native, "g".to_owned())).unwrap();
    object["status"] = json!({"conditions": [started]});
    world.change_leader();
    wait_long(&mut world);
    assert_eq!(world.log, ["a to n", "b to n", "c to n"], "nothing is evicted");
    // It still needs as many as it had.
    ["b", "c"].iter().for_each(|name| world.delete(name));
    world.pods.get_mut("d").unwrap()["spec"]["nodeSelector"] = json!({"nowhere": "true"});
    world.show("d");
    world.reconcile();
    wait_long(&mut world);
    assert!(world.log.contains(&"a evicted".to_owned()), "{:?}", world.log);
}

#[test]
fn a_pod_group_that_waits_needs_what_it_says_now() {
    let mut world = with_members(&["a"], in_pod_group("g"));
    world.gang(GangKind::Native, "g", gang_of(2));
    world.reconcile();
    world.gang(GangKind::Native, "g", gang_of(3));
    world.pod("b", 100, in_pod_group("g"));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.pod("c", 100, in_pod_group("g"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
}

#[test]
fn a_ray_cluster_runs_on_when_it_is_to_have_more_workers() {
    let of_cluster =
        |node_type: &str| json!({"metadata": {"labels": {"ray.io/cluster": "c", "ray.io/node-type": node_type}}});
    let mut world = with_members(&["head"], of_cluster("head"));
    let workers = |replicas: u32| json!({"workerGroupSpecs": [{"replicas": replicas, "minReplicas": 0}]});
    world.gang(GangKind::RayCluster, "c", workers(0));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["head"]);
    world.gang(GangKind::RayCluster, "c", workers(4));
    let gated = json!({"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}});
    for name in ["w1", "w2", "w3", "w4"] {
        let mut worker = of_cluster("worker");
        json_patch::merge(&mut worker, &gated);
        world.pod(name, 100, worker);
    }
    wait_long(&mut world);
    assert_eq!(world.log, ["head to n"]);
    for name in ["w1", "w2", "w3", "w4"] {
        world.pods.get_mut(name).unwrap()["spec"]["schedulingGates"] = json!([]);
        world.show(name);
    }
    wait_long(&mut world);
    assert_eq!(world.log, ["head to n", "w1 to n", "w2 to n"]);
}

#[test]
fn groups_of_a_leader_worker_set_keep_their_size_until_made_anew() {
    let of_size = |size: &str, group: &str| {
        let labels = json!({"leaderworkerset.sigs.k8s.io/name": "s", "leaderworkerset.sigs.k8s.io/group-index": group});
        json!({"metadata": {"labels": labels, "annotations": {"leaderworkerset.sigs.k8s.io/size": size}}})
    };
    let mut world = with_members(&["a", "b"], of_size("2", "0"));
    let set = |size: u32| json!({"leaderWorkerTemplate": {"size": size}});
    world.mirror.gangs_are(GangKind::LeaderWorkerSet, Access::Read);
    world.gang(GangKind::LeaderWorkerSet, "s", set(2));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.gang(GangKind::LeaderWorkerSet, "s", set(3));
    world.change_leader();
    wait_long(&mut world);
    assert_eq!(world.log, ["a to n", "b to n"]);
    // The first pods of the new group come while the old ones leave.
    ["a2", "b2"].iter().for_each(|name| world.pod(name, 100, of_size("3", "0")));
    for name in ["a", "b"] {
        world.pods.get_mut(name).unwrap()["metadata"]["deletionTimestamp"] = super::super::LEAVES.into();
        world.show(name);
    }
    world.reconcile();
    ["a", "b"].iter().for_each(|name| world.delete(name));
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.pod("c2", 100, of_size("3", "0"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a2", "b2", "c2"]);
}

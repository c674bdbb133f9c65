//! Pods that start together or not at all.

mod apart;
mod runs;
mod scaled;
mod words;

use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{Access, World, Write};
use crate::gang::GangKind;

fn of_gang(name: &str, size: u32) -> serde_json::Value {
    json!({"metadata": {"annotations": {"aliquot.dev/gang": name, "aliquot.dev/gang-size": size.to_string()}}})
}

#[test]
fn a_gang_is_bound_whole_or_not_at_all() {
    let mut world = World::new();
    world.node("n", 2);
    for name in ["a", "b", "c"] {
        world.pod(name, 100, of_gang("g", 3));
    }
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    world.node("m", 1);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "c"]);
}

#[test]
fn a_gang_waits_for_its_members() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.reconcile();
    assert!(world.bound().is_empty());
    assert!(world.why_waiting("a").contains("1 member"), "{}", world.why_waiting("a"));
    world.pod("b", 100, of_gang("g", 2));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn half_a_gang_that_a_leader_has_bound_becomes_whole() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    // The leader dies between the two bindings.
    world.wait_for_writes();
    assert_eq!(world.writes.len(), 2);
    let first = world.writes.remove(0);
    world.carry_out(first);
    world.change_leader();
    world.pod("other", 100, json!({}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
}

/// Adds to a pod the Job that made it, and when.
fn made_by(job: &str, created: &str, mut pod: Value) -> Value {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": true});
    pod["metadata"]["ownerReferences"] = json!([owner]);
    pod["metadata"]["creationTimestamp"] = created.into();
    pod
}

impl World {
    /// The containers of a pod end, at this time if kubelet says one.
    fn end(&mut self, name: &str, phase: &str, at: Option<&str>) {
        let pod = self.pods.get_mut(name).unwrap();
        pod["status"] = json!({"phase": phase});
        if let Some(at) = at {
            let ended = json!({"terminated": {"exitCode": 0, "finishedAt": at}});
            let container = json!({"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0});
            pod["status"]["containerStatuses"] = json!([container]);
            pod["status"]["containerStatuses"][0]["state"] = ended;
        }
        self.show(name);
    }
}

#[test]
fn a_gang_goes_on_without_those_that_have_succeeded() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    world.reconcile();
    world.pods.get_mut("a").unwrap()["status"] = json!({"phase": "Succeeded"});
    world.show("a");
    world.reconcile();
    world.now_ms += 3_600_000;
    world.reconcile();
    assert_eq!(world.log, ["a to n", "b to n"]);
}

#[test]
fn a_gang_of_which_one_pod_cannot_be_bound_is_undone() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    let mut refused = 0;
    while !world.log.contains(&"a evicted".to_owned()) {
        world.hear();
        world.poll();
        for write in std::mem::take(&mut world.writes) {
            match write {
                Write::Bind(binding) if binding.name == "b" => {
                    refused += 1;
                    world.mirror.bound(&binding, Err("an admission policy refuses it".into()));
                }
                other => world.carry_out(other),
            }
        }
        world.now_ms += 500;
        assert!(world.now_ms < 1_000_000 + 600_000, "half a gang runs on: {:?}", world.log);
    }
    assert!(refused > 1, "b was tried again");
}

#[test]
fn what_is_left_of_a_gang_is_evicted_after_a_while() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    world.reconcile();
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"]);
    world.now_ms += 60_000;
    world.reconcile();
    assert!(world.bound().is_empty());
    assert!(world.why_waiting("b").contains("1 member"), "{}", world.why_waiting("b"));
}

#[test]
fn a_failed_member_is_replaced_beside_those_that_succeeded() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, of_gang("g", 2));
    world.pod("b", 100, of_gang("g", 2));
    world.reconcile();
    for (name, phase) in [("a", "Succeeded"), ("b", "Failed")] {
        world.pods.get_mut(name).unwrap()["status"] = json!({"phase": phase});
        world.show(name);
        world.reconcile();
    }
    world.pod("b2", 100, of_gang("g", 2));
    world.reconcile();
    assert_eq!(world.log, ["a to n", "b to n", "b2 to n"]);
    // A new gang of the same name needs all its pods again.
    for name in ["a", "b", "b2"] {
        world.delete(name);
    }
    world.reconcile();
    world.pod("c", 100, of_gang("g", 2));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.pod("d", 100, of_gang("g", 2));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["c", "d"]);
}

#[test]
fn pods_that_kueue_admits_start_together_in_their_flavor() {
    let mut world = World::new();
    for name in ["a100", "h100"] {
        world.node(name, 2);
        let mut node = world.nodes[name].clone();
        node["metadata"]["labels"] = json!({"flavor": name});
        world.make_node(name, node);
    }
    for name in ["a", "b"] {
        let metadata = json!({
            "labels": {"kueue.x-k8s.io/pod-group-name": "g"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        });
        let gates = json!([{"name": "kueue.x-k8s.io/admission"}, {"name": "kueue.x-k8s.io/topology"}]);
        world.pod(name, 100, json!({"metadata": metadata, "spec": {"schedulingGates": gates}}));
    }
    for gates in [json!([{"name": "kueue.x-k8s.io/topology"}]), json!([])] {
        world.reconcile();
        assert!(world.bound().is_empty(), "{:?}", world.log);
        // Kueue takes away its gates, from one pod after the other, and says by labels of nodes where they may run.
        let pod = world.pods.get_mut("a").unwrap();
        pod["spec"]["schedulingGates"] = gates;
        pod["spec"]["nodeSelector"] = json!({"flavor": "h100"});
        world.show("a");
    }
    world.reconcile();
    assert!(world.bound().is_empty(), "{:?}", world.log);
    let pod = world.pods.get_mut("b").unwrap();
    pod["spec"]["schedulingGates"] = json!([]);
    pod["spec"]["nodeSelector"] = json!({"flavor": "h100"});
    world.show("b");
    world.reconcile();
    assert_eq!(world.bound().into_iter().collect::<Vec<_>>(), [("a", "h100"), ("b", "h100")]);
}

fn in_pod_group(name: &str) -> serde_json::Value {
    json!({"spec": {"schedulingGroup": {"podGroupName": name}}})
}

fn gang_of(count: u32) -> serde_json::Value {
    json!({"schedulingPolicy": {"gang": {"minCount": count}}})
}

#[test]
fn pods_wait_until_their_pod_group_is_there() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("a", 100, in_pod_group("g"));
    world.reconcile();
    assert!(world.why_waiting("a").contains("podgroups.scheduling.k8s.io/g, which does not exist; create that"));
    world.gang(GangKind::Native, "g", gang_of(2));
    world.reconcile();
    assert!(world.why_waiting("a").contains("1 member"), "{}", world.why_waiting("a"));
    world.pod("b", 100, in_pod_group("g"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn a_gang_needs_what_its_object_says_now() {
    let mut world = World::new();
    world.node("n", 2);
    world.gang(GangKind::Native, "g", gang_of(3));
    world.pod("a", 100, in_pod_group("g"));
    world.pod("b", 100, in_pod_group("g"));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.gang(GangKind::Native, "g", gang_of(2));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn what_a_pod_group_asks_for_in_vain_is_said_on_its_pods() {
    let mut world = World::new();
    world.node("n", 2);
    world.gang(GangKind::Native, "g", json!({"parentCompositePodGroupName": "above"}));
    world.pod("a", 100, in_pod_group("g"));
    world.reconcile();
    let why = world.why_waiting("a");
    assert!(why.contains("podgroups.scheduling.k8s.io/g: groups of PodGroups"), "{why}");
}

#[test]
fn the_priority_of_a_pod_group_counts_for_its_pods() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("low", 100, json!({"spec": {"priority": 50}}));
    world.reconcile();
    let mut group = gang_of(1);
    group["priority"] = 90.into();
    group["preemptionPolicy"] = "Never".into();
    world.gang(GangKind::Native, "g", group.clone());
    world.pod("a", 100, in_pod_group("g"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["low"], "{:?}", world.log);
    group["preemptionPolicy"] = "PreemptLowerPriority".into();
    world.gang(GangKind::Native, "h", group);
    world.pod("b", 100, in_pod_group("h"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b"], "{:?}", world.log);
}

pub(super) fn class(name: &str, value: i32) -> PriorityClass {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    PriorityClass { metadata, value: Some(value), ..PriorityClass::default() }
}

#[test]
fn a_pod_group_has_the_priority_of_the_class_that_it_names() {
    for kind in [GangKind::Native, GangKind::Kai, GangKind::Volcano] {
        let mut world = World::new();
        world.node("n", 1);
        world.pod("low", 100, json!({"spec": {"priority": 50}}));
        world.reconcile();
        world.gang(kind, "g", json!({"priorityClassName": "urgent"}));
        let annotations = match kind {
            GangKind::Kai => json!({"pod-group-name": "g"}),
            _ => json!({"scheduling.k8s.io/group-name": "g"}),
        };
        let of_group = match kind {
            GangKind::Native => in_pod_group("g"),
            _ => json!({"metadata": {"annotations": annotations}}),
        };
        world.pod("a", 100, of_group);
        world.reconcile();
        let why = world.why_waiting("a");
        assert!(why.contains("priorityClassName is \"urgent\", and there is no such"), "{why}");
        world.mirror.priority_classes_are(Access::Forbidden);
        world.reconcile();
        let why = world.why_waiting("a");
        assert!(why.contains("priorityClassName is \"urgent\", and the scheduler has no right"), "{why}");
        world.mirror.priority_classes_are(Access::Read);
        world.mirror.priority_class(class("urgent", 90));
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["a"], "{kind:?}: {:?}", world.log);
        // What runs stays where it is when the class goes.
        world.mirror.priority_class_gone("urgent");
        world.reconcile();
        assert_eq!(world.names_of_bound(), ["a"], "{kind:?}: {:?}", world.log);
    }
}

#[test]
fn pods_beyond_those_evicted_together_wait() {
    let mut world = World::new();
    world.node("n", 3);
    let mut group = gang_of(2);
    group["disruptionMode"] = json!({"all": {}});
    world.gang(GangKind::Native, "g", group);
    for name in ["a", "b", "c"] {
        world.pod(name, 100, in_pod_group("g"));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
    let why = world.why_waiting("c");
    assert!(why.contains("disruptionMode") && why.contains("minCount"), "{why}");
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c"], "{:?}", world.log);
}

#[test]
fn a_pod_of_a_workload_of_kubernetes_1_35_waits() {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("a", 100, json!({"spec": {"workloadRef": {"name": "w", "podGroup": "g"}}}));
    world.reconcile();
    let why = world.why_waiting("a");
    assert!(why.contains("the Workload \"w\" (workloadRef)"), "{why}");
}

#[test]
fn a_new_leader_knows_the_gang_of_bound_pods() {
    let mut world = World::new();
    world.node("n", 2);
    world.gang(GangKind::Native, "g", gang_of(2));
    world.pod("a", 100, in_pod_group("g"));
    world.pod("b", 100, in_pod_group("g"));
    // The leader dies between the two bindings.
    world.wait_for_writes();
    let first = world.writes.remove(0);
    world.carry_out(first);
    world.change_leader();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
}

#[test]
fn bound_pods_stay_when_their_pod_group_goes() {
    let mut world = World::new();
    world.node("n", 2);
    world.gang(GangKind::Native, "g", gang_of(2));
    world.pod("a", 100, in_pod_group("g"));
    world.pod("b", 100, in_pod_group("g"));
    world.reconcile();
    world.gangs.clear();
    world.mirror.gang_gone(GangKind::Native, "default", "g");
    world.change_leader();
    world.now_ms += 120_000;
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
    assert!(!world.log.iter().any(|line| line.contains("evicted")), "{:?}", world.log);
}

#[test]
fn a_group_of_kai_has_its_queue_and_its_sub_groups() {
    let mut world = World::new();
    world.node("n", 4);
    let spec = json!({"resources": {"gpu": {"quota": 2, "limit": 2}}});
    let queue: crate::queue::QueueDefinition = serde_json::from_value(spec).unwrap();
    world.mirror.queue("small", &queue);
    let sub_groups = json!([{"name": "head", "minMember": 1}, {"name": "worker", "minMember": 1}]);
    world.gang(GangKind::Kai, "g", json!({"queue": "small", "subGroups": sub_groups}));
    let member = |sub_group: &str| {
        let labels = json!({"kai.scheduler/subgroup-name": sub_group});
        json!({"metadata": {"annotations": {"pod-group-name": "g"}, "labels": labels}})
    };
    for name in ["w1", "w2", "w3"] {
        world.pod(name, 100, member("worker"));
    }
    world.reconcile();
    assert!(world.bound().is_empty(), "no head is there");
    world.pod("head", 100, member("head"));
    world.reconcile();
    assert_eq!(world.bound().len(), 2, "{:?}", world.bound());
    assert!(world.bound().contains_key("head"));
    let waits = ["w1", "w2", "w3"].into_iter().find(|name| !world.bound().contains_key(name)).unwrap();
    assert!(world.why_waiting(waits).contains("\"small\""), "{}", world.why_waiting(waits));
}

/// Nodes of one device: `n` is in one rack, and `m` and `o` are in another one.
fn with_racks() -> World {
    let mut world = World::new();
    for (name, rack) in [("n", "1"), ("m", "2"), ("o", "2")] {
        world.node(name, 1);
        let mut node = world.nodes[name].clone();
        node["metadata"]["labels"] = json!({"rack": rack});
        world.make_node(name, node);
    }
    world
}

#[test]
fn a_group_stays_in_one_rack() {
    let mut world = with_racks();
    let topology = json!([{"key": "rack"}]);
    let policy = gang_of(2)["schedulingPolicy"].clone();
    world.gang(
        GangKind::Native,
        "g",
        json!({"schedulingPolicy": policy, "schedulingConstraints": {"topology": topology}}),
    );
    world.pod("a", 100, in_pod_group("g"));
    world.pod("b", 100, in_pod_group("g"));
    world.reconcile();
    let mut nodes: Vec<&str> = world.bound().into_values().collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["m", "o"]);
}

#[test]
fn a_level_that_the_scheduler_does_not_know_is_named() {
    let mut world = World::new();
    world.node("n", 2);
    let topology = json!([{"key": "row"}]);
    let policy = gang_of(1)["schedulingPolicy"].clone();
    let spec = json!({"schedulingPolicy": policy, "schedulingConstraints": {"topology": topology}});
    world.gang(GangKind::Native, "g", spec);
    world.pod("a", 100, in_pod_group("g"));
    world.reconcile();
    assert!(world.why_waiting("a").contains("\"row\""), "{}", world.why_waiting("a"));
}

#[test]
fn pods_of_a_job_set_start_together() {
    let mut world = World::new();
    world.node("n", 1);
    let job = json!({"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 1, "completions": 1}}});
    world.gang(GangKind::JobSet, "train", json!({"replicatedJobs": [job]}));
    let labels = json!({"metadata": {"labels": {"jobset.sigs.k8s.io/jobset-name": "train"}}});
    world.pod("a", 100, labels.clone());
    world.pod("b", 100, labels.clone());
    world.reconcile();
    assert!(world.bound().is_empty());
    world.node("m", 1);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    // One pod has succeeded, and does not hold up the other.
    world.pods.get_mut("a").unwrap()["status"] = json!({"phase": "Succeeded"});
    world.show("a");
    world.now_ms += 120_000;
    world.reconcile();
    assert!(world.bound().contains_key("b"));
    assert!(!world.log.iter().any(|line| line.contains("evicted")), "{:?}", world.log);
}

#[test]
fn jobs_of_a_job_set_that_come_one_after_the_other_are_gangs() {
    let mut world = World::new();
    world.node("n", 2);
    let job = |name: &str, parallelism: u32, depends: Value| {
        let spec = json!({"parallelism": parallelism, "completions": parallelism});
        json!({"name": name, "replicas": 1, "template": {"spec": spec}, "dependsOn": depends})
    };
    let done = json!([{"name": "prepare", "status": "Complete"}]);
    world.gang(GangKind::JobSet, "s", json!({"replicatedJobs": [job("prepare", 1, json!([])), job("train", 2, done)]}));
    let of_job = |name: &str| {
        let labels = json!({"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/replicatedjob-name": name});
        json!({"metadata": {"labels": labels}})
    };
    world.pod("other", 100, json!({}));
    world.pod("prepare", 100, of_job("prepare"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["other", "prepare"]);
    world.end("prepare", "Succeeded", None);
    world.pod("train-0", 100, of_job("train"));
    world.pod("train-1", 100, of_job("train"));
    world.reconcile();
    assert_eq!(world.bound().len(), 2, "only one of the two has room: {:?}", world.log);
    world.end("other", "Succeeded", None);
    world.reconcile();
    assert_eq!(world.log.len(), 4, "{:?}", world.log);
    world.end("train-0", "Succeeded", None);
    world.now_ms += 120_000;
    world.reconcile();
    assert_eq!(world.log.len(), 4, "the other one goes on: {:?}", world.log);
}

#[test]
fn a_gang_that_runs_again_needs_all_its_pods_again() {
    let mut world = World::new();
    world.node("n", 3);
    let of_run = |controller: &str, created: &str| made_by(controller, created, of_gang("g", 3));
    for name in ["a", "b", "c"] {
        world.pod(name, 100, of_run("first", "2026-01-01T10:00:00Z"));
    }
    world.reconcile();
    assert_eq!(world.bound().len(), 3);
    world.end("a", "Succeeded", Some("2026-01-01T10:30:00Z"));
    world.end("b", "Failed", Some("2026-01-01T10:31:00Z"));
    // A pod that its Job makes anew belongs to the same run.
    world.pod("b2", 100, of_run("first", "2026-01-01T10:40:00Z"));
    world.reconcile();
    assert!(world.bound().contains_key("b2"));
    for name in ["b2", "c"] {
        world.end(name, "Succeeded", Some("2026-01-01T10:50:00Z"));
    }
    // The CronJob's next Job comes, and the pods of the last one are still listed.
    world.pod("other", 100, json!({}));
    world.reconcile();
    for name in ["d", "e", "f"] {
        world.pod(name, 100, of_run("second", "2026-01-01T11:00:00Z"));
    }
    world.reconcile();
    assert!(["d", "e", "f"].iter().all(|name| !world.bound().contains_key(name)), "{:?}", world.log);
    world.change_leader();
    world.reconcile();
    assert!(["d", "e", "f"].iter().all(|name| !world.bound().contains_key(name)), "{:?}", world.log);
    world.end("other", "Succeeded", None);
    world.reconcile();
    assert!(["d", "e", "f"].iter().all(|name| world.bound().contains_key(name)), "{:?}", world.log);
}

#[test]
fn pods_of_two_controllers_that_share_a_gang_count_together() {
    let mut world = World::new();
    world.node("n", 3);
    for (name, controller) in [("a", "one"), ("b", "other"), ("c", "other")] {
        world.pod(name, 100, made_by(controller, "2026-01-01T10:00:00Z", of_gang("g", 3)));
    }
    world.reconcile();
    world.end("a", "Succeeded", Some("2026-01-01T10:00:00Z"));
    world.now_ms += 3_600_000;
    world.reconcile();
    assert_eq!(world.log, ["a to n", "b to n", "c to n"]);
}

#[test]
fn labels_of_a_workload_that_the_cluster_has_not_mean_nothing() {
    let mut world = World::new();
    world.node("n", 1);
    let labels = json!({"leaderworkerset.sigs.k8s.io/name": "w", "leaderworkerset.sigs.k8s.io/group-index": "0"});
    world.pod("a", 100, json!({"metadata": {"labels": labels}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_pod_waits_for_a_workload_that_may_not_be_read() {
    let mut world = World::new();
    world.node("n", 2);
    world.mirror.gangs_are(GangKind::LeaderWorkerSet, Access::Forbidden);
    let labels = json!({"leaderworkerset.sigs.k8s.io/name": "w", "leaderworkerset.sigs.k8s.io/group-index": "0"});
    world.pod("a", 100, json!({"metadata": {"labels": labels}}));
    world.reconcile();
    let why = world.why_waiting("a");
    assert!(why.contains("has no right to read; apply the scheduler's manifests"), "{why}");
    world.mirror.gangs_are(GangKind::LeaderWorkerSet, Access::Unanswered);
    world.reconcile();
    let why = world.why_waiting("a");
    assert!(why.contains("does not say whether it has such objects; see its log"), "{why}");
    world.mirror.gangs_are(GangKind::LeaderWorkerSet, Access::Absent);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

#[test]
fn a_pod_that_is_put_into_another_gang_waits_for_that_one() {
    let mut world = World::new();
    world.node("n", 2);
    let in_set = |name: &str| json!({"jobset.sigs.k8s.io/jobset-name": name});
    let job = |replicas: u32| json!({"replicatedJobs": [{"name": "w", "replicas": replicas, "template": {}}]});
    world.gang(GangKind::JobSet, "pair", job(2));
    world.pod("a", 100, json!({"metadata": {"labels": in_set("pair")}}));
    world.reconcile();
    assert!(world.bound().is_empty());
    world.pods.get_mut("a").unwrap()["metadata"]["labels"] = in_set("single");
    world.show("a");
    world.reconcile();
    assert!(world.why_waiting("a").contains("/single, which does not exist"), "{}", world.why_waiting("a"));
    world.gang(GangKind::JobSet, "single", job(1));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
}

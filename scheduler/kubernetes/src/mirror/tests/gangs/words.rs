//! What other schedulers' users say of their workloads in labels, annotations and policies.

use std::collections::BTreeMap;

use aliquot_scheduler_core::PodGroup;
use serde_json::{Value, json};

use super::{class, of_gang, with_racks};
use crate::gang::GangKind;
use crate::mirror::NamespaceFacts;
use crate::mirror::tests::World;
use crate::pod::PodFacts;

const REQUIRED: &str = "kai.scheduler/topology-required-placement";
const JOB_SET: &str = "jobset.sigs.k8s.io/jobset-name";
const PREFERRED: &str = "kai.scheduler/topology-preferred-placement";

fn labelled(labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    json!({"metadata": {"labels": labels}})
}

fn in_set(labels: &[(&str, &str)]) -> Value {
    labelled(&[labels, &[(JOB_SET, "s")]].concat())
}

fn in_group(sub_group: &str) -> Value {
    let mut pod = labelled(&[("kai.scheduler/subgroup-name", sub_group)]);
    pod["metadata"]["annotations"] = json!({"pod-group-name": "g"});
    pod
}

/// The specification of a JobSet of this many pods.
fn set_of(pods: u32) -> Value {
    let spec = json!({"parallelism": 1, "completions": 1});
    json!({"replicatedJobs": [{"name": "w", "replicas": pods, "template": {"spec": spec}}]})
}

impl World {
    /// The nodes of these pods, by name.
    fn nodes_of(&self, pods: &[&str]) -> Vec<&str> {
        let bound = self.bound();
        let mut nodes: Vec<&str> = pods.iter().filter_map(|pod| bound.get(pod).copied()).collect();
        nodes.sort_unstable();
        nodes
    }

    fn facts_of(&self, name: &str) -> &PodFacts {
        &self.mirror.pods[self.pods[name]["metadata"]["uid"].as_str().unwrap()].facts
    }

    pub(in crate::mirror::tests) fn queue_of_pod(&self, name: &str) -> String {
        self.mirror.queue_of(self.facts_of(name))
    }

    pub(in crate::mirror::tests) fn group_of(&self, name: &str) -> PodGroup {
        self.mirror.group_of(self.facts_of(name)).unwrap()
    }
}

/// A cluster with one device, which a pod of this priority has.
fn with_holder(priority: i32) -> World {
    let mut world = World::new();
    world.node("n", 1);
    world.pod("holder", 100, json!({"spec": {"priority": priority}}));
    world.mirror.priority_class(class("lesser", 10));
    world.reconcile();
    world
}

#[test]
fn a_label_names_the_priority_class_of_a_pod() {
    let mut world = with_holder(50);
    world.pod("a", 100, labelled(&[("priorityClassName", "urgent")]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["holder"], "there is no such class");
    world.mirror.priority_class(class("urgent", 90));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:?}", world.log);
    // The label goes before what the pod says itself.
    let mut pod = labelled(&[("priorityClassName", "lesser")]);
    pod["spec"] = json!({"priority": 95});
    world.pod("b", 100, pod);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:?}", world.log);
}

#[test]
fn pods_of_a_class_that_stays_are_not_evicted() {
    let mut world = World::new();
    world.node("n", 1);
    world.mirror.priority_class(class("build", 100));
    world.pod("a", 100, labelled(&[("priorityClassName", "build")]));
    world.reconcile();
    world.pod("b", 100, json!({"spec": {"priority": 900}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:?}", world.log);
}

#[test]
fn the_label_of_a_workload_goes_before_that_of_its_pods() {
    let mut world = World::new();
    world.mirror.priority_class(class("urgent", 90));
    world.mirror.priority_class(class("lesser", 10));
    let metadata = labelled(&[("priorityClassName", "urgent"), ("kai.scheduler/queue", "vision")])["metadata"].clone();
    world.gang_with(GangKind::JobSet, "s", metadata, set_of(1));
    world.pod("a", 100, in_set(&[("priorityClassName", "lesser")]));
    assert_eq!(world.queue_of_pod("a"), "vision");
    assert_eq!(world.group_of("a").priority, 90);
    world.mirror.priority_class_gone("urgent");
    assert_eq!(world.group_of("a").priority, 10);
    world.mirror.priority_class_gone("lesser");
    assert_eq!(world.group_of("a").priority, 0);
}

#[test]
fn a_ray_cluster_has_a_label_of_its_own_for_its_class() {
    let mut world = with_holder(50);
    let metadata = labelled(&[("priorityClassName", "lesser"), ("ray.io/priority-class-name", "urgent")]);
    world.gang_with(GangKind::RayCluster, "r", metadata["metadata"].clone(), json!({}));
    world.pod("a", 100, labelled(&[("ray.io/cluster", "r"), ("ray.io/node-type", "head")]));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["holder"]);
    world.mirror.priority_class(class("urgent", 90));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:?}", world.log);
}

#[test]
fn a_workload_says_in_annotations_where_its_pods_may_be() {
    for level in [REQUIRED, PREFERRED] {
        let mut world = with_racks();
        world.gang_with(GangKind::JobSet, "s", json!({"annotations": {level: "rack"}}), set_of(2));
        world.pod("a", 100, in_set(&[]));
        world.pod("b", 100, in_set(&[]));
        world.reconcile();
        assert_eq!(world.nodes_of(&["a", "b"]), ["m", "o"], "{level}");
    }
    let mut world = with_racks();
    world.gang_with(GangKind::JobSet, "s", json!({"annotations": {REQUIRED: "rack"}}), set_of(3));
    for name in ["a", "b", "c"] {
        world.pod(name, 100, in_set(&[]));
    }
    world.reconcile();
    assert!(world.bound().is_empty(), "no rack has room for three: {:?}", world.log);
}

#[test]
fn pods_of_a_gang_say_in_annotations_where_they_may_be() {
    let mut world = with_racks();
    let mut pod = of_gang("g", 2);
    pod["metadata"]["annotations"][REQUIRED] = "rack".into();
    world.pod("a", 100, pod.clone());
    world.pod("b", 100, pod);
    world.reconcile();
    assert_eq!(world.nodes_of(&["a", "b"]), ["m", "o"]);
}

#[test]
fn workloads_and_pods_say_how_long_they_wait_and_last() {
    let mut world = World::new();
    let annotations = |delay: &str, grace: &str| json!({"annotations": {"kai.scheduler/preemption-delay": delay, "kai.scheduler/staleness-grace-period": grace}});
    world.gang_with(GangKind::JobSet, "s", annotations("90s", "-1s"), set_of(2));
    let mut pod = in_set(&[]);
    pod["metadata"]["annotations"] = annotations("5m", "5m")["annotations"].clone();
    world.pod("a", 100, pod.clone());
    let times = |group: PodGroup| (group.preemption_delay_ms, group.staleness_grace_ms);
    assert_eq!(times(world.group_of("a")), (90_000, None), "the workload goes before its pods");
    world.gang(GangKind::JobSet, "s", set_of(2));
    assert_eq!(times(world.group_of("a")), (300_000, Some(300_000)));
    world.pod("b", 100, json!({"metadata": annotations("5m", "5m")}));
    assert_eq!(world.group_of("b").preemption_delay_ms, 300_000);
}

#[test]
fn a_sub_group_of_kai_prefers_one_rack() {
    let mut world = with_racks();
    let near = json!({"topology": "t", "preferredTopologyLevel": "rack"});
    let workers = json!({"name": "worker", "minMember": 2, "topologyConstraint": near});
    let head = json!({"name": "head", "minMember": 1});
    world.gang(GangKind::Kai, "g", json!({"subGroups": [workers, head]}));
    for (name, sub_group) in [("a", "worker"), ("b", "worker"), ("c", "head")] {
        world.pod(name, 100, in_group(sub_group));
    }
    world.reconcile();
    assert_eq!((world.nodes_of(&["a", "b"]), world.nodes_of(&["c"])), (vec!["m", "o"], vec!["n"]));
}

#[test]
fn each_group_of_a_ray_cluster_may_have_a_rack_of_its_own() {
    let mut world = with_racks();
    let template = json!({"metadata": {"annotations": {"kai.scheduler/topology": "t", REQUIRED: "rack"}}});
    let workers = json!({"groupName": "w", "replicas": 2, "template": template});
    world.gang(GangKind::RayCluster, "r", json!({"headGroupSpec": {}, "workerGroupSpecs": [workers]}));
    let node = |node_type: &str, group: &str| {
        labelled(&[("ray.io/cluster", "r"), ("ray.io/node-type", node_type), ("ray.io/group", group)])
    };
    world.pod("a", 100, node("worker", "w"));
    world.pod("b", 100, node("worker", "w"));
    world.pod("head", 100, node("head", "headgroup"));
    world.reconcile();
    assert_eq!((world.nodes_of(&["a", "b"]), world.nodes_of(&["head"])), (vec!["m", "o"], vec!["n"]));
}

#[test]
fn each_job_of_a_job_set_may_have_a_rack_of_its_own() {
    let near = json!({"annotations": {REQUIRED: "rack"}});
    let in_job = json!({"metadata": near, "spec": {"parallelism": 2, "completions": 2}});
    let of_pods = json!({"spec": {"parallelism": 2, "completions": 2, "template": {"metadata": near}}});
    let one_by_one = json!({"startupPolicyOrder": "InOrder"});
    for (template, policy) in
        [(&in_job, json!({})), (&of_pods, json!({})), (&in_job, one_by_one.clone()), (&of_pods, one_by_one)]
    {
        let mut world = with_racks();
        let jobs = json!([{"name": "head", "template": {"spec": {}}}, {"name": "w", "template": template}]);
        world.gang(GangKind::JobSet, "s", json!({"replicatedJobs": jobs, "startupPolicy": policy}));
        let pod = |job: &str| labelled(&[(JOB_SET, "s"), ("jobset.sigs.k8s.io/replicatedjob-name", job)]);
        world.pod("a", 100, pod("w"));
        world.pod("b", 100, pod("w"));
        world.reconcile();
        world.pod("head", 100, pod("head"));
        world.reconcile();
        assert_eq!((world.nodes_of(&["a", "b"]), world.nodes_of(&["head"])), (vec!["m", "o"], vec!["n"]), "{template}");
    }
}

#[test]
fn a_semi_preemptible_group_keeps_those_that_start_together() {
    let mut world = World::new();
    world.node("n", 3);
    world.gang(GangKind::Kai, "g", json!({"minMember": 2, "preemptibility": "semi-preemptible"}));
    for name in ["a", "b", "c"] {
        world.pod(name, 100, in_group(""));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
    let why = world.why_waiting("c");
    assert!(why.contains("semi-preemptible is supported for as many pods as start together, 2"), "{why}");
    world.delete("a");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c"], "{:?}", world.log);
    for name in ["x", "y"] {
        world.pod(name, 100, json!({"spec": {"priority": 900}}));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "c", "x"], "{:?}", world.log);
}

#[test]
fn a_semi_preemptible_group_that_needs_none_gives_way() {
    let mut world = World::new();
    world.node("n", 1);
    world.gang(GangKind::Kai, "g", json!({"minMember": 0, "preemptibility": "semi-preemptible"}));
    world.pod("a", 100, in_group(""));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.pod("x", 100, json!({"spec": {"priority": 900}}));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["x"], "{:?}", world.log);
}

#[test]
fn pods_of_a_gang_are_semi_preemptible_by_their_label() {
    let mut world = World::new();
    world.node("n", 3);
    let mut pod = of_gang("h", 2);
    pod["metadata"]["labels"] = json!({"kai.scheduler/preemptibility": "semi-preemptible"});
    for name in ["a", "b", "c"] {
        world.pod(name, 100, pod.clone());
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
    let why = world.why_waiting("c");
    assert!(why.contains("it is in gang \"h\": semi-preemptible"), "{why}");
    world.delete("b");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c"], "{:?}", world.log);
}

#[test]
fn a_semi_preemptible_sub_group_counts_its_own_pods() {
    let mut world = World::new();
    world.node("n", 3);
    let sub_groups = json!([{"name": "worker", "minMember": 1}, {"name": "head", "minMember": 1}]);
    world.gang(GangKind::Kai, "g", json!({"subGroups": sub_groups, "preemptibility": "semi-preemptible"}));
    for (name, sub_group) in [("a", "worker"), ("b", "worker"), ("c", "head")] {
        world.pod(name, 100, in_group(sub_group));
    }
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "c"], "{:?}", world.log);
    let why = world.why_waiting("b");
    assert!(why.contains("1 in sub-group \"worker\""), "{why}");
}

#[test]
fn a_group_of_volcano_says_how_near_its_pods_must_be() {
    let of_group = json!({"metadata": {"annotations": {"scheduling.k8s.io/group-name": "g"}}});
    let start = |constraint: Value, pods: &[&str]| {
        let mut world = with_racks();
        let count = pods.len();
        world.gang(GangKind::Volcano, "g", json!({"minMember": count, "networkTopology": constraint}));
        pods.iter().for_each(|name| world.pod(name, 100, of_group.clone()));
        world.reconcile();
        world
    };
    for constraint in [json!({"mode": "soft"}), json!({"mode": "hard", "highestTierAllowed": 1})] {
        let world = start(constraint.clone(), &["a", "b"]);
        assert_eq!(world.nodes_of(&["a", "b"]), ["m", "o"], "{constraint}");
    }
    let three = ["a", "b", "c"];
    assert_eq!(start(json!({"mode": "soft"}), &three).names_of_bound(), three);
    assert!(start(json!({"highestTierName": "rack"}), &three).bound().is_empty());
    let why = start(json!({"highestTierAllowed": 2}), &three).why_waiting("a");
    assert!(why.contains("podgroups.scheduling.volcano.sh/g: its networkTopology is hard with"), "{why}");
}

#[test]
fn pods_without_a_group_of_volcano_say_what_it_would_say() {
    let mut world = World::new();
    let annotated = |annotations: Value| json!({"metadata": {"annotations": annotations}});
    let queue = json!({"scheduling.volcano.sh/queue-name": "own"});
    world.pod("a", 10, annotated(queue.clone()));
    world.pod("b", 10, json!({}));
    let of_namespace = [("scheduling.volcano.sh/queue-name".to_owned(), "all".to_owned())].into();
    world.mirror.namespace("default", Some(NamespaceFacts::of(BTreeMap::new(), &of_namespace)));
    assert_eq!([world.queue_of_pod("a"), world.queue_of_pod("b")], ["own", "all"]);
    let keeps = json!({"volcano.sh/preemptable": "false"});
    world.pod("c", 10, annotated(keeps.clone()));
    // Its PodGroup says the same of all its pods.
    world.gang_with(GangKind::Volcano, "g", json!({"annotations": keeps}), json!({"minMember": 1, "queue": "default"}));
    world.pod("d", 10, annotated(json!({"scheduling.k8s.io/group-name": "g", "volcano.sh/preemptable": "true"})));
    assert!(!world.group_of("d").preemptible);
    let is_preemptible = |name: &str| world.mirror.is_preemptible_at(world.facts_of(name), 0);
    assert_eq!(["a", "c"].map(is_preemptible), [true, false]);
}

#[test]
fn a_job_of_volcano_can_start_with_few_of_its_pods() {
    let mut world = World::new();
    world.node("n", 2);
    // Volcano gives each task all its pods for a minimum if the Job says nothing of it.
    world.gang(GangKind::Volcano, "g", json!({"minMember": 1, "minTaskMember": {"worker": 3}}));
    let annotations = json!({"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "worker"});
    for name in ["a", "b", "c"] {
        world.pod(name, 100, json!({"metadata": {"annotations": annotations}}));
    }
    world.reconcile();
    assert_eq!(world.bound().len(), 2, "{:?}", world.log);
}

#[test]
fn a_job_of_kubeflow_names_its_queue_and_its_class() {
    let mut world = with_holder(50);
    let policy = json!({"queue": "default", "priorityClass": "urgent"});
    let spec = json!({
        "runPolicy": {"schedulingPolicy": policy},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 1}},
    });
    world.gang(GangKind::PyTorchJob, "t", spec);
    let owner =
        json!({"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "t", "uid": "t", "controller": true});
    let mut pod = labelled(&[("training.kubeflow.org/job-name", "t")]);
    pod["metadata"]["ownerReferences"] = json!([owner]);
    world.pod("a", 100, pod);
    world.reconcile();
    assert_eq!(world.queue_of_pod("a"), "");
    let why = world.why_waiting("a");
    assert!(why.contains("pytorchjobs.kubeflow.org/t: its priorityClassName is \"urgent\", and there is no"), "{why}");
    world.mirror.priority_class(class("urgent", 90));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "{:?}", world.log);
    assert_eq!(world.queue_of_pod("a"), "default");
}

//! What the owners of pods say in their labels and annotations.

use serde_json::{Value, json};

use super::{Access, World, typed};
use crate::gang::GangKind;
use crate::mirror::tests::gangs::class;
use crate::owner::{OwnerFacts, OwnerKind};

const QUEUE: &str = "kai.scheduler/queue";

/// What a pod says of the owner with this name, whose UID is the same.
fn owned_by(kind: OwnerKind, name: &str) -> Value {
    let (api_version, kind, name_of) = match kind {
        OwnerKind::Job => ("batch/v1", "Job", name.to_owned()),
        OwnerKind::StatefulSet => ("apps/v1", "StatefulSet", name.to_owned()),
        OwnerKind::Deployment => ("apps/v1", "ReplicaSet", format!("{name}-5c8f")),
        OwnerKind::RayJob | OwnerKind::TrainJob => panic!("it makes no pods"),
    };
    let owner = json!({"apiVersion": api_version, "kind": kind, "name": name_of, "uid": name, "controller": true});
    json!({"metadata": {"ownerReferences": [owner], "labels": {"pod-template-hash": "5c8f"}}})
}

impl World {
    /// The watch of a kind of owners shows all that there are.
    fn owners(&mut self, kind: OwnerKind, owners: &[(&str, Value)]) {
        for (name, metadata) in owners {
            let mut metadata = metadata.clone();
            metadata["uid"] = (*name).into();
            self.mirror.owner(kind, "default", name, OwnerFacts::of(&typed(&metadata)));
        }
        self.mirror.owners_are(kind, Access::Read);
    }
}

#[test]
fn owners_name_the_queue_of_their_pods() {
    for kind in [OwnerKind::Deployment, OwnerKind::Job, OwnerKind::StatefulSet] {
        let mut world = World::new();
        world.namespace([(QUEUE.to_owned(), "of-namespace".to_owned())].into());
        world.owners(kind, &[("o", json!({"labels": {QUEUE: "of-owner"}})), ("silent", json!({}))]);
        world.pod("a", 10, owned_by(kind, "o"));
        world.pod("b", 10, owned_by(kind, "silent"));
        let mut pod = owned_by(kind, "o");
        pod["metadata"]["labels"][QUEUE] = "own".into();
        world.pod("c", 10, pod);
        let queues = ["a", "b", "c"].map(|name| world.queue_of_pod(name));
        assert_eq!(queues, ["of-owner", "of-namespace", "own"], "{kind:?}");
    }
}

#[test]
fn what_stands_above_a_workload_speaks_for_it() {
    let mut world = World::new();
    world.mirror.priority_class(class("urgent", 90));
    let above = |api_version: &str, kind: &str, name: &str| {
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": true});
        json!([owner])
    };
    let train = json!({"labels": {QUEUE: "train", "priorityClassName": "urgent"}});
    world.owners(OwnerKind::TrainJob, &[("t", train.clone())]);
    world.owners(OwnerKind::RayJob, &[("r", json!({"labels": {QUEUE: "ray"}}))]);
    let of_train = json!({"ownerReferences": above("trainer.kubeflow.org/v1alpha1", "TrainJob", "t")});
    world.gang_with(GangKind::JobSet, "s", of_train, json!({"replicatedJobs": [{"name": "node"}]}));
    let submits = json!({"ownerReferences": above("ray.io/v1", "RayJob", "r")});
    world.owners(OwnerKind::Job, &[("submits", submits), ("of-set", json!({}))]);
    let mut node = owned_by(OwnerKind::Job, "of-set");
    node["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] = "s".into();
    world.pod("node", 10, node);
    world.pod("submitter", 10, owned_by(OwnerKind::Job, "submits"));
    let queues = |world: &World| ["node", "submitter"].map(|name| world.queue_of_pod(name));
    assert_eq!(queues(&world), ["train", "ray"]);
    assert_eq!(world.group_of("node").priority, 90);
    // A change reaches the pods, also one of a class that only a TrainJob names.
    world.reconcile();
    let is_looked_at = |world: &World, name: &str| world.mirror.changed_pods.contains(&world.uid(name));
    world.owners(OwnerKind::TrainJob, &[("t", json!({"labels": {QUEUE: "later", "priorityClassName": "urgent"}}))]);
    world.owners(OwnerKind::RayJob, &[("r", json!({}))]);
    assert!(is_looked_at(&world, "node") && is_looked_at(&world, "submitter"));
    assert_eq!(queues(&world), ["later", ""]);
    world.reconcile();
    world.mirror.priority_class(class("urgent", 80));
    assert!(is_looked_at(&world, "node") && !is_looked_at(&world, "submitter"));
}

#[test]
fn a_change_of_an_owner_reaches_pods_that_wait() {
    let mut world = World::new();
    world.node("n", 1);
    let half = json!({"resources": {"gpu": {"quota": 0.5, "limit": 0.5}}});
    for name in ["small", "default"] {
        world.queues.insert(name.into(), serde_json::from_value(half.clone()).unwrap());
    }
    world.change_leader();
    world.owners(OwnerKind::Deployment, &[("web", json!({"labels": {QUEUE: "small"}}))]);
    world.pod("a", 50, owned_by(OwnerKind::Deployment, "web"));
    world.reconcile();
    world.pod("b", 50, owned_by(OwnerKind::Deployment, "web"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"]);
    world.owners(OwnerKind::Deployment, &[("web", json!({}))]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"], "{:?}", world.log);
    // What runs stays in its queue, as after a change of its own labels.
    world.mirror.owner_gone(OwnerKind::Deployment, "default", "web");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
}

#[test]
fn owners_name_the_priority_class_and_say_what_may_be_evicted() {
    let mut world = World::new();
    world.node("n", 1);
    world.mirror.priority_class(class("lesser", 10));
    let keeps = json!({"labels": {"kai.scheduler/preemptibility": "non-preemptible", "priorityClassName": "lesser"}});
    world.owners(OwnerKind::StatefulSet, &[("keeps", keeps)]);
    let urgent = json!({"labels": {"priorityClassName": "urgent"}});
    world.owners(OwnerKind::Job, &[("urgent", urgent)]);
    world.pod("a", 100, owned_by(OwnerKind::StatefulSet, "keeps"));
    world.reconcile();
    let mut pod = owned_by(OwnerKind::Job, "urgent");
    pod["metadata"]["labels"]["priorityClassName"] = "lesser".into();
    world.pod("b", 100, pod);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a"], "nothing may be evicted");
    world.owners(OwnerKind::StatefulSet, &[("keeps", json!({"labels": {"priorityClassName": "lesser"}}))]);
    world.delete("a");
    world.pod("a2", 100, owned_by(OwnerKind::StatefulSet, "keeps"));
    world.pod("c", 0, json!({}));
    world.reconcile();
    // As in KAI, a class that there is not counts as none. Then the label of the pod counts, and the elder goes first.
    assert_eq!(world.names_of_bound(), ["b", "c"], "{:?}", world.log);
    world.mirror.priority_class(class("urgent", 90));
    world.delete("b");
    let mut pod = owned_by(OwnerKind::Job, "urgent");
    pod["metadata"]["labels"]["priorityClassName"] = "lesser".into();
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a2", "c"]);
    world.pod("d", 100, pod);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["c", "d"], "{:?}", world.log);
}

#[test]
fn owners_say_where_the_pods_of_a_gang_may_be() {
    let mut world = World::new();
    let annotations = json!({
        "kai.scheduler/topology-required-placement": "rack", "kai.scheduler/preemption-delay": "5s",
        "kai.scheduler/staleness-grace-period": "-1s",
    });
    world.owners(OwnerKind::Job, &[("o", json!({"annotations": annotations}))]);
    let mut pod = owned_by(OwnerKind::Job, "o");
    pod["metadata"]["annotations"] = json!({"aliquot.dev/gang-size": "2", "kai.scheduler/preemption-delay": "7s"});
    world.pod("a", 10, pod);
    let group = world.group_of("a");
    assert_eq!(group.spread.required_level.as_deref(), Some("rack"));
    assert_eq!((group.preemption_delay_ms, group.staleness_grace_ms), (5_000, None));
}

#[test]
fn a_pod_waits_until_its_owner_is_known() {
    let mut world = World::new();
    world.node("n", 2);
    world.pod("before", 10, owned_by(OwnerKind::Job, "o"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["before"], "owners may not be read");
    world.owners(OwnerKind::Job, &[]);
    world.owners(OwnerKind::Deployment, &[]);
    world.pod("a", 10, owned_by(OwnerKind::Job, "o"));
    world.pod("b", 10, owned_by(OwnerKind::Deployment, "o"));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["b", "before"], "a pod of a Deployment does not name it");
    let why = world.why_waiting("a");
    assert!(why.contains("jobs.batch/o does not exist"), "{why}");
    world.owners(OwnerKind::Job, &[("o", json!({}))]);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b", "before"]);
}

#[test]
fn an_owner_says_nothing_of_the_pods_of_an_earlier_one() {
    let mut world = World::new();
    let later = json!({"uid": "later", "labels": {QUEUE: "q"}});
    world.mirror.owner(OwnerKind::Job, "default", "o", OwnerFacts::of(&typed(&later)));
    world.mirror.owners_are(OwnerKind::Job, Access::Read);
    world.node("n", 1);
    world.pod("a", 10, owned_by(OwnerKind::Job, "o"));
    world.reconcile();
    assert_eq!((world.names_of_bound(), world.queue_of_pod("a")), (vec!["a"], String::new()));
}

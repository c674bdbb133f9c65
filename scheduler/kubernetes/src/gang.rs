//! Pods that start together or not at all: how a pod names the pods that it starts with, and what objects say of their
//! pods.

mod facts;
mod kind;
mod network;

use std::collections::BTreeMap;

use aliquot_dialects::{GANG, GANG_SIZE};
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::pod::WORKLOAD_REF;

pub(crate) use facts::{GangFacts, GroupPriority, SharedClaim};
pub(crate) use kind::{Address, GangKind};
pub(crate) use network::Network;

/// Instead of a gang's name: the pod starts by itself, whatever it belongs to.
const NONE: &str = "none";

/// The annotation by which KAI's pods name their group, and the label that names the sub-group.
const KAI_GROUP: &str = "pod-group-name";
const KAI_SUB_GROUP: &str = "kai.scheduler/subgroup-name";
/// The annotations by which Volcano's pods name their group, and their task in it.
const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
const VOLCANO_TASK: &str = "volcano.sh/task-spec";
/// The label by which pods of the coscheduling plugin name their group.
const COSCHEDULING_GROUP: &str = "scheduling.x-k8s.io/pod-group";

/// The label by which plain pods name their group for Kueue, and the annotation that says how many they are.
const KUEUE_GROUP: &str = "kueue.x-k8s.io/pod-group-name";
const KUEUE_GROUP_SIZE: &str = "kueue.x-k8s.io/pod-group-total-count";
/// With these annotations Kueue admits the group before all its pods are there. Then they may come one after the other.
const KUEUE_ONE_BY_ONE: [&str; 2] = ["kueue.x-k8s.io/pod-group-fast-admission", "kueue.x-k8s.io/pod-group-serving"];

const JOB_SET: &str = "jobset.sigs.k8s.io/jobset-name";
/// The labels of a pod of a JobSet with the JobSet's UID, and with the number of its restarts as a whole.
const JOB_SET_UID: &str = "jobset.sigs.k8s.io/jobset-uid";
const JOB_SET_RESTARTS: &str = "jobset.sigs.k8s.io/restart-attempt";
/// The label of a pod of a JobSet that names its replicated job.
const REPLICATED_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
const LEADER_WORKER_SET: &str = "leaderworkerset.sigs.k8s.io/name";
const LEADER_WORKER_GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";
/// The label with a pod's number in its group. The leader is number 0.
const LEADER_WORKER_NUMBER: &str = "leaderworkerset.sigs.k8s.io/worker-index";
/// The annotation with the number of pods of its group. The object may say another number already.
const LEADER_WORKER_SIZE: &str = "leaderworkerset.sigs.k8s.io/size";
const RAY_CLUSTER: &str = "ray.io/cluster";
/// The label of the pods of a Ray cluster, and its values for pods that start together. Pods that submit jobs to the
/// cluster do not have the label, and the pod that cleans up after the cluster has another value.
const RAY_NODE: &str = "ray.io/node-type";
const RAY_NODES: [&str; 2] = ["head", "worker"];
/// The label of the pods of a Ray cluster that names their group: that of the head, or one of the groups of workers.
const RAY_GROUP: &str = "ray.io/group";
/// The labels of pods that name their job, of Kubeflow's training operator or its MPI operator, and the operator.
const TRAINING_JOB: &str = "training.kubeflow.org/job-name";
const TRAINING_OPERATOR: &str = "training.kubeflow.org/operator-name";

/// The gang that a pod is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gang {
    /// Its name: no two gangs of a namespace share one.
    pub(crate) name: String,
    pub(crate) source: Source,
    /// The sort of member that the pod is. It counts if the gang needs some of each sort, or if each sort starts by
    /// itself.
    pub(crate) sub_group: Option<String>,
    /// The number of its pods, where the pods say it and the object says everything else.
    pub(crate) size: Option<u32>,
}

/// What tells a run of a gang from other runs of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Run {
    /// All pods of the run have this, and no others.
    Named(String),
    /// All pods of this controller, by its UID, and perhaps those of others.
    OfController(String),
    Unknown,
}

/// Where it is said how many pods must start together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The pods themselves give this number.
    Pods(u32),
    /// The object with this name.
    Object(GangKind, String),
}

type Texts = BTreeMap<String, String>;

/// The gang that a pod says it is in. An explicit name takes precedence over what follows from the pod's owner.
/// `workload`: the Workload that it names, in a cluster of Kubernetes 1.35.
///
/// # Errors
/// What the pod says of its gang is not definite.
pub(crate) fn of_pod(
    spec: &PodSpec,
    workload: Option<&str>,
    labels: &Texts,
    annotations: &Texts,
    owners: &[OwnerReference],
) -> Option<Result<Gang, String>> {
    match (annotations.get(GANG).map(String::as_str), annotations.get(GANG_SIZE), workload) {
        (Some(NONE), ..) => None,
        (Some(name), size, _) => Some(annotated(name, size.map_or("", String::as_str))),
        (None, Some(size), _) => Some(of_controller(size, owners)),
        (None, None, Some(workload)) => Some(Err(format!(
            "it names the Workload {workload:?} ({WORKLOAD_REF}), and Workloads of scheduling.k8s.io/v1alpha1 are not \
             supported; name a gang by the annotations {GANG} and {GANG_SIZE}, or create the pod without it"
        ))),
        (None, None, None) => {
            let of_group = of_group(spec, labels, annotations).or_else(|| of_workload(labels, annotations, owners));
            of_group.map(Ok).or_else(|| of_kueue(labels, annotations))
        }
    }
}

/// The gang of a pod's workload that the pod does not start with, because another scheduler places it, or because it says
/// so. `gang`: what it starts with.
pub(crate) fn apart_from(
    gang: Option<&Result<Gang, String>>,
    labels: &Texts,
    annotations: &Texts,
    owners: &[OwnerReference],
) -> Option<Gang> {
    let others = of_workload(labels, annotations, owners).or_else(|| of_kueue(labels, annotations)?.ok())?;
    match gang {
        // What it says is not definite.
        Some(Err(_)) => None,
        Some(Ok(gang)) => (gang.name != others.name).then_some(others),
        None => Some(others),
    }
}

/// The run of its gang that a pod belongs to. `controller`: the UID of its controller.
pub(crate) fn run_of(labels: &Texts, controller: Option<&str>) -> Run {
    if let (Some(uid), Some(restarts)) = (labels.get(JOB_SET_UID), labels.get(JOB_SET_RESTARTS)) {
        // Its jobs can end one after the other, and go on after an eviction.
        return Run::Named(format!("{uid}/{restarts}"));
    }
    if let Some(group) = labels.get(KUEUE_GROUP) {
        // Kueue takes a new pod for the successor of another one as long as pods of the group are there.
        return Run::Named(group.clone());
    }
    controller.map_or(Run::Unknown, |uid| Run::OfController(uid.to_owned()))
}

fn annotated(name: &str, size: &str) -> Result<Gang, String> {
    match (name.is_empty(), size.parse()) {
        (true, _) => Err(format!("the annotation {GANG} is empty; name the gang there")),
        (false, Ok(size)) if size > 0 => {
            Ok(Gang { name: name.to_owned(), source: Source::Pods(size), sub_group: None, size: None })
        }
        _ => Err(format!(
            "the annotation {GANG_SIZE} is {size:?}; say there how many pods of gang {name:?} must start together"
        )),
    }
}

/// The pods of one controller, such as a Job: each Job of a CronJob has a gang of its own.
fn of_controller(size: &str, owners: &[OwnerReference]) -> Result<Gang, String> {
    let Some(owner) = owners.iter().find(|owner| owner.controller == Some(true)) else {
        return Err(format!(
            "the pod has the annotation {GANG_SIZE}, and neither {GANG} nor a controller; name the gang in {GANG}"
        ));
    };
    // A later controller can have the same name.
    annotated(&format!("{}/{}/{}", owner.kind, owner.name, owner.uid), size)
}

fn of_group(spec: &PodSpec, labels: &Texts, annotations: &Texts) -> Option<Gang> {
    let native = spec.scheduling_group.as_ref().and_then(|group| group.pod_group_name.as_ref());
    let groups = [
        (GangKind::Native, native, None),
        (GangKind::Kai, annotations.get(KAI_GROUP), labels.get(KAI_SUB_GROUP)),
        (GangKind::Volcano, annotations.get(VOLCANO_GROUP), annotations.get(VOLCANO_TASK)),
        (GangKind::Coscheduling, labels.get(COSCHEDULING_GROUP), None),
    ];
    let is_named = |name: &&String| !name.is_empty();
    let mut named = groups.into_iter().filter_map(|(kind, name, sub)| Some((kind, name.filter(is_named)?, sub)));
    named.next().map(|(kind, name, sub_group)| Gang { sub_group: sub_group.cloned(), ..of_object(kind, name) })
}

fn of_kueue(labels: &Texts, annotations: &Texts) -> Option<Result<Gang, String>> {
    let name = labels.get(KUEUE_GROUP).filter(|name| !name.is_empty())?;
    if KUEUE_ONE_BY_ONE.iter().any(|key| annotations.get(*key).is_some_and(|value| value == "true")) {
        return None;
    }
    let size = annotations.get(KUEUE_GROUP_SIZE).map_or("", String::as_str);
    let gang =
        |size| Gang { name: format!("{KUEUE_GROUP}/{name}"), source: Source::Pods(size), sub_group: None, size: None };
    Some(size.parse().ok().filter(|size| *size > 0).map(gang).ok_or_else(|| {
        format!("the annotation {KUEUE_GROUP_SIZE} is {size:?}; say there how many pods group {name:?} has")
    }))
}

/// The gang of the workload that has made a pod, whatever the pod says of gangs.
pub(crate) fn of_workload(labels: &Texts, annotations: &Texts, owners: &[OwnerReference]) -> Option<Gang> {
    if let Some(name) = labels.get(JOB_SET) {
        return Some(Gang { sub_group: labels.get(REPLICATED_JOB).cloned(), ..of_object(GangKind::JobSet, name) });
    }
    if let (Some(name), Some(group)) = (labels.get(LEADER_WORKER_SET), labels.get(LEADER_WORKER_GROUP)) {
        let gang = of_object(GangKind::LeaderWorkerSet, name);
        let is_leader = labels.get(LEADER_WORKER_NUMBER).is_some_and(|number| number == "0");
        let part = if is_leader { facts::LEADER } else { facts::WORKERS };
        let size = annotations.get(LEADER_WORKER_SIZE).and_then(|size| size.parse().ok());
        return Some(Gang { name: format!("{}/{group}", gang.name), sub_group: Some(part.to_owned()), size, ..gang });
    }
    let is_ray_node = labels.get(RAY_NODE).is_some_and(|node| RAY_NODES.contains(&node.as_str()));
    if let (Some(name), true) = (labels.get(RAY_CLUSTER), is_ray_node) {
        return Some(Gang { sub_group: labels.get(RAY_GROUP).cloned(), ..of_object(GangKind::RayCluster, name) });
    }
    let name = labels.get(TRAINING_JOB)?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.kind.as_str());
    // A launcher of MPI belongs to a Job.
    let is_mpi = labels.get(TRAINING_OPERATOR).is_some_and(|operator| operator.starts_with("mpi"));
    let of_kind = |kind: &GangKind| kind.is_training_job() && Some(kind.api().kind) == owner;
    let kind = GangKind::ALL.into_iter().find(of_kind).or(is_mpi.then_some(GangKind::MpiJob))?;
    Some(of_object(kind, name))
}

fn of_object(kind: GangKind, name: &str) -> Gang {
    Gang { name: kind.full_name(name), source: Source::Object(kind, name.to_owned()), sub_group: None, size: None }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn gang(pod: Value) -> Option<Result<Gang, String>> {
        let texts = |field: &str| serde_json::from_value(pod[field].clone()).unwrap_or_default();
        let spec = serde_json::from_value(pod["spec"].clone()).unwrap_or_default();
        let owners: Vec<OwnerReference> = serde_json::from_value(pod["owners"].clone()).unwrap_or_default();
        of_pod(&spec, pod["workload"].as_str(), &texts("labels"), &texts("annotations"), &owners)
    }

    #[test]
    fn a_workload_that_a_pod_names_is_not_passed_over() {
        let error = gang(json!({"workload": "w"})).unwrap().unwrap_err();
        assert!(error.contains("workloadRef") && error.contains("\"w\""), "{error}");
        assert_eq!(gang(json!({"workload": "w", "annotations": {"aliquot.dev/gang": "none"}})), None);
        let annotations = json!({"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "2"});
        assert!(gang(json!({"workload": "w", "annotations": annotations})).unwrap().is_ok());
    }

    #[test]
    fn pods_declare_a_gang_by_annotations() {
        let annotated = |annotations: Value| gang(json!({"annotations": annotations}));
        assert_eq!(gang(json!({})), None);
        let declared = annotated(json!({"aliquot.dev/gang": "g", "aliquot.dev/gang-size": "5"}));
        let expected = Gang { name: "g".into(), source: Source::Pods(5), sub_group: None, size: None };
        assert_eq!(declared, Some(Ok(expected)));
        for size in ["", "0", "-1", "five"] {
            let error =
                annotated(json!({"aliquot.dev/gang": "g", "aliquot.dev/gang-size": size})).unwrap().unwrap_err();
            assert!(error.contains(&format!("gang-size is {size:?}")), "{error}");
        }
    }

    #[test]
    fn pods_of_one_controller_are_a_gang_if_they_say_its_size() {
        let owner = |is_controller: bool| {
            let job = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "1-2"});
            let mut owners = json!([job]);
            owners[0]["controller"] = is_controller.into();
            owners
        };
        let of = |size: &str, owners: Value| gang(json!({"annotations": {GANG_SIZE: size}, "owners": owners}));
        let expected = Gang { name: "Job/j/1-2".into(), source: Source::Pods(3), sub_group: None, size: None };
        assert_eq!(of("3", owner(true)), Some(Ok(expected)));
        let error = of("none", owner(true)).unwrap().unwrap_err();
        assert!(error.contains("gang-size is \"none\"") && error.contains("\"Job/j/1-2\""), "{error}");
        for owners in [json!([]), owner(false)] {
            let error = of("3", owners).unwrap().unwrap_err();
            assert!(error.contains("name the gang in aliquot.dev/gang"), "{error}");
        }
    }

    #[test]
    fn pods_name_their_group_in_the_words_of_four_projects() {
        let labelled = json!({"labels": {"scheduling.x-k8s.io/pod-group": "g"}});
        let native = json!({"spec": {"containers": [], "schedulingGroup": {"podGroupName": "g"}}});
        let kai = json!({"annotations": {"pod-group-name": "g"}, "labels": {"kai.scheduler/subgroup-name": "s"}});
        let volcano = json!({"annotations": {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "t"}});
        for (pod, kind, sub_group) in [
            (native, GangKind::Native, None),
            (kai, GangKind::Kai, Some("s")),
            (volcano, GangKind::Volcano, Some("t")),
            (labelled, GangKind::Coscheduling, None),
        ] {
            let gang = gang(pod).unwrap().unwrap();
            assert_eq!(gang.source, Source::Object(kind, "g".into()));
            assert_eq!((gang.name, gang.sub_group.as_deref()), (kind.full_name("g"), sub_group));
        }
    }

    #[test]
    fn plain_pods_of_a_group_of_kueue_start_together() {
        let of = |annotations: Value| gang(json!({"labels": {KUEUE_GROUP: "g"}, "annotations": annotations}));
        let name = "kueue.x-k8s.io/pod-group-name/g".into();
        let expected = Gang { name, source: Source::Pods(3), sub_group: None, size: None };
        assert_eq!(of(json!({KUEUE_GROUP_SIZE: "3"})), Some(Ok(expected)));
        for size in ["", "0", "three"] {
            let error = of(json!({KUEUE_GROUP_SIZE: size})).unwrap().unwrap_err();
            assert!(error.contains(&format!("is {size:?}")), "{error}");
        }
        // Kueue admits these before all are there, and a StatefulSet makes the next one when the first is ready.
        for one_by_one in KUEUE_ONE_BY_ONE {
            assert_eq!(of(json!({KUEUE_GROUP_SIZE: "3", one_by_one: "true"})), None);
        }
    }

    #[test]
    fn pods_of_workloads_are_known_by_their_labels() {
        let owner =
            |kind: &str| json!([{"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]);
        let training = json!({TRAINING_JOB: "w"});
        let launcher = json!({TRAINING_JOB: "w", TRAINING_OPERATOR: "mpi-operator"});
        for (pod, kind, name) in [
            (json!({"labels": {JOB_SET: "w"}}), GangKind::JobSet, "jobsets.jobset.x-k8s.io/w"),
            (
                json!({"labels": {LEADER_WORKER_SET: "w", LEADER_WORKER_GROUP: "3"}}),
                GangKind::LeaderWorkerSet,
                "leaderworkersets.leaderworkerset.x-k8s.io/w/3",
            ),
            (json!({"labels": {RAY_CLUSTER: "w", RAY_NODE: "head"}}), GangKind::RayCluster, "rayclusters.ray.io/w"),
            (
                json!({"labels": training, "owners": owner("PyTorchJob")}),
                GangKind::PyTorchJob,
                "pytorchjobs.kubeflow.org/w",
            ),
            (json!({"labels": launcher, "owners": owner("Job")}), GangKind::MpiJob, "mpijobs.kubeflow.org/w"),
        ] {
            let gang = gang(pod.clone()).unwrap_or_else(|| panic!("{pod}")).unwrap();
            assert_eq!((gang.source, gang.name.as_str()), (Source::Object(kind, "w".into()), name));
        }
        let number = |number: &str| {
            let labels = json!({LEADER_WORKER_SET: "w", LEADER_WORKER_GROUP: "3", LEADER_WORKER_NUMBER: number});
            gang(json!({"labels": labels})).unwrap().unwrap().sub_group.unwrap()
        };
        assert_eq!([number("0"), number("1")], ["leader", "workers"]);
        let labels = json!({LEADER_WORKER_SET: "w", LEADER_WORKER_GROUP: "3"});
        let sized = gang(json!({"labels": labels, "annotations": {LEADER_WORKER_SIZE: "8"}}));
        assert_eq!(sized.unwrap().unwrap().size, Some(8));
        let labels = json!({JOB_SET: "w", REPLICATED_JOB: "r"});
        assert_eq!(gang(json!({"labels": labels})).unwrap().unwrap().sub_group.as_deref(), Some("r"));
        assert_eq!(gang(json!({"labels": training, "owners": owner("Job")})), None);
        // The pod submits jobs to the cluster, and is not one of the cluster's nodes.
        assert_eq!(gang(json!({"labels": {RAY_CLUSTER: "w"}})), None);
        // When all nodes of the cluster are gone, this pod removes what the head has saved elsewhere.
        assert_eq!(gang(json!({"labels": {RAY_CLUSTER: "w", RAY_NODE: "redis-cleanup"}})), None);
    }

    #[test]
    fn a_pod_can_say_that_it_starts_by_itself() {
        let pod = json!({"annotations": {"aliquot.dev/gang": "none"}, "labels": {JOB_SET: "w"}});
        assert_eq!(gang(pod), None);
    }

    #[test]
    fn runs_of_a_job_set_differ_in_its_restarts_and_not_in_its_jobs() {
        let run = |labels: Value, controller| run_of(&serde_json::from_value(labels).unwrap(), controller);
        let of_set = |restarts: &str| json!({JOB_SET_UID: "u", JOB_SET_RESTARTS: restarts});
        assert_eq!(run(of_set("0"), Some("job")), run(of_set("0"), Some("other")));
        assert_ne!(run(of_set("0"), Some("job")), run(of_set("1"), Some("job")));
        assert_ne!(run(json!({}), Some("job")), run(json!({}), Some("other")));
        assert_eq!(run(json!({KUEUE_GROUP: "g"}), None), run(json!({KUEUE_GROUP: "g"}), Some("job")));
    }
}

//! Workloads that can be suspended: objects whose controllers delete all their pods while a field says so, and make them
//! again afterwards. Pods that go in this way are no failures.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ApiResource;
use serde_json::{Value, json};

use crate::gang::{Address, Gang, GangKind, Source};

/// What Kueue manages has a label or an annotation that begins like this. Kueue suspends and resumes it itself.
const KUEUE: &str = "kueue.x-k8s.io/";

/// A kind of workload that can be suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WorkloadKind {
    Job,
    JobSet,
    TrainJob,
    RayCluster,
    RayJob,
    /// A job of Kubeflow.
    Training(GangKind),
}

/// A workload of a namespace, as its pods name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Workload {
    pub(crate) kind: WorkloadKind,
    pub(crate) name: String,
}

impl WorkloadKind {
    pub(crate) const ALL: [WorkloadKind; 11] = [
        WorkloadKind::Job,
        WorkloadKind::JobSet,
        WorkloadKind::TrainJob,
        WorkloadKind::RayCluster,
        WorkloadKind::RayJob,
        WorkloadKind::Training(GangKind::PyTorchJob),
        WorkloadKind::Training(GangKind::TfJob),
        WorkloadKind::Training(GangKind::MpiJob),
        WorkloadKind::Training(GangKind::XgBoostJob),
        WorkloadKind::Training(GangKind::PaddleJob),
        WorkloadKind::Training(GangKind::JaxJob),
    ];

    fn of_gang(kind: GangKind) -> Option<WorkloadKind> {
        match kind {
            GangKind::JobSet => Some(WorkloadKind::JobSet),
            GangKind::RayCluster => Some(WorkloadKind::RayCluster),
            kind if kind.is_training_job() => Some(WorkloadKind::Training(kind)),
            _ => None,
        }
    }

    pub(crate) fn api(self) -> Address {
        match self {
            WorkloadKind::Job => Address { group: "batch", versions: &["v1"], kind: "Job", plural: "jobs" },
            WorkloadKind::JobSet => GangKind::JobSet.api(),
            WorkloadKind::TrainJob => Address {
                group: "trainer.kubeflow.org",
                versions: &["v1", "v1alpha1"],
                kind: "TrainJob",
                plural: "trainjobs",
            },
            WorkloadKind::RayCluster => GangKind::RayCluster.api(),
            WorkloadKind::RayJob => Address { kind: "RayJob", plural: "rayjobs", ..GangKind::RayCluster.api() },
            WorkloadKind::Training(kind) => kind.api(),
        }
    }

    /// The resource in one of its versions.
    pub(crate) fn resource(self, version: &str) -> ApiResource {
        self.api().resource(version)
    }

    /// The resource as `kubectl` takes it.
    pub(crate) fn full_plural(self) -> String {
        let Address { group, plural, .. } = self.api();
        format!("{plural}.{group}")
    }

    /// The kind that may stand above it, and then suspends and resumes it.
    fn above(self) -> Option<WorkloadKind> {
        match self {
            WorkloadKind::JobSet => Some(WorkloadKind::TrainJob),
            WorkloadKind::RayCluster => Some(WorkloadKind::RayJob),
            _ => None,
        }
    }

    /// The value of `managedBy` that names its usual controller.
    fn manager(self) -> &'static str {
        match self {
            WorkloadKind::Job => "kubernetes.io/job-controller",
            WorkloadKind::JobSet => "jobset.sigs.k8s.io/jobset-controller",
            WorkloadKind::TrainJob => "trainer.kubeflow.org/trainjob-controller",
            WorkloadKind::RayCluster | WorkloadKind::RayJob => "ray.io/kuberay-operator",
            WorkloadKind::Training(GangKind::MpiJob) => "kubeflow.org/mpi-operator",
            WorkloadKind::Training(_) => "kubeflow.org/training-operator",
        }
    }

    /// A specification with the field that suspends it, and nothing else.
    pub(crate) fn suspended(self, is_suspended: bool) -> Value {
        match self {
            WorkloadKind::Training(_) => json!({"runPolicy": {"suspend": is_suspended}}),
            _ => json!({"suspend": is_suspended}),
        }
    }

    fn policy(self, object: &Value) -> &Value {
        match self {
            WorkloadKind::Training(_) => &object["spec"]["runPolicy"],
            _ => &object["spec"],
        }
    }

    pub(crate) fn is_suspended(self, object: &Value) -> bool {
        self.policy(object)["suspend"] == true
    }

    /// Checks that an object of this kind can be suspended by us, if it is the topmost workload.
    ///
    /// # Errors
    /// What keeps it from being suspended.
    pub(crate) fn check(self, object: &Value) -> Result<(), String> {
        let texts = |field: &str| object["metadata"][field].as_object().into_iter().flatten();
        if texts("labels").chain(texts("annotations")).any(|(key, _)| is_kueues(key)) {
            return Err("Kueue manages it".into());
        }
        let policy = self.policy(object);
        // Both operators have had `MPIJob`.
        let known = [self.manager(), "kubeflow.org/training-operator"];
        match policy["managedBy"].as_str() {
            Some(manager) if !manager.is_empty() && !known.contains(&manager) => {
                return Err(format!("it is managed by {manager}"));
            }
            _ => {}
        }
        if object["metadata"]["deletionTimestamp"].is_string() {
            return Err("it is being deleted".into());
        }
        if self.is_suspended(object) {
            return Err("it is suspended already".into());
        }
        if self == WorkloadKind::RayJob {
            // KubeRay lets others fail for good if they are suspended.
            let spec = &object["spec"];
            if spec["shutdownAfterJobFinishes"] != true
                || !spec["clusterSelector"].as_object().is_none_or(|of| of.is_empty())
            {
                return Err(
                    "KubeRay suspends only a RayJob with shutdownAfterJobFinishes and without clusterSelector".into()
                );
            }
            // It does so while a RayJob starts or runs. Otherwise its pods stay, and the suspension comes true later.
            let status = object["status"]["jobDeploymentStatus"].as_str().unwrap_or_default();
            if ["Waiting", "Complete", "Failed"].contains(&status) {
                return Err(format!("KubeRay does not suspend a RayJob that is {status}"));
            }
        }
        Ok(())
    }

    /// The workload above an object of this kind, with its UID; `None`: this one is the topmost.
    ///
    /// # Errors
    /// It belongs to something that may change it at any time.
    pub(crate) fn workload_above(self, object: &Value) -> Result<Option<(Workload, String)>, String> {
        let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        let Some(owner) = owners.into_iter().find(|owner| owner["controller"] == true) else { return Ok(None) };
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let group = text("apiVersion").split_once('/').map_or("", |(group, _)| group);
        let is = |kind: &WorkloadKind| (kind.api().group, kind.api().kind) == (group, text("kind"));
        match self.above().filter(is) {
            Some(kind) => Ok(Some((Workload { kind, name: text("name").to_owned() }, text("uid").to_owned()))),
            // A CronJob makes Jobs, and leaves them alone.
            None if (group, text("kind")) == ("batch", "CronJob") => Ok(None),
            None => Err(format!("it belongs to {} {:?}", text("kind"), text("name"))),
        }
    }
}

impl Workload {
    /// The highest workload that a pod can name by itself.
    pub(crate) fn of_pod(of_object: Option<&Gang>, owners: &[OwnerReference]) -> Option<Workload> {
        if let Some(Gang { source: Source::Object(kind, name), .. }) = of_object {
            let kind = WorkloadKind::of_gang(*kind)?;
            return Some(Workload { kind, name: name.clone() });
        }
        let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
        let is_job = owner.kind == "Job" && owner.api_version.starts_with("batch/");
        is_job.then(|| Workload { kind: WorkloadKind::Job, name: owner.name.clone() })
    }

    /// Its name as `kubectl get` takes it.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.kind.full_plural(), self.name)
    }

    pub(crate) fn parse(full_name: &str) -> Option<Workload> {
        let (plural, name) = full_name.split_once('/')?;
        let kind = WorkloadKind::ALL.into_iter().find(|kind| kind.full_plural() == plural)?;
        Some(Workload { kind, name: name.to_owned() })
    }
}

/// Whether a label or an annotation says that Kueue manages its object.
pub(crate) fn is_kueues(key: &str) -> bool {
    key.starts_with(KUEUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_known_by_their_names() {
        for kind in WorkloadKind::ALL {
            let workload = Workload { kind, name: "w".into() };
            assert_eq!(Workload::parse(&workload.full_name()), Some(workload));
        }
        assert_eq!(Workload::parse("pods./w"), None);
    }

    #[test]
    fn what_others_suspend_is_left_to_them() {
        let refused = |kind: WorkloadKind, object: Value| kind.check(&object).unwrap_err();
        let labelled = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}});
        assert!(refused(WorkloadKind::Job, labelled).contains("Kueue"));
        let managed = json!({"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}});
        assert!(refused(WorkloadKind::JobSet, managed).contains("multikueue"));
        let usual = json!({"spec": {"managedBy": "jobset.sigs.k8s.io/jobset-controller", "suspend": false}});
        assert_eq!(WorkloadKind::JobSet.check(&usual), Ok(()));
        assert!(refused(WorkloadKind::Job, json!({"spec": {"suspend": true}})).contains("already"));
        let torch = WorkloadKind::Training(GangKind::PyTorchJob);
        assert!(refused(torch, json!({"spec": {"runPolicy": {"suspend": true}}})).contains("already"));
        assert!(refused(WorkloadKind::RayJob, json!({"spec": {}})).contains("shutdownAfterJobFinishes"));
        let spec = json!({"shutdownAfterJobFinishes": true});
        let ray_job = |status: &str| json!({"spec": spec, "status": {"jobDeploymentStatus": status}});
        for status in ["", "Initializing", "Running"] {
            assert_eq!(WorkloadKind::RayJob.check(&ray_job(status)), Ok(()));
        }
        for status in ["Waiting", "Complete", "Failed"] {
            assert!(refused(WorkloadKind::RayJob, ray_job(status)).contains(status));
        }
    }

    #[test]
    fn the_topmost_workload_is_suspended() {
        let owned = |api_version: &str, kind: &str| {
            let owner = json!({"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": true});
            json!({"metadata": {"ownerReferences": [owner]}})
        };
        let above = |kind: WorkloadKind, object: Value| kind.workload_above(&object);
        assert_eq!(above(WorkloadKind::Job, json!({})), Ok(None));
        assert_eq!(above(WorkloadKind::Job, owned("batch/v1", "CronJob")), Ok(None));
        let train = Workload { kind: WorkloadKind::TrainJob, name: "o".into() };
        let found = above(WorkloadKind::JobSet, owned("trainer.kubeflow.org/v1alpha1", "TrainJob"));
        assert_eq!(found, Ok(Some((train, "u".into()))));
        assert!(above(WorkloadKind::JobSet, owned("other.org/v1", "TrainJob")).is_err());
        // The pod of a RayJob that submits it is not the whole of the RayJob.
        assert!(above(WorkloadKind::Job, owned("ray.io/v1", "RayJob")).is_err());
    }
}

//! The kinds of objects that say which pods start together.

use kube::api::{ApiResource, GroupVersionKind};

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GangKind {
    /// Kubernetes' own PodGroup.
    Native,
    Kai,
    Volcano,
    /// The PodGroup of the coscheduling plugin.
    Coscheduling,
    JobSet,
    LeaderWorkerSet,
    RayCluster,
    PyTorchJob,
    TfJob,
    MpiJob,
    XgBoostJob,
    PaddleJob,
    JaxJob,
}

/// Where the API server has objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) group: &'static str,
    /// The versions that can be read, the best one first.
    pub(crate) versions: &'static [&'static str],
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
}

impl Address {
    /// The resource in one of its versions.
    pub(crate) fn resource(&self, version: &str) -> ApiResource {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(self.group, version, self.kind), self.plural)
    }
}

impl GangKind {
    pub(crate) const ALL: [GangKind; 13] = [
        GangKind::Native,
        GangKind::Kai,
        GangKind::Volcano,
        GangKind::Coscheduling,
        GangKind::JobSet,
        GangKind::LeaderWorkerSet,
        GangKind::RayCluster,
        GangKind::PyTorchJob,
        GangKind::TfJob,
        GangKind::MpiJob,
        GangKind::XgBoostJob,
        GangKind::PaddleJob,
        GangKind::JaxJob,
    ];

    pub(crate) fn api(self) -> Address {
        let pod_groups = |group, versions| Address { group, versions, kind: "PodGroup", plural: "podgroups" };
        let kubeflow = |kind, plural| Address { group: "kubeflow.org", versions: &["v1"], kind, plural };
        match self {
            // 1.37 has both of the first two, and 1.36 the last one.
            GangKind::Native => pod_groups("scheduling.k8s.io", &["v1beta1", "v1alpha3", "v1alpha2"]),
            GangKind::Kai => pod_groups("scheduling.run.ai", &["v2alpha2"]),
            GangKind::Volcano => pod_groups("scheduling.volcano.sh", &["v1beta1"]),
            GangKind::Coscheduling => pod_groups("scheduling.x-k8s.io", &["v1alpha1"]),
            GangKind::JobSet => {
                let versions = &["v1", "v1alpha2"];
                Address { group: "jobset.x-k8s.io", versions, kind: "JobSet", plural: "jobsets" }
            }
            GangKind::LeaderWorkerSet => Address {
                group: "leaderworkerset.x-k8s.io",
                versions: &["v1"],
                kind: "LeaderWorkerSet",
                plural: "leaderworkersets",
            },
            GangKind::RayCluster => {
                Address { group: "ray.io", versions: &["v1"], kind: "RayCluster", plural: "rayclusters" }
            }
            GangKind::PyTorchJob => kubeflow("PyTorchJob", "pytorchjobs"),
            GangKind::TfJob => kubeflow("TFJob", "tfjobs"),
            // The MPI operator has the second version, and the training operator the first.
            GangKind::MpiJob => Address { versions: &["v2beta1", "v1"], ..kubeflow("MPIJob", "mpijobs") },
            GangKind::XgBoostJob => kubeflow("XGBoostJob", "xgboostjobs"),
            GangKind::PaddleJob => kubeflow("PaddleJob", "paddlejobs"),
            GangKind::JaxJob => kubeflow("JAXJob", "jaxjobs"),
        }
    }

    /// Whether pods belong to it because it has made them, and not because they name it.
    pub(crate) fn is_workload(self) -> bool {
        !matches!(self, GangKind::Native | GangKind::Kai | GangKind::Volcano | GangKind::Coscheduling)
    }

    pub(crate) fn is_training_job(self) -> bool {
        self.api().group == "kubeflow.org"
    }

    /// The name of an object as `kubectl get` takes it.
    pub(crate) fn full_name(self, name: &str) -> String {
        let Address { group, plural, .. } = self.api();
        format!("{plural}.{group}/{name}")
    }
}

//! The resources that the API server serves, one entry for each.

mod strict;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event as CoreEvent, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod,
    ResourceQuota, Secret,
};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use serde_json::Value;

use super::status::Failure;
use super::validation;
use strict::strictly;

/// A resource: its address, and the rules for its objects.
#[derive(Debug)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// Version of the group.
    pub version: &'static str,
    /// The plural name in paths.
    pub plural: &'static str,
    /// The kind in objects.
    pub kind: &'static str,
    /// Whether its objects lie in namespaces.
    pub namespaced: bool,
    /// Whether the status has an address of its own and is written only there.
    pub has_status: bool,
    /// Whether a write of the status also writes labels and annotations.
    pub metadata_with_status: bool,
    /// Whether a replacement must give the version of the object that it replaces.
    pub(super) needs_version: bool,
    /// Fields, besides name and namespace, by which lists can select.
    pub selectable: &'static [&'static str],
    decode: fn(&Value) -> Result<Value, String>,
    /// Checks an object; the second argument is the object that it replaces.
    pub(super) validate: fn(&Value, Option<&Value>) -> Result<(), Failure>,
    /// The same for changes of its status.
    pub(super) validate_status: fn(&Value, &Value) -> Result<(), Failure>,
}

/// Every resource that is served.
pub const RESOURCES: [&Resource; 51] = [
    &PODS,
    &NODES,
    &NAMESPACES,
    &VOLUMES,
    &VOLUME_CLAIMS,
    &STORAGE_CLASSES,
    &CSI_NODES,
    &CSI_DRIVERS,
    &CSI_STORAGE_CAPACITIES,
    &VOLUME_ATTACHMENTS,
    &PRIORITY_CLASSES,
    &CORE_EVENTS,
    &EVENTS,
    &CLAIMS,
    &CLAIM_TEMPLATES,
    &SLICES,
    &DEVICE_CLASSES,
    &DEVICE_TAINT_RULES,
    &LEASES,
    &SECRETS,
    &CONFIG_MAPS,
    &RESOURCE_QUOTAS,
    &LIMIT_RANGES,
    &TOKEN_REVIEWS,
    &MUTATING_WEBHOOKS,
    &VALIDATING_WEBHOOKS,
    &BUDGETS,
    &QUEUES,
    &SCHEDULING_POLICIES,
    &ELASTIC_GPU_CLASSES,
    &ELASTIC_GPU_CLAIMS,
    &ELASTIC_GPUS,
    &POD_GROUPS,
    &KAI_POD_GROUPS,
    &KAI_QUEUES,
    &VOLCANO_POD_GROUPS,
    &COSCHEDULING_POD_GROUPS,
    &DEPLOYMENTS,
    &STATEFUL_SETS,
    &JOBS,
    &JOB_SETS,
    &TRAIN_JOBS,
    &LEADER_WORKER_SETS,
    &RAY_CLUSTERS,
    &RAY_JOBS,
    &MPI_JOBS,
    &PYTORCH_JOBS,
    &TF_JOBS,
    &XGBOOST_JOBS,
    &PADDLE_JOBS,
    &JAX_JOBS,
];

/// `pods`.
pub const PODS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "pods",
    kind: "Pod",
    namespaced: true,
    has_status: true,
    metadata_with_status: true,
    needs_version: false,
    selectable: &["spec.nodeName", "status.phase"],
    decode: strictly::<Pod>,
    validate: validation::pod::validate,
    validate_status: |_, _| Ok(()),
};

/// `nodes`.
pub const NODES: Resource = Resource {
    group: "",
    version: "v1",
    plural: "nodes",
    kind: "Node",
    namespaced: false,
    has_status: true,
    metadata_with_status: true,
    needs_version: false,
    selectable: &[],
    decode: strictly::<Node>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

/// `namespaces`. Objects can be in a namespace for which no object exists.
pub const NAMESPACES: Resource = Resource {
    group: "",
    version: "v1",
    plural: "namespaces",
    kind: "Namespace",
    namespaced: false,
    has_status: true,
    metadata_with_status: true,
    needs_version: false,
    selectable: &[],
    decode: strictly::<Namespace>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

/// `persistentvolumes`.
pub const VOLUMES: Resource = Resource {
    group: "",
    version: "v1",
    plural: "persistentvolumes",
    kind: "PersistentVolume",
    namespaced: false,
    has_status: true,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<PersistentVolume>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

/// `persistentvolumeclaims`. Nothing binds them here.
pub const VOLUME_CLAIMS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "persistentvolumeclaims",
    kind: "PersistentVolumeClaim",
    namespaced: true,
    has_status: true,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<PersistentVolumeClaim>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

/// `storageclasses`.
pub const STORAGE_CLASSES: Resource = Resource {
    group: "storage.k8s.io",
    version: "v1",
    plural: "storageclasses",
    kind: "StorageClass",
    namespaced: false,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<StorageClass>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

/// `csinodes`.
pub const CSI_NODES: Resource =
    Resource { plural: "csinodes", kind: "CSINode", decode: strictly::<CSINode>, ..STORAGE_CLASSES };

/// `csidrivers`.
const CSI_DRIVERS: Resource =
    Resource { plural: "csidrivers", kind: "CSIDriver", decode: strictly::<CSIDriver>, ..STORAGE_CLASSES };

/// `csistoragecapacities`.
const CSI_STORAGE_CAPACITIES: Resource = Resource {
    plural: "csistoragecapacities",
    kind: "CSIStorageCapacity",
    namespaced: true,
    decode: strictly::<CSIStorageCapacity>,
    ..STORAGE_CLASSES
};

/// `volumeattachments`. Nothing attaches volumes here.
pub const VOLUME_ATTACHMENTS: Resource = Resource {
    plural: "volumeattachments",
    kind: "VolumeAttachment",
    has_status: true,
    decode: strictly::<VolumeAttachment>,
    ..STORAGE_CLASSES
};

/// `priorityclasses`.
pub const PRIORITY_CLASSES: Resource = Resource {
    group: "scheduling.k8s.io",
    plural: "priorityclasses",
    kind: "PriorityClass",
    decode: strictly::<PriorityClass>,
    ..STORAGE_CLASSES
};

/// `leases`.
pub const LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    version: "v1",
    plural: "leases",
    kind: "Lease",
    namespaced: true,
    has_status: false,
    metadata_with_status: false,
    needs_version: true,
    selectable: &[],
    decode: strictly::<Lease>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

/// `secrets`.
pub const SECRETS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "secrets",
    kind: "Secret",
    namespaced: true,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<Secret>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

/// `configmaps`.
pub const CONFIG_MAPS: Resource =
    Resource { plural: "configmaps", kind: "ConfigMap", decode: strictly::<ConfigMap>, ..SECRETS };

/// `resourcequotas`. Nothing counts or enforces them here.
pub const RESOURCE_QUOTAS: Resource = Resource {
    plural: "resourcequotas",
    kind: "ResourceQuota",
    has_status: true,
    decode: strictly::<ResourceQuota>,
    ..SECRETS
};

/// `limitranges`. Nothing applies them here.
pub const LIMIT_RANGES: Resource =
    Resource { plural: "limitranges", kind: "LimitRange", decode: strictly::<LimitRange>, ..SECRETS };

/// `tokenreviews`, which are answered and not stored.
pub const TOKEN_REVIEWS: Resource = Resource {
    group: "authentication.k8s.io",
    plural: "tokenreviews",
    kind: "TokenReview",
    namespaced: false,
    decode: strictly::<TokenReview>,
    ..SECRETS
};

/// `mutatingwebhookconfigurations`.
pub const MUTATING_WEBHOOKS: Resource = Resource {
    group: "admissionregistration.k8s.io",
    version: "v1",
    plural: "mutatingwebhookconfigurations",
    kind: "MutatingWebhookConfiguration",
    namespaced: false,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<MutatingWebhookConfiguration>,
    validate: validation::webhook::validate,
    validate_status: |_, _| Ok(()),
};

/// `validatingwebhookconfigurations`.
pub const VALIDATING_WEBHOOKS: Resource = Resource {
    group: "admissionregistration.k8s.io",
    version: "v1",
    plural: "validatingwebhookconfigurations",
    kind: "ValidatingWebhookConfiguration",
    namespaced: false,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<ValidatingWebhookConfiguration>,
    validate: validation::webhook::validate,
    validate_status: |_, _| Ok(()),
};

/// `poddisruptionbudgets`. Nothing computes their status here.
pub const BUDGETS: Resource = Resource {
    group: "policy",
    version: "v1",
    plural: "poddisruptionbudgets",
    kind: "PodDisruptionBudget",
    namespaced: true,
    has_status: true,
    metadata_with_status: false,
    needs_version: true,
    selectable: &[],
    decode: strictly::<PodDisruptionBudget>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

/// `queues`.
pub const QUEUES: Resource =
    Resource { has_status: true, ..custom("aliquot.dev", "v1alpha1", "queues", "Queue", false) };

/// `schedulingpolicies`.
pub const SCHEDULING_POLICIES: Resource =
    custom("aliquot.dev", "v1alpha1", "schedulingpolicies", "SchedulingPolicy", false);

/// Our `elasticgpuclasses`, which belong to no namespace.
pub const ELASTIC_GPU_CLASSES: Resource =
    custom("aliquot.dev", "v1alpha1", "elasticgpuclasses", "ElasticGPUClass", false);

/// Our `elasticgpuclaims`, with a status of their own.
pub const ELASTIC_GPU_CLAIMS: Resource =
    Resource { has_status: true, ..custom("aliquot.dev", "v1alpha1", "elasticgpuclaims", "ElasticGPUClaim", true) };

/// Our `elasticgpus`, which belong to no namespace.
pub const ELASTIC_GPUS: Resource =
    Resource { has_status: true, ..custom("aliquot.dev", "v1alpha1", "elasticgpus", "ElasticGPU", false) };

/// Kubernetes' own `podgroups`, as in version 1.36.
pub const POD_GROUPS: Resource =
    Resource { has_status: true, ..custom("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup", true) };

/// KAI's `podgroups`.
const KAI_POD_GROUPS: Resource = custom("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup", true);

/// KAI's `queues`, which belong to no namespace.
pub const KAI_QUEUES: Resource =
    Resource { has_status: true, ..custom("scheduling.run.ai", "v2", "queues", "Queue", false) };

/// Volcano's `podgroups`.
const VOLCANO_POD_GROUPS: Resource = custom("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", true);

/// The `podgroups` of the coscheduling plugin.
const COSCHEDULING_POD_GROUPS: Resource = custom("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", true);

/// `deployments`. Nothing makes their pods here.
pub const DEPLOYMENTS: Resource =
    Resource { group: "apps", plural: "deployments", kind: "Deployment", decode: strictly::<Deployment>, ..JOBS };

/// `statefulsets`. Nothing makes their pods here.
const STATEFUL_SETS: Resource =
    Resource { group: "apps", plural: "statefulsets", kind: "StatefulSet", decode: strictly::<StatefulSet>, ..JOBS };

/// `jobs`. Nothing makes their pods here.
pub const JOBS: Resource =
    Resource { group: "batch", plural: "jobs", kind: "Job", decode: strictly::<Job>, needs_version: false, ..BUDGETS };

/// `jobsets`.
pub const JOB_SETS: Resource = custom("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", true);

/// `trainjobs`.
pub const TRAIN_JOBS: Resource = custom("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob", true);

/// `leaderworkersets`.
const LEADER_WORKER_SETS: Resource =
    custom("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", true);

/// `rayclusters`.
const RAY_CLUSTERS: Resource = custom("ray.io", "v1", "rayclusters", "RayCluster", true);

/// `rayjobs`.
const RAY_JOBS: Resource = custom("ray.io", "v1", "rayjobs", "RayJob", true);

/// `mpijobs`.
const MPI_JOBS: Resource = custom("kubeflow.org", "v2beta1", "mpijobs", "MPIJob", true);

/// `pytorchjobs`.
const PYTORCH_JOBS: Resource = custom("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob", true);

/// `tfjobs`.
const TF_JOBS: Resource = custom("kubeflow.org", "v1", "tfjobs", "TFJob", true);

/// `xgboostjobs`.
const XGBOOST_JOBS: Resource = custom("kubeflow.org", "v1", "xgboostjobs", "XGBoostJob", true);

/// `paddlejobs`.
const PADDLE_JOBS: Resource = custom("kubeflow.org", "v1", "paddlejobs", "PaddleJob", true);

/// `jaxjobs`.
const JAX_JOBS: Resource = custom("kubeflow.org", "v1", "jaxjobs", "JAXJob", true);

/// A custom resource. Its schema is not known here.
const fn custom(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
) -> Resource {
    Resource {
        group,
        version,
        plural,
        kind,
        namespaced,
        has_status: false,
        metadata_with_status: false,
        needs_version: true,
        selectable: &[],
        decode: |object| Ok(object.clone()),
        validate: |_, _| Ok(()),
        validate_status: |_, _| Ok(()),
    }
}

/// `events` of the core group.
pub const CORE_EVENTS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "events",
    kind: "Event",
    namespaced: true,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &["involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason", "type"],
    decode: strictly::<CoreEvent>,
    validate: validation::event::validate_core,
    validate_status: |_, _| Ok(()),
};

/// `events` of the group `events.k8s.io`.
pub const EVENTS: Resource = Resource {
    group: "events.k8s.io",
    version: "v1",
    plural: "events",
    kind: "Event",
    namespaced: true,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &["reason", "regarding.kind", "regarding.name", "regarding.uid", "type"],
    decode: strictly::<Event>,
    validate: validation::event::validate,
    validate_status: |_, _| Ok(()),
};

/// `resourceclaims`.
pub const CLAIMS: Resource = Resource {
    group: "resource.k8s.io",
    version: "v1",
    plural: "resourceclaims",
    kind: "ResourceClaim",
    namespaced: true,
    has_status: true,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<ResourceClaim>,
    validate: validation::claim::validate,
    validate_status: validation::claim::validate_status,
};

/// `resourceclaimtemplates`.
pub const CLAIM_TEMPLATES: Resource = Resource {
    group: "resource.k8s.io",
    version: "v1",
    plural: "resourceclaimtemplates",
    kind: "ResourceClaimTemplate",
    namespaced: true,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<ResourceClaimTemplate>,
    validate: validation::claim::validate_template,
    validate_status: |_, _| Ok(()),
};

/// `resourceslices`.
pub const SLICES: Resource = Resource {
    group: "resource.k8s.io",
    version: "v1",
    plural: "resourceslices",
    kind: "ResourceSlice",
    namespaced: false,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &["spec.driver", "spec.nodeName"],
    decode: strictly::<ResourceSlice>,
    validate: validation::slice::validate,
    validate_status: |_, _| Ok(()),
};

/// `deviceclasses`.
pub const DEVICE_CLASSES: Resource = Resource {
    group: "resource.k8s.io",
    version: "v1",
    plural: "deviceclasses",
    kind: "DeviceClass",
    namespaced: false,
    has_status: false,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<DeviceClass>,
    validate: validation::class::validate,
    validate_status: |_, _| Ok(()),
};

/// `devicetaintrules`, in the version of Kubernetes 1.36.
pub const DEVICE_TAINT_RULES: Resource = Resource {
    group: "resource.k8s.io",
    version: "v1beta2",
    plural: "devicetaintrules",
    kind: "DeviceTaintRule",
    namespaced: false,
    has_status: true,
    metadata_with_status: false,
    needs_version: false,
    selectable: &[],
    decode: strictly::<DeviceTaintRule>,
    validate: |_, _| Ok(()),
    validate_status: |_, _| Ok(()),
};

impl Resource {
    /// The resource of this group, version and plural name.
    #[must_use]
    pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
        RESOURCES
            .into_iter()
            .find(|resource| resource.group == group && resource.version == version && resource.plural == plural)
    }

    /// The group and version as objects contain them.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `object` as a server reads it that knows the resource's schema.
    ///
    /// # Errors
    /// If a field has the wrong type, or is not in the schema.
    pub(super) fn decode(&self, object: &Value) -> Result<Value, Failure> {
        for (field, expected) in [("apiVersion", self.api_version().as_str()), ("kind", self.kind)] {
            let given = &object[field];
            if given != expected {
                return Err(Failure::bad_request(format!("{field} is {given}, but {expected} is served here")));
            }
        }
        (self.decode)(object).map_err(|error| {
            Failure::bad_request(format!("{} in version {:?} cannot be handled: {error}", self.kind, self.version))
        })
    }
}

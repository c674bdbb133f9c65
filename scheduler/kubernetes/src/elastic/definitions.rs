//! Classes, claims and the parts that are bound to them, as objects of the cluster.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;

/// The common settings of the claims of a class.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "ElasticGPUClass",
    root = "ElasticGpuClass",
    derive = "PartialEq",
    plural = "elasticgpuclasses",
    shortname = "egpuclass",
    doc = "The common settings of ElasticGPUClaims, like a StorageClass for PersistentVolumeClaims.",
    printcolumn = r#"{"name":"Core","type":"integer","jsonPath":".spec.defaultRequests.core"}"#,
    printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".spec.defaultRequests.memory"}"#,
    printcolumn = r#"{"name":"Models","type":"string","jsonPath":".spec.models"}"#,
    printcolumn = r#"{"name":"Reclaim policy","type":"string","jsonPath":".spec.reclaimPolicy"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "a class cannot be changed; create another one"}
]))]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticGpuClassDefinition {
    /// The amounts for a claim that requests none.
    pub default_requests: ElasticGpuAmounts,
    /// Accepted GPU models. The model contains one of these words, in upper or lower case, for example `H100`. If
    /// empty, all models are accepted.
    #[schemars(length(max = 32), inner(length(min = 1, max = 64)))]
    pub models: Vec<String>,
    /// The treatment of the part when its claim is deleted.
    pub reclaim_policy: ReclaimPolicy,
}

/// The treatment of a part when its claim is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// The part's object is deleted.
    #[default]
    Delete,
    /// The part's object remains until an administrator deletes it. It keeps its room, and no other claim gets it.
    Retain,
}

/// A part of one GPU. If one of the two amounts is missing, it is in proportion to the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticGpuAmounts {
    /// Percent of the GPU's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub core: Option<i32>,
    /// Memory of the GPU, for example `8Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[1-9][0-9]{0,14}([kMGT]|[KMGT]i)?$"), length(max = 17))]
    pub memory: Option<String>,
}

/// A request for a part of a GPU. A pod names the claim by the annotation `elastic-gpu-claim.aliquot.dev/CONTAINER`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "ElasticGPUClaim",
    root = "ElasticGpuClaim",
    derive = "PartialEq",
    plural = "elasticgpuclaims",
    shortname = "egpuc",
    namespaced,
    doc = "A request for a part of a GPU, like a PersistentVolumeClaim for a volume. Pods use the part one at a time.",
    status = "ElasticGpuClaimStatus",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"ElasticGPU","type":"string","jsonPath":".status.elasticGPUName"}"#,
    printcolumn = r#"{"name":"Core","type":"integer","jsonPath":".status.capacity.core"}"#,
    printcolumn = r#"{"name":"Memory","type":"integer","jsonPath":".status.capacity.memoryBytes"}"#,
    printcolumn = r#"{"name":"Class","type":"string","jsonPath":".spec.elasticGPUClassName"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Bound\")].reason"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "a claim cannot be changed; create another one"}
]))]
#[serde(rename_all = "camelCase")]
pub struct ElasticGpuClaimDefinition {
    /// The ElasticGPUClass with the models and the default amounts.
    #[serde(rename = "elasticGPUClassName")]
    #[schemars(length(min = 1, max = 253))]
    pub class: String,
    /// The amounts of the request.
    #[serde(default)]
    pub resources: ElasticGpuClaimResources,
}

/// The amounts of a claim's request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ElasticGpuClaimResources {
    /// The requested amounts. If empty, `defaultRequests` of the class.
    pub requests: ElasticGpuAmounts,
}

/// The scheduler's report about a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticGpuClaimStatus {
    /// The phase of the claim.
    pub phase: ElasticGpuClaimPhase,
    /// The ElasticGPU that is or was bound to the claim.
    #[serde(rename = "elasticGPUName")]
    pub elastic_gpu: Option<String>,
    /// The amounts that the claim's pods have.
    pub capacity: Option<ElasticGpuCapacity>,
    /// `Bound`: whether the claim is bound, and why not.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The phases of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ElasticGpuClaimPhase {
    /// The claim has no part yet, because no pod that names the claim has been bound.
    #[default]
    Pending,
    /// The claim has a part.
    Bound,
    /// The claim had a part, which no longer exists.
    Lost,
}

/// A part of a device, for a claim. The scheduler creates it for a claim, or an administrator for claims to come.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "ElasticGPU",
    root = "ElasticGpu",
    derive = "PartialEq",
    plural = "elasticgpus",
    shortname = "egpu",
    doc = "A part of a GPU for an ElasticGPUClaim, like a PersistentVolume. The scheduler creates it, or an administrator.",
    status = "ElasticGpuStatus",
    printcolumn = r#"{"name":"Core","type":"integer","jsonPath":".spec.capacity.core"}"#,
    printcolumn = r#"{"name":"Memory","type":"integer","jsonPath":".spec.capacity.memoryBytes"}"#,
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.nodeName"}"#,
    printcolumn = r#"{"name":"Device","type":"string","jsonPath":".spec.device"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.claimRef.namespace"}"#,
    printcolumn = r#"{"name":"Claim","type":"string","jsonPath":".spec.claimRef.name"}"#,
    printcolumn = r#"{"name":"Reclaim policy","type":"string","jsonPath":".spec.reclaimPolicy"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.capacity == oldSelf.capacity && self.nodeName == oldSelf.nodeName && self.device == oldSelf.device && \
              self.model == oldSelf.model && self.elasticGPUClassName == oldSelf.elasticGPUClassName && \
              self.reclaimPolicy == oldSelf.reclaimPolicy",
     "message": "a part cannot be changed; create another one"},
    {"rule": "!has(oldSelf.claimRef) || has(self.claimRef) && self.claimRef.__namespace__ == oldSelf.claimRef.__namespace__ && \
              self.claimRef.name == oldSelf.claimRef.name && \
              (oldSelf.claimRef.uid == '' || self.claimRef.uid == oldSelf.claimRef.uid)",
     "message": "a part stays bound to its claim; create another part for another claim"}
]))]
#[serde(rename_all = "camelCase")]
pub struct ElasticGpuDefinition {
    /// The size of the part.
    pub capacity: ElasticGpuCapacity,
    /// The node that has the device.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// The UUID of the device.
    #[schemars(length(min = 1, max = 253))]
    pub device: String,
    /// The device's model, as its driver names it.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub model: String,
    /// The claim that the part is bound to. If empty, the scheduler binds the part to a claim of the class that requests
    /// no more than the part. An administrator can name a claim without its UID: then only that claim gets the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<ElasticGpuClaimReference>,
    /// The ElasticGPUClass of the claim.
    #[serde(rename = "elasticGPUClassName")]
    #[schemars(length(max = 253))]
    pub class: String,
    /// The treatment of the part when its claim is deleted. The scheduler takes it from the class.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
}

/// The size of a part of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticGpuCapacity {
    /// Percent of the device's time.
    #[schemars(range(min = 0, max = 100))]
    pub core: i32,
    /// Bytes of the device's memory.
    #[schemars(range(min = 0))]
    pub memory_bytes: i64,
}

/// A reference to one claim, and not to a later claim of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticGpuClaimReference {
    /// The namespace in which the claim is.
    #[schemars(length(max = 253))]
    pub namespace: String,
    /// The claim's name in its namespace.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The claim's UID, which no later claim has. If empty, the scheduler fills it in.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub uid: String,
}

/// The scheduler's report about a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticGpuStatus {
    /// The phase of the part.
    pub phase: ElasticGpuPhase,
    /// The reason of the phase, in a sentence.
    pub message: String,
    /// Whether the room of the part on its device is reserved for it. It stays reserved until the ElasticGPU is deleted.
    pub reserved: bool,
}

/// The phases of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ElasticGpuPhase {
    /// The room of the part is not reserved yet.
    #[default]
    Pending,
    /// The room is reserved, and no claim has the part yet.
    Available,
    /// The claim has the part.
    Bound,
    /// The claim no longer exists.
    Released,
    /// The device has no room for the part, or no longer exists.
    Failed,
}

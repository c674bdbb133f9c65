//! Classes, claims and the parts that are bound to them, as objects of the cluster.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;

/// What the claims of a class have in common.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "ElasticGPUClass",
    root = "ElasticGpuClass",
    derive = "PartialEq",
    plural = "elasticgpuclasses",
    shortname = "egpuclass",
    doc = "What ElasticGPUClaims that name it have in common, as a StorageClass for PersistentVolumeClaims.",
    printcolumn = r#"{"name":"Core","type":"integer","jsonPath":".spec.defaultRequests.core"}"#,
    printcolumn = r#"{"name":"Memory","type":"string","jsonPath":".spec.defaultRequests.memory"}"#,
    printcolumn = r#"{"name":"Models","type":"string","jsonPath":".spec.models"}"#,
    printcolumn = r#"{"name":"Reclaim policy","type":"string","jsonPath":".spec.reclaimPolicy"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "a class does not change; make another one"}
]))]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticGpuClassDefinition {
    /// What a claim has that asks for no amount.
    pub default_requests: ElasticGpuAmounts,
    /// The part is of a GPU whose model contains one of these words, whatever their case, for example `H100`. None: of any.
    #[schemars(length(max = 32), inner(length(min = 1, max = 64)))]
    pub models: Vec<String>,
    /// What becomes of the part when its claim is deleted.
    pub reclaim_policy: ReclaimPolicy,
}

/// What becomes of a part when its claim is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReclaimPolicy {
    /// Its object is deleted.
    #[default]
    Delete,
    /// Its object stays and says who had what, until an administrator deletes it. It holds nothing.
    Retain,
}

/// A part of one GPU. If one of the two is not said, it is in proportion to the other.
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

/// What a pod that names the claim has. The annotation `elastic-gpu-claim.aliquot.dev/CONTAINER` of the pod names it.
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
    doc = "Asks for a part of a GPU that pods can name, one at a time, as a PersistentVolumeClaim asks for a volume.",
    status = "ElasticGpuClaimStatus",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"ElasticGPU","type":"string","jsonPath":".status.elasticGPUName"}"#,
    printcolumn = r#"{"name":"Core","type":"integer","jsonPath":".status.capacity.core"}"#,
    printcolumn = r#"{"name":"Memory","type":"integer","jsonPath":".status.capacity.memoryBytes"}"#,
    printcolumn = r#"{"name":"Class","type":"string","jsonPath":".spec.elasticGPUClassName"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Bound\")].reason"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "a claim does not change; make another one"}
]))]
#[serde(rename_all = "camelCase")]
pub struct ElasticGpuClaimDefinition {
    /// The ElasticGPUClass that gives models and defaults.
    #[serde(rename = "elasticGPUClassName")]
    #[schemars(length(min = 1, max = 253))]
    pub class: String,
    /// How much it asks for.
    #[serde(default)]
    pub resources: ElasticGpuClaimResources,
}

/// How much a claim asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ElasticGpuClaimResources {
    /// What is asked for. Nothing: what the class says.
    pub requests: ElasticGpuAmounts,
}

/// What the scheduler says of a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticGpuClaimStatus {
    /// Where the claim is in its life.
    pub phase: ElasticGpuClaimPhase,
    /// The ElasticGPU that is bound to it, or was.
    #[serde(rename = "elasticGPUName")]
    pub elastic_gpu: Option<String>,
    /// What the pods of the claim have.
    pub capacity: Option<ElasticGpuCapacity>,
    /// `Bound`: whether it is, and why not.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Where a claim is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ElasticGpuClaimPhase {
    /// It has no part yet: no pod that names it has been bound.
    #[default]
    Pending,
    /// It has a part.
    Bound,
    /// The part that it had is gone.
    Lost,
}

/// A part of a device, bound to a claim. Only the scheduler makes it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "ElasticGPU",
    root = "ElasticGpu",
    derive = "PartialEq",
    plural = "elasticgpus",
    shortname = "egpu",
    doc = "A part of a GPU that is bound to an ElasticGPUClaim, as a PersistentVolume is to its claim. The scheduler makes it.",
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
    {"rule": "self == oldSelf", "message": "a part stays what it was given as; delete its claim, and make another one"}
]))]
#[serde(rename_all = "camelCase")]
pub struct ElasticGpuDefinition {
    /// How much of the device it is.
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
    /// The claim that the part is bound to.
    pub claim_ref: ElasticGpuClaimReference,
    /// The ElasticGPUClass that the claim named.
    #[serde(rename = "elasticGPUClassName")]
    #[schemars(length(max = 253))]
    pub class: String,
    /// What becomes of it when the claim is deleted, as its class says.
    #[serde(default)]
    pub reclaim_policy: ReclaimPolicy,
}

/// A part of a device, in figures.
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

/// Names a claim: this one, and no later one of the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ElasticGpuClaimReference {
    /// The namespace in which the claim is.
    #[schemars(length(max = 253))]
    pub namespace: String,
    /// The claim's name in its namespace.
    #[schemars(length(max = 253))]
    pub name: String,
    /// The claim's UID, which no later claim has.
    #[schemars(length(max = 253))]
    pub uid: String,
}

/// What the scheduler says of a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ElasticGpuStatus {
    /// Where the part is in its life.
    pub phase: ElasticGpuPhase,
    /// Why, in a sentence.
    pub message: String,
}

/// Where a part is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ElasticGpuPhase {
    /// Nothing is said of it yet.
    #[default]
    Pending,
    /// Its claim has it.
    Bound,
    /// Its claim is gone.
    Released,
    /// Its node or its device is gone.
    Failed,
}

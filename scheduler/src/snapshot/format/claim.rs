//! Claims: their requests and their places.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Alignment, PriorityClass};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::snapshot::format::{
    AlternativesEntry, EvictedEntry, FurtherEntry, PeersEntry, PreferenceEntry, RequirementEntry, TolerationEntry,
    is_default,
};

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct ClaimEntry {
    pub(in crate::snapshot) name: String,
    /// The number of claims that this entry stands for, named NAME-0, NAME-1 and so on.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) count: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) namespace: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) queue: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) priority_class: Option<PriorityName>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) priority: Option<i32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) preemptible: Option<bool>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) immovable: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) min_runtime_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) pod_group: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) sub_group: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) disruption_budget: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) request: RequestEntry,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) placed: Option<PlacedEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) leaving: Option<LeavingEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) last_eviction: Option<LastEvictionEntry>,
    /// Whether the claim was withdrawn; it may still be leaving its place.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) withdrawn: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) evicted: Option<EvictedEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) added_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) failures: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) retry_at_ms: u64,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct RequestEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) cpu_milli: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) memory_gib: Option<u64>,
    /// The default is 1 if the claim asks for a part of a GPU, otherwise 0.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpus: Option<u16>,
    /// The part of each GPU. The default is all of it, or none if only memory is given.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_core_percent: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_core_milli: Option<u32>,
    /// The part of each GPU. The default is the same part as that of its time.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_memory_gib: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_memory_percent: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_memory_milli: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) models: Vec<String>,
    /// Attributes that each GPU must have.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) node_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) tolerations: Vec<TolerationEntry>,
    /// Lists of requirements; the node must meet all requirements of at least one list.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) node_terms: Vec<Vec<RequirementEntry>>,
    /// Preferred nodes: the node with the greatest sum of weights is tried first.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) preferred_nodes: Vec<PreferenceEntry>,
    /// Resources that the node only counts, by name.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) counted: BTreeMap<String, u64>,
    /// How its place depends on the places of other claims.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) peers: Option<PeersEntry>,
    #[serde(with = "AlignmentName", skip_serializing_if = "is_default")]
    pub(in crate::snapshot) nvlink: Alignment,
    #[serde(with = "AlignmentName", skip_serializing_if = "is_default")]
    pub(in crate::snapshot) switch: Alignment,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_memory_threshold_percent: Option<u8>,
    /// Further requests for GPUs.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) further: Option<FurtherEntry>,
    /// Requests for GPUs that it takes if its first choice is not possible.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) alternatives: Option<AlternativesEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Alignment", rename_all = "kebab-case")]
enum AlignmentName {
    Any,
    Preferred,
    Required,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct PlacedEntry {
    pub(in crate::snapshot) node: String,
    /// The indexes of the GPUs on the node.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpus: Vec<u16>,
    /// The index of the claim's alternative; 0 is the first one.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) alternative: u16,
    /// When it began to run, if it does not wait for other claims to leave. The default is the time when it was added.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) since_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) starts_after: Vec<String>,
    /// Whether more is held on the node than it has.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) over_committed: bool,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct LeavingEntry {
    pub(in crate::snapshot) node: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpus: Vec<u16>,
    /// The index of the claim's alternative there; 0 is the first one.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) alternative: u16,
}

/// An eviction that is under way or was refused.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct LastEvictionEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) ran_since_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) refusals: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) left_alone_until_ms: u64,
}

/// The name of a priority class.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(in crate::snapshot) struct PriorityName(pub(in crate::snapshot) PriorityClass);

impl Serialize for PriorityName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name())
    }
}

impl<'de> Deserialize<'de> for PriorityName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let class = PriorityClass::named(&name).map(Self);
        class.ok_or_else(|| {
            let known = PriorityClass::ALL.map(PriorityClass::name).join(", ");
            D::Error::custom(format_args!(
                "there is no priority class {name:?}; known are {known}, or say \"priority\""
            ))
        })
    }
}

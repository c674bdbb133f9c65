//! Claims: what they ask for and where they are.

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
    /// So many claims, named NAME-0, NAME-1 and so on.
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
    /// Nobody wants it any more; it is at most leaving a place.
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
    /// 1 if it is left out and something of a GPU is asked for, otherwise 0.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpus: Option<u16>,
    /// Of each GPU: all of it, if nothing is said; no time, if only memory is.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_core_percent: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_core_milli: Option<u32>,
    /// Of each GPU: the same part as of its time, if nothing is said.
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
    /// What each GPU must have.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) node_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) tolerations: Vec<TolerationEntry>,
    /// Lists of requirements; the node meets all of at least one list.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) node_terms: Vec<Vec<RequirementEntry>>,
    /// Where it would rather be: the node with the greatest sum of weights goes first.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) preferred_nodes: Vec<PreferenceEntry>,
    /// What is only counted of the node, by name.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) counted: BTreeMap<String, u64>,
    /// What its place has to do with the places of others.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) peers: Option<PeersEntry>,
    #[serde(with = "AlignmentName", skip_serializing_if = "is_default")]
    pub(in crate::snapshot) nvlink: Alignment,
    #[serde(with = "AlignmentName", skip_serializing_if = "is_default")]
    pub(in crate::snapshot) switch: Alignment,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpu_memory_threshold_percent: Option<u8>,
    /// What else it asks for of GPUs.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) further: Option<FurtherEntry>,
    /// What it takes of GPUs where it cannot have that.
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
    /// Their indexes on the node.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpus: Vec<u16>,
    /// Which of its choices it has; 0 is the first one.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) alternative: u16,
    /// Since when it runs, if it waits for nobody to leave; since it was added, if it is left out.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) since_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) starts_after: Vec<String>,
    /// More is held of the node than there is.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) over_committed: bool,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct LeavingEntry {
    pub(in crate::snapshot) node: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpus: Vec<u16>,
    /// Which of its choices it has there; 0 is the first one.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) alternative: u16,
}

/// What is known of an eviction that is under way or was refused.
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

/// A priority class by its name.
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

//! Pod groups.

use serde::{Deserialize, Serialize};

use crate::snapshot::format::{PriorityName, is_default};

/// How long a pod group may be short of members before the rest of it is evicted.
pub(in crate::snapshot) const STALENESS_GRACE_MS: Option<u64> = Some(60_000);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct PodGroupEntry {
    pub(in crate::snapshot) name: String,
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
    pub(in crate::snapshot) preemption_delay_ms: u64,
    /// `null` means without end.
    #[serde(skip_serializing_if = "is_usual_grace")]
    pub(in crate::snapshot) staleness_grace_ms: Option<u64>,
    /// The default is the number of members in the file.
    pub(in crate::snapshot) min_members: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) sub_groups: Vec<SubGroupEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) strategy: Strategy,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) required_level: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) preferred_level: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) max_gpus_per_node: Option<u16>,
    /// The number of claims in the list that arrived before the group: they go first if their priority is the same.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) after_claims: usize,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) added_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) stale_since_ms: Option<u64>,
}

impl Default for PodGroupEntry {
    fn default() -> Self {
        Self {
            name: String::new(),
            namespace: None,
            queue: String::new(),
            priority_class: None,
            priority: None,
            preemptible: None,
            min_runtime_ms: 0,
            preemption_delay_ms: 0,
            staleness_grace_ms: STALENESS_GRACE_MS,
            min_members: None,
            sub_groups: Vec::new(),
            strategy: Strategy::default(),
            required_level: None,
            preferred_level: None,
            max_gpus_per_node: None,
            after_claims: 0,
            added_ms: 0,
            stale_since_ms: None,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct SubGroupEntry {
    pub(in crate::snapshot) name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) min_members: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) required_level: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) preferred_level: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::snapshot) enum Strategy {
    #[default]
    BestFit,
    SpreadEvenly,
    SingleNode,
}

fn is_usual_grace(grace_ms: &Option<u64>) -> bool {
    *grace_ms == STALENESS_GRACE_MS
}

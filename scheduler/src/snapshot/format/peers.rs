//! How the places of claims depend on each other.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::snapshot::format::{RequirementEntry, TolerationEntry, is_default};

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct PeersEntry {
    /// Names of the groups that the claim is a member of; rules use these names.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) member_of: BTreeSet<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) affinity: Option<AffinityEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) anti_affinity: Vec<AntiAffinityEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) topology_spread: Vec<TopologySpreadEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) preferences: Vec<PeerPreferenceEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) preferred_spread: Vec<TopologySpreadEntry>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct AffinityEntry {
    pub(in crate::snapshot) group: String,
    pub(in crate::snapshot) topology_keys: BTreeSet<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct AntiAffinityEntry {
    pub(in crate::snapshot) group: String,
    pub(in crate::snapshot) topology_key: String,
}

/// The claim prefers places near members of the group, or far from them if the weight is below 0.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct PeerPreferenceEntry {
    pub(in crate::snapshot) group: String,
    pub(in crate::snapshot) topology_key: String,
    pub(in crate::snapshot) weight: i32,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct TopologySpreadEntry {
    pub(in crate::snapshot) group: String,
    pub(in crate::snapshot) topology_key: String,
    pub(in crate::snapshot) max_skew: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(in crate::snapshot) min_domains: u32,
    /// Only nodes with these labels count.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) node_labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) node_terms: Vec<Vec<RequirementEntry>>,
    /// Nodes with other taints do not count. If it is left out, taints do not matter.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) tolerations: Option<Vec<TolerationEntry>>,
}

fn one() -> u32 {
    1
}

fn is_one(number: &u32) -> bool {
    super::is_one(number)
}

//! How the place of a claim depends on the places of other claims.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Affinity, AntiAffinity, PeerGroup, PeerPreference, Peers, TopologySpread};
use serde::{Deserialize, Serialize};

use super::constraints::{NodeTermForm, TolerationForm};
use super::{forms, values};

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct PeersForm {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    member_of: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<AffinityForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    anti_affinity: Vec<AntiAffinityForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    spread: Vec<SpreadForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    preferences: Vec<PeerPreferenceForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    preferred_spread: Vec<SpreadForm>,
}

fn name(group: &PeerGroup) -> String {
    group.0.as_ref().to_owned()
}

fn group(name: &str) -> PeerGroup {
    name.into()
}

impl From<&Peers> for PeersForm {
    fn from(peers: &Peers) -> Self {
        let Peers { member_of, affinity, anti_affinity, spread, preferences, preferred_spread } = peers;
        Self {
            member_of: member_of.iter().map(name).collect(),
            affinity: affinity.as_ref().map(AffinityForm::from),
            anti_affinity: forms(anti_affinity),
            spread: forms(spread),
            preferences: forms(preferences),
            preferred_spread: forms(preferred_spread),
        }
    }
}

impl From<PeersForm> for Peers {
    fn from(form: PeersForm) -> Self {
        let PeersForm { member_of, affinity, anti_affinity, spread, preferences, preferred_spread } = form;
        Self {
            member_of: member_of.iter().map(|name| group(name)).collect(),
            affinity: affinity.map(Affinity::from),
            anti_affinity: values(anti_affinity),
            spread: values(spread),
            preferences: values(preferences),
            preferred_spread: values(preferred_spread),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct PeerPreferenceForm {
    group: String,
    topology_key: String,
    weight: i32,
}

impl From<&PeerPreference> for PeerPreferenceForm {
    fn from(PeerPreference { group, topology_key, weight }: &PeerPreference) -> Self {
        Self { group: name(group), topology_key: topology_key.clone(), weight: *weight }
    }
}

impl From<PeerPreferenceForm> for PeerPreference {
    fn from(PeerPreferenceForm { group: of, topology_key, weight }: PeerPreferenceForm) -> Self {
        Self { group: group(&of), topology_key, weight }
    }
}

#[derive(Serialize, Deserialize)]
struct AffinityForm {
    group: String,
    topology_keys: BTreeSet<String>,
}

impl From<&Affinity> for AffinityForm {
    fn from(Affinity { group, topology_keys }: &Affinity) -> Self {
        Self { group: name(group), topology_keys: topology_keys.clone() }
    }
}

impl From<AffinityForm> for Affinity {
    fn from(AffinityForm { group: of, topology_keys }: AffinityForm) -> Self {
        Self { group: group(&of), topology_keys }
    }
}

#[derive(Serialize, Deserialize)]
struct AntiAffinityForm {
    group: String,
    topology_key: String,
}

impl From<&AntiAffinity> for AntiAffinityForm {
    fn from(AntiAffinity { group, topology_key }: &AntiAffinity) -> Self {
        Self { group: name(group), topology_key: topology_key.clone() }
    }
}

impl From<AntiAffinityForm> for AntiAffinity {
    fn from(AntiAffinityForm { group: of, topology_key }: AntiAffinityForm) -> Self {
        Self { group: group(&of), topology_key }
    }
}

#[derive(Serialize, Deserialize)]
struct SpreadForm {
    group: String,
    topology_key: String,
    max_skew: u32,
    min_domains: u32,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    node_terms: Vec<NodeTermForm>,
    /// If it is missing, taints do not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tolerations: Option<Vec<TolerationForm>>,
}

impl From<&TopologySpread> for SpreadForm {
    fn from(spread: &TopologySpread) -> Self {
        let TopologySpread { group, topology_key, max_skew, min_domains, labels, node_terms, tolerations } = spread;
        Self {
            group: name(group),
            topology_key: topology_key.clone(),
            max_skew: *max_skew,
            min_domains: *min_domains,
            labels: labels.clone(),
            node_terms: forms(node_terms),
            tolerations: tolerations.as_ref().map(forms),
        }
    }
}

impl From<SpreadForm> for TopologySpread {
    fn from(form: SpreadForm) -> Self {
        let SpreadForm { group: of, topology_key, max_skew, min_domains, labels, node_terms, tolerations } = form;
        Self {
            group: group(&of),
            topology_key,
            max_skew,
            min_domains,
            labels,
            node_terms: values(node_terms),
            tolerations: tolerations.map(values),
        }
    }
}

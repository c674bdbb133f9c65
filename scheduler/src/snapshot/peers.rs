//! Converts affinity, anti-affinity and topology spread from and to their entries in a file.

use std::collections::BTreeSet;
use std::sync::Arc;

use aliquot_scheduler_core::{Affinity, AntiAffinity, PeerGroup, PeerPreference, Peers, Toleration, TopologySpread};
use anyhow::{Context, Result};

use crate::snapshot::constraints::{term_entry, to_term};
use crate::snapshot::format::{
    AffinityEntry, AntiAffinityEntry, PeerPreferenceEntry, PeersEntry, TolerationEntry, TopologySpreadEntry,
};

fn name(group: &PeerGroup) -> String {
    group.0.as_ref().to_owned()
}

impl PeersEntry {
    pub(super) fn to_peers(&self) -> Result<Arc<Peers>> {
        let spread = |entries: &[TopologySpreadEntry]| {
            let rules = entries.iter().map(TopologySpreadEntry::to_spread);
            rules.collect::<Result<BTreeSet<TopologySpread>>>()
        };
        let affinity = self.affinity.as_ref().map(|AffinityEntry { group, topology_keys }| Affinity {
            group: group.as_str().into(),
            topology_keys: topology_keys.clone(),
        });
        let anti_affinity = self.anti_affinity.iter().map(|AntiAffinityEntry { group, topology_key }| AntiAffinity {
            group: group.as_str().into(),
            topology_key: topology_key.clone(),
        });
        Ok(Arc::new(Peers {
            member_of: self.member_of.iter().map(|group| group.as_str().into()).collect(),
            affinity,
            anti_affinity: anti_affinity.collect(),
            spread: spread(&self.topology_spread).context("topology_spread")?,
            preferences: self.preferences.iter().map(PeerPreferenceEntry::to_preference).collect(),
            preferred_spread: spread(&self.preferred_spread).context("preferred_spread")?,
        }))
    }

    pub(super) fn of(peers: &Peers) -> Self {
        let Peers { member_of, affinity, anti_affinity, spread, preferences, preferred_spread } = peers;
        let affinity = affinity.as_ref().map(|Affinity { group, topology_keys }| AffinityEntry {
            group: name(group),
            topology_keys: topology_keys.clone(),
        });
        let anti_affinity = anti_affinity.iter().map(|AntiAffinity { group, topology_key }| AntiAffinityEntry {
            group: name(group),
            topology_key: topology_key.clone(),
        });
        Self {
            member_of: member_of.iter().map(name).collect(),
            affinity,
            anti_affinity: anti_affinity.collect(),
            topology_spread: spread.iter().map(TopologySpreadEntry::of).collect(),
            preferences: preferences.iter().map(PeerPreferenceEntry::of).collect(),
            preferred_spread: preferred_spread.iter().map(TopologySpreadEntry::of).collect(),
        }
    }
}

impl PeerPreferenceEntry {
    fn to_preference(&self) -> PeerPreference {
        let Self { group, topology_key, weight } = self;
        PeerPreference { group: group.as_str().into(), topology_key: topology_key.clone(), weight: *weight }
    }

    fn of(PeerPreference { group, topology_key, weight }: &PeerPreference) -> Self {
        Self { group: name(group), topology_key: topology_key.clone(), weight: *weight }
    }
}

impl TopologySpreadEntry {
    fn to_spread(&self) -> Result<TopologySpread> {
        let tolerations = self.tolerations.as_ref().map(|entries| {
            let tolerations = entries.iter().map(TolerationEntry::to_toleration);
            tolerations.collect::<Result<BTreeSet<Toleration>>>()
        });
        Ok(TopologySpread {
            group: self.group.as_str().into(),
            topology_key: self.topology_key.clone(),
            max_skew: self.max_skew,
            min_domains: self.min_domains,
            labels: self.node_labels.clone(),
            node_terms: self.node_terms.iter().map(|entries| to_term(entries)).collect(),
            tolerations: tolerations.transpose().context("tolerations")?,
        })
    }

    fn of(spread: &TopologySpread) -> Self {
        let TopologySpread { group, topology_key, max_skew, min_domains, labels, node_terms, tolerations } = spread;
        Self {
            group: name(group),
            topology_key: topology_key.clone(),
            max_skew: *max_skew,
            min_domains: *min_domains,
            node_labels: labels.clone(),
            node_terms: node_terms.iter().map(term_entry).collect(),
            tolerations: tolerations.as_ref().map(|known| known.iter().map(TolerationEntry::of).collect()),
        }
    }
}

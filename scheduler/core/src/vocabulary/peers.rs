//! Rules about the places of tasks relative to each other: affinity, anti-affinity and topology spread.
//!
//! The rules are those of Kubernetes. A rule counts the members of a [`PeerGroup`] in each domain of a topology key;
//! nodes with the same value of this label are one domain. Selectors decide which tasks are members, and the core does
//! not know selectors. Each task comes with the list of groups that it is a member of.
//!
//! A rule applies when a task is placed. A task that runs stays, whatever happens around it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::vocabulary::node_term::NodeTerm;
use crate::vocabulary::taint::{Taint, Toleration};
use crate::vocabulary::texts::Texts;

/// The tasks that rules count together. The name says which tasks these are; people read it in explanations.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerGroup(pub Arc<str>);

impl From<&str> for PeerGroup {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl Display for PeerGroup {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The groups of a task, and its rules about other tasks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Peers {
    /// The groups that it is a member of.
    pub member_of: BTreeSet<PeerGroup>,
    /// The group that it must be near.
    pub affinity: Option<Affinity>,
    /// The groups that it must not be near. Their members must not be placed near it, either.
    pub anti_affinity: BTreeSet<AntiAffinity>,
    /// How evenly members of groups must stand in domains when it is placed.
    pub spread: BTreeSet<TopologySpread>,
    /// The groups that it would rather be near, or not near. The same is wished of their members with regard to this
    /// task.
    pub preferences: BTreeSet<PeerPreference>,
    /// The groups that it would rather have spread: it prefers domains with few of their members.
    pub preferred_spread: BTreeSet<TopologySpread>,
}

impl Peers {
    /// Whether it has no group and no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it has a rule of its own that keeps it from some nodes.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.affinity.is_some() || !self.anti_affinity.is_empty() || !self.spread.is_empty()
    }

    /// The groups of its affinity and its spread rules: the places of their members decide where it may be placed.
    pub(crate) fn counted_on(&self) -> impl Iterator<Item = &PeerGroup> {
        let spread = self.spread.iter().map(|spread| &spread.group);
        self.affinity.iter().map(|affinity| &affinity.group).chain(spread)
    }
}

/// A task with this rule is placed only on a node that has, for each of these keys, a member of the group in its
/// domain.
///
/// While no domain has a member, a task that is itself a member may be placed on any node that has all the keys.
/// Otherwise no member could be the first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Affinity {
    /// The group of tasks that are counted.
    pub group: PeerGroup,
    /// Labels of nodes, each of which makes domains.
    pub topology_keys: BTreeSet<String>,
}

/// A task with this rule is placed only where the node's domain has no member of the group. A member is placed only
/// where the node's domain has no task with this rule. A node without the label is in no domain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AntiAffinity {
    /// The group of tasks that are counted.
    pub group: PeerGroup,
    /// The label of nodes that makes the domains.
    pub topology_key: String,
}

/// A task with this wish prefers nodes with members of the group in their domain, and members prefer nodes with such
/// tasks in their domain. Each such member or task adds the weight. With a weight below 0, such nodes are avoided
/// instead.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerPreference {
    /// The tasks that are counted.
    pub group: PeerGroup,
    /// The label of nodes that makes the domains.
    pub topology_key: String,
    /// For one term in Kubernetes from -100 to 100. Terms about the same group and key can be added up.
    pub weight: i32,
}

/// A task with this rule is placed only where (members in the node's domain, including the task if it is one) −
/// (members in the domain with the fewest) ≤ `max_skew`. As a preference ([`Peers::preferred_spread`]) it does not
/// exclude any node.
///
/// Only nodes that have the keys of all the task's spread rules count, and of those only the ones that `labels`,
/// `node_terms` and `tolerations` allow.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopologySpread {
    /// The group of tasks that are counted.
    pub group: PeerGroup,
    /// The label of nodes that makes the domains.
    pub topology_key: String,
    /// The most members that a domain may have above the domain with the fewest.
    pub max_skew: u32,
    /// With fewer domains than this, the least number of members is taken to be 0.
    pub min_domains: u32,
    /// Only nodes with these labels, with these values, count.
    pub labels: BTreeMap<String, String>,
    /// Only nodes that match at least one of these terms count; empty: any node.
    pub node_terms: BTreeSet<NodeTerm>,
    /// Only nodes of which these tolerate all taints count; `None`: taints do not matter.
    pub tolerations: Option<BTreeSet<Toleration>>,
}

impl TopologySpread {
    /// Whether a node with these labels and taints counts for this rule.
    pub(crate) fn counts(&self, labels: &Texts, taints: &[Taint]) -> bool {
        let tolerates = |taint: &Taint, tolerations: &BTreeSet<Toleration>| {
            tolerations.iter().any(|toleration| toleration.tolerates(taint))
        };
        self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && (self.node_terms.is_empty() || self.node_terms.iter().any(|term| term.matches(labels)))
            && self.tolerations.as_ref().is_none_or(|known| {
                let mut keep_away = taints.iter().filter(|taint| taint.keeps_away());
                keep_away.all(|taint| tolerates(taint, known))
            })
    }
}

/// Why a rule keeps a task from a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PeerMisfit<S = String> {
    /// The node does not have the label that makes the domains.
    NoDomain {
        /// The label.
        topology_key: S,
    },
    /// No member of the group that the task must be near is in the node's domain.
    Affinity {
        /// The group.
        group: S,
        /// The label that makes the domains.
        topology_key: S,
        /// The node's value of the label.
        domain: S,
    },
    /// A member of a group that the task must not be near is in the node's domain.
    AntiAffinity {
        /// The group.
        group: S,
        /// The label that makes the domains.
        topology_key: S,
        /// The node's value of the label.
        domain: S,
    },
    /// The task is a member of a group, and a task that must not be near members of that group is in the node's domain.
    AntiAffinityOfOthers {
        /// The group.
        group: S,
        /// The label that makes the domains.
        topology_key: S,
        /// The node's value of the label.
        domain: S,
    },
    /// The node's domain would have too many members more than the domain with the fewest.
    Spread {
        /// The group.
        group: S,
        /// The label that makes the domains.
        topology_key: S,
        /// The node's value of the label.
        domain: S,
        /// Members that the domain has.
        members: u32,
        /// Members of the domain with the fewest.
        least: u32,
        /// The most members that the domain may have above that, with the task counted.
        max_skew: u32,
    },
}

impl PeerMisfit<&str> {
    /// The same reason with texts of its own.
    pub(crate) fn to_owned(&self) -> PeerMisfit {
        let own = |text: &str| text.to_owned();
        match *self {
            Self::NoDomain { topology_key } => PeerMisfit::NoDomain { topology_key: own(topology_key) },
            Self::Affinity { group, topology_key, domain } => {
                PeerMisfit::Affinity { group: own(group), topology_key: own(topology_key), domain: own(domain) }
            }
            Self::AntiAffinity { group, topology_key, domain } => {
                PeerMisfit::AntiAffinity { group: own(group), topology_key: own(topology_key), domain: own(domain) }
            }
            Self::AntiAffinityOfOthers { group, topology_key, domain } => PeerMisfit::AntiAffinityOfOthers {
                group: own(group),
                topology_key: own(topology_key),
                domain: own(domain),
            },
            Self::Spread { group, topology_key, domain, members, least, max_skew } => PeerMisfit::Spread {
                group: own(group),
                topology_key: own(topology_key),
                domain: own(domain),
                members,
                least,
                max_skew,
            },
        }
    }
}

impl PeerMisfit {
    /// Whether both are about the same rule, in any domain.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        type Rule<'a> = (u8, &'a str, &'a str);
        fn rule(of: &PeerMisfit) -> Rule<'_> {
            match of {
                PeerMisfit::NoDomain { topology_key } => (0, "", topology_key),
                PeerMisfit::Affinity { group, topology_key, .. } => (1, group, topology_key),
                PeerMisfit::AntiAffinity { group, topology_key, .. } => (2, group, topology_key),
                PeerMisfit::AntiAffinityOfOthers { group, topology_key, .. } => (3, group, topology_key),
                PeerMisfit::Spread { group, topology_key, .. } => (4, group, topology_key),
            }
        }
        rule(self) == rule(other)
    }
}

/// Written as a sentence about one node, without its subject.
impl Display for PeerMisfit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDomain { topology_key } => {
                write!(f, "lacks the label {topology_key}, by which a rule tells domains")
            }
            Self::Affinity { group, topology_key, domain } => {
                write!(f, "is in {topology_key}={domain}, with none of those that the affinity asks for: {group}")
            }
            Self::AntiAffinity { group, topology_key, domain } => {
                write!(f, "is in {topology_key}={domain}, with some of those that the anti-affinity avoids: {group}")
            }
            Self::AntiAffinityOfOthers { group, topology_key, domain } => {
                write!(f, "is in {topology_key}={domain}, with a task whose anti-affinity avoids: {group}")
            }
            Self::Spread { group, topology_key, domain, members, least, max_skew } => write!(
                f,
                "is in {topology_key}={domain}, which has {members} of those to be spread; another domain has {least}, \
                 and the skew may be {max_skew}: {group}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::taint::TaintEffect;

    #[test]
    fn nodes_count_by_labels_terms_and_taints() {
        let spread = |labels: &[(&str, &str)], tolerations| TopologySpread {
            group: "g".into(),
            topology_key: "zone".into(),
            max_skew: 1,
            min_domains: 1,
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            node_terms: BTreeSet::new(),
            tolerations,
        };
        let labels = Texts::from([("gpu".to_owned(), "h100".to_owned())]);
        let taints = [Taint { key: "team".into(), ..Taint::default() }];
        assert!(spread(&[], None).counts(&labels, &taints));
        assert!(spread(&[("gpu", "h100")], None).counts(&labels, &taints));
        assert!(!spread(&[("gpu", "h200")], None).counts(&labels, &taints));
        assert!(!spread(&[], Some(BTreeSet::new())).counts(&labels, &taints));
        assert!(spread(&[], Some(BTreeSet::from([Toleration::default()]))).counts(&labels, &taints));
        let disliked = [Taint { effect: TaintEffect::PreferNoSchedule, ..taints[0].clone() }];
        assert!(spread(&[], Some(BTreeSet::new())).counts(&labels, &disliked), "it keeps no task away");
        let none = TopologySpread { node_terms: BTreeSet::from([NodeTerm::default()]), ..spread(&[], None) };
        assert!(!none.counts(&labels, &[]), "an empty term matches no node");
    }
}

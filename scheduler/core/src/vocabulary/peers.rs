//! What the place of a task has to do with the places of others: affinity, anti-affinity and topology spread.
//!
//! The rules are those of Kubernetes. A rule counts the members of a [`PeerGroup`] in each domain of a topology key:
//! nodes with the same value of this label are one domain. Which tasks are members is decided outside, by selectors
//! that the core does not know. Each task is told with the groups that it is a member of.
//!
//! A rule is about where a task may be placed. What runs already stays, whatever happens around it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::vocabulary::node_term::NodeTerm;
use crate::vocabulary::taint::{Taint, Toleration};
use crate::vocabulary::texts::Texts;

/// Tasks that rules count together, by a name that says which tasks these are: people read it in explanations.
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

/// What a task is to others, and its own rules about them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Peers {
    /// The groups that it is a member of.
    pub member_of: BTreeSet<PeerGroup>,
    /// Whom it must be near.
    pub affinity: Option<Affinity>,
    /// Whom it must not be near, and who must not be placed near it.
    pub anti_affinity: BTreeSet<AntiAffinity>,
    /// How evenly members of groups must stand in domains when it is placed.
    pub spread: BTreeSet<TopologySpread>,
    /// Whom it would rather be near, or not near, and who would rather be placed near it, or not near.
    pub preferences: BTreeSet<PeerPreference>,
    /// Groups of which it would rather be where a domain has few members.
    pub preferred_spread: BTreeSet<TopologySpread>,
}

impl Peers {
    /// Whether nothing is said: no group, and no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it has a rule of its own that keeps it from nodes.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        self.affinity.is_some() || !self.anti_affinity.is_empty() || !self.spread.is_empty()
    }

    /// The groups whose members count for its affinity and its spread: where those are decides where it may be.
    pub(crate) fn counted_on(&self) -> impl Iterator<Item = &PeerGroup> {
        let spread = self.spread.iter().map(|spread| &spread.group);
        self.affinity.iter().map(|affinity| &affinity.group).chain(spread)
    }
}

/// A task is placed only where, of each of these keys, a member of the group is in the node's domain.
///
/// While no member is in any domain, a task that is itself a member may go wherever a node has all the keys. Otherwise
/// nobody could be the first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Affinity {
    /// Who is counted.
    pub group: PeerGroup,
    /// Labels of nodes, each of which makes domains.
    pub topology_keys: BTreeSet<String>,
}

/// A task is placed only where no member of the group is in the node's domain, and no member is placed in the domain of
/// a task that has this rule. A node without the label is in no domain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AntiAffinity {
    /// Who is counted.
    pub group: PeerGroup,
    /// The label of nodes that makes the domains.
    pub topology_key: String,
}

/// A task would rather be placed where members of the group are in the node's domain, and members in the domain of a
/// task that has this wish: so much for each of them. If the weight is below 0, it would rather not.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerPreference {
    /// The tasks that are counted.
    pub group: PeerGroup,
    /// The label of nodes that makes the domains.
    pub topology_key: String,
    /// From -100 to 100 for one term in Kubernetes; terms about the same can be added up.
    pub weight: i32,
}

/// A task is placed only where the node's domain then has at most `max_skew` members more than the domain that has
/// least. As a preference it keeps a task from nowhere; [`Peers::preferred_spread`] says so.
///
/// Only nodes that have the keys of all the task's spread rules count, and of those the ones that `labels`,
/// `node_terms` and `tolerations` allow. A task is counted itself if it is a member.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TopologySpread {
    /// Who is counted.
    pub group: PeerGroup,
    /// The label of nodes that makes the domains.
    pub topology_key: String,
    /// How many members more than the domain with least.
    pub max_skew: u32,
    /// If there are fewer domains than this, the one with least is taken to have no member.
    pub min_domains: u32,
    /// Labels, with their values, of nodes that count.
    pub labels: BTreeMap<String, String>,
    /// Terms of which nodes that count match at least one; empty: any node.
    pub node_terms: BTreeSet<NodeTerm>,
    /// Nodes with other taints than these tolerate do not count; `None`: taints do not matter.
    pub tolerations: Option<BTreeSet<Toleration>>,
}

impl TopologySpread {
    /// Whether a node with these labels and taints counts, as far as this rule says.
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
    /// A task that must not be near members of a group, of which the task is one, is in the node's domain.
    AntiAffinityOfOthers {
        /// The group.
        group: S,
        /// The label that makes the domains.
        topology_key: S,
        /// The node's value of the label.
        domain: S,
    },
    /// The node's domain would have too many members more than the one with least.
    Spread {
        /// The group.
        group: S,
        /// The label that makes the domains.
        topology_key: S,
        /// The node's value of the label.
        domain: S,
        /// Members that the domain has.
        members: u32,
        /// Members of the domain with least.
        least: u32,
        /// By how many more it may have, the task counted.
        max_skew: u32,
    },
}

impl PeerMisfit<&str> {
    /// The same, with texts of its own.
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
    /// Whether the same rule is in the way, in whatever domain.
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

/// As a sentence about one node, without its subject.
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
                write!(f, "is in {topology_key}={domain}, with somebody whose anti-affinity avoids: {group}")
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
        assert!(spread(&[], Some(BTreeSet::new())).counts(&labels, &disliked), "it keeps nobody away");
        let none = TopologySpread { node_terms: BTreeSet::from([NodeTerm::default()]), ..spread(&[], None) };
        assert!(!none.counts(&labels, &[]), "an empty term matches no node");
    }
}

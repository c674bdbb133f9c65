//! The nodes that rules about peers allow for one more task: affinity, anti-affinity in both directions, and topology
//! spread.
//!
//! The result depends on the whole cluster and changes with each task that comes or goes. So it is not kept with bids.
//! It is computed for each decision, and applied to each node that otherwise fits.

use std::collections::{BTreeMap, BTreeSet};

use super::Cluster;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::peers::{Affinity, AntiAffinity, PeerGroup, PeerMisfit, Peers, TopologySpread};
use crate::vocabulary::request::Request;

/// The number of counted tasks in each domain, by the value of the topology key.
pub(crate) type Counts<'a> = BTreeMap<&'a str, u32>;

/// The rules that keep tasks with a request from nodes because of the places of other tasks.
#[derive(Clone, Debug)]
pub(crate) struct PeerRules<'a> {
    peers: &'a Peers,
    /// Its own anti-affinity: members in each domain.
    avoided: Vec<(&'a AntiAffinity, Counts<'a>)>,
    /// The anti-affinity of other tasks: for each rule, the tasks that have it in each domain.
    avoiding: Vec<(&'a AntiAffinity, Counts<'a>)>,
    near: Option<Near<'a>>,
    even: Vec<Even<'a>>,
}

/// An affinity, and the places of its group's members.
#[derive(Clone, Debug)]
struct Near<'a> {
    rule: &'a Affinity,
    /// By topology key, the members in each domain.
    members: Vec<(&'a str, Counts<'a>)>,
}

/// A spread rule, and the present spread of its group.
#[derive(Clone, Debug)]
pub(crate) struct Even<'a> {
    pub(crate) rule: &'a TopologySpread,
    /// Members in each domain that counts, including domains without members.
    pub(crate) members: Counts<'a>,
    /// The members of the domain with the fewest.
    pub(crate) least: u32,
}

impl<'a> PeerRules<'a> {
    /// The rules for one more task with a request now; `None`: no rule keeps it from any node.
    pub(crate) fn of(cluster: &'a Cluster, request: &'a Request) -> Option<Self> {
        let peers = request.peers.as_deref()?;
        let books = cluster.peers();
        let avoiding = peers.member_of.iter().flat_map(|group| books.avoiding(group)).map(|(rule, nodes)| {
            let nodes = nodes.iter().map(|(node, count)| (*node, *count));
            (rule, in_domains(cluster, &rule.topology_key, nodes))
        });
        let avoiding: Vec<_> = avoiding.filter(|(_, counts)| !counts.is_empty()).collect();
        if avoiding.is_empty() && !peers.has_rules() {
            return None;
        }
        let members = |group: &PeerGroup, key: &'a str| in_domains(cluster, key, books.members(group));
        let avoided = peers.anti_affinity.iter().map(|rule| (rule, members(&rule.group, &rule.topology_key)));
        let near = peers.affinity.as_ref().map(|rule| {
            let keys = rule.topology_keys.iter().map(String::as_str);
            Near { rule, members: keys.map(|key| (key, members(&rule.group, key))).collect() }
        });
        let even = peers.spread.iter().map(|rule| Even::of(cluster, &peers.spread, rule));
        Some(Self { peers, avoided: avoided.collect(), avoiding, near, even: even.collect() })
    }

    /// Whether one more task may be on a node.
    pub(crate) fn admit(&self, node: &KnownNode) -> bool {
        self.misfit(node).is_none()
    }

    /// Why one more task may not be on a node.
    pub(crate) fn misfit<'n>(&'n self, node: &'n KnownNode) -> Option<PeerMisfit<&'n str>> {
        self.lasting_misfit(node).or_else(|| self.near_misfit(node)).or_else(|| self.even_misfit(node))
    }

    /// Like [`PeerRules::misfit`], but only what stays in the way whatever other tasks are placed, as long as none
    /// goes.
    pub(crate) fn lasting_misfit<'n>(&'n self, node: &'n KnownNode) -> Option<PeerMisfit<&'n str>> {
        if let Some(topology_key) = self.lacking_key(node) {
            return Some(PeerMisfit::NoDomain { topology_key });
        }
        let closed = |rules: &'n [(&'a AntiAffinity, Counts<'a>)]| {
            rules.iter().find_map(|(rule, counts)| {
                let domain = node.labels.get(&rule.topology_key)?;
                let is_closed = counts.get(domain).is_some_and(|count| *count > 0);
                is_closed.then_some((&*rule.group.0, rule.topology_key.as_str(), domain))
            })
        };
        if let Some((group, topology_key, domain)) = closed(&self.avoided) {
            return Some(PeerMisfit::AntiAffinity { group, topology_key, domain });
        }
        let (group, topology_key, domain) = closed(&self.avoiding)?;
        Some(PeerMisfit::AntiAffinityOfOthers { group, topology_key, domain })
    }

    /// Whether a node is in no domain with those that the affinity asks for.
    pub(crate) fn is_far(&self, node: &KnownNode) -> bool {
        let lacks_key = |near: &Near<'_>| near.members.iter().any(|(key, _)| !node.labels.contains_key(key));
        self.near.as_ref().is_some_and(lacks_key) || self.near_misfit(node).is_some()
    }

    /// A topology key of the affinity or of a spread rule that a node does not have.
    fn lacking_key(&self, node: &KnownNode) -> Option<&'a str> {
        let keys = self.near.iter().flat_map(|near| near.members.iter().map(|(key, _)| *key));
        let mut keys = keys.chain(self.even.iter().map(|even| even.rule.topology_key.as_str()));
        keys.find(|key| !node.labels.contains_key(key))
    }

    fn near_misfit<'n>(&'n self, node: &'n KnownNode) -> Option<PeerMisfit<&'n str>> {
        let near = self.near.as_ref()?;
        let has = |counts: &Counts<'_>, domain: &str| counts.get(domain).is_some_and(|members| *members > 0);
        let lacking = near.members.iter().find_map(|(key, counts)| {
            let domain = node.labels.get(key)?;
            (!has(counts, domain)).then_some((*key, domain))
        });
        let (topology_key, domain) = lacking?;
        // The first member of a group whose members must be near each other has no other member to be near.
        let is_first = self.peers.member_of.contains(&near.rule.group) && near.has_nobody();
        let group = &*near.rule.group.0;
        (!is_first).then_some(PeerMisfit::Affinity { group, topology_key, domain })
    }

    fn even_misfit<'n>(&'n self, node: &'n KnownNode) -> Option<PeerMisfit<&'n str>> {
        self.even.iter().find_map(|even| {
            let TopologySpread { group, topology_key, max_skew, .. } = even.rule;
            let domain = node.labels.get(topology_key)?;
            let members = even.members.get(domain).copied().unwrap_or(0);
            let own = u32::from(self.peers.member_of.contains(group));
            let is_even = members.saturating_add(own) <= even.least.saturating_add(*max_skew);
            (!is_even).then_some(PeerMisfit::Spread {
                group: &*group.0,
                topology_key: topology_key.as_str(),
                domain,
                members,
                least: even.least,
                max_skew: *max_skew,
            })
        })
    }

    /// Whether a task that goes can close a node, and not only open nodes.
    pub(crate) fn depend_on_others(&self) -> bool {
        self.near.is_some() || !self.even.is_empty()
    }

    /// The affinity, if none of the tasks that it asks for is placed yet.
    pub(crate) fn unmet_affinity(&self) -> Option<&'a Affinity> {
        self.near.as_ref().filter(|near| near.has_nobody()).map(|near| near.rule)
    }

    /// Removes a placed claim from the counts, on trial.
    pub(crate) fn leave_out(&mut self, cluster: &'a Cluster, claim: ClaimId) {
        self.change(cluster, claim, |count| *count = count.saturating_sub(1));
    }

    /// Undoes [`PeerRules::leave_out`].
    pub(crate) fn put_back(&mut self, cluster: &'a Cluster, claim: ClaimId) {
        self.change(cluster, claim, |count| *count += 1);
    }

    fn change(&mut self, cluster: &'a Cluster, claim: ClaimId, change: impl Fn(&mut u32)) {
        let peers = cluster.claim(claim).and_then(|claim| claim.request.peers.as_deref());
        let node = cluster.allocation(claim).and_then(|at| cluster.node(at.node));
        let Some((peers, spec)) = peers.zip(node.map(|node| node.spec())) else { return };
        let change_in = |counts: &mut Counts<'a>, key: &str| {
            if let Some(domain) = spec.labels.get(key) {
                change(counts.entry(domain).or_default());
            }
        };
        for (rule, counts) in &mut self.avoided {
            if peers.member_of.contains(&rule.group) {
                change_in(counts, &rule.topology_key);
            }
        }
        for (rule, counts) in &mut self.avoiding {
            if peers.anti_affinity.contains(*rule) {
                change_in(counts, &rule.topology_key);
            }
        }
        if let Some(near) = self.near.as_mut().filter(|near| peers.member_of.contains(&near.rule.group)) {
            near.members.iter_mut().for_each(|(key, counts)| change_in(counts, key));
        }
        for even in &mut self.even {
            if peers.member_of.contains(&even.rule.group) && counts(&self.peers.spread, even.rule, spec) {
                change_in(&mut even.members, &even.rule.topology_key);
                even.find_least();
            }
        }
    }
}

impl Near<'_> {
    /// Whether no domain of any of the keys has a member.
    fn has_nobody(&self) -> bool {
        self.members.iter().all(|(_, counts)| counts.values().all(|members| *members == 0))
    }
}

impl<'a> Even<'a> {
    /// For `rule`, which is one of `rules`.
    pub(crate) fn of(cluster: &'a Cluster, rules: &BTreeSet<TopologySpread>, rule: &'a TopologySpread) -> Self {
        let domain = |node: &'a KnownNode| node.labels.get(&rule.topology_key);
        let counted = cluster.nodes().map(|(_, node)| node.spec()).filter(|node| counts(rules, rule, node));
        let mut members: Counts<'a> = counted.filter_map(domain).map(|domain| (domain, 0)).collect();
        for (id, count) in cluster.peers().members(&rule.group) {
            let node = cluster.node(id).map(|node| node.spec()).filter(|node| counts(rules, rule, node));
            if let Some(domain) = node.and_then(domain) {
                *members.entry(domain).or_default() += count;
            }
        }
        let mut even = Self { rule, members, least: 0 };
        even.find_least();
        even
    }

    fn find_least(&mut self) {
        let domains = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        // If no domain counts, the spread is even everywhere.
        let least = self.members.values().min().copied().unwrap_or(u32::MAX);
        self.least = if domains < self.rule.min_domains { 0 } else { least };
    }
}

/// Whether a node counts for `rule`, which is one of `rules`.
fn counts(rules: &BTreeSet<TopologySpread>, rule: &TopologySpread, node: &KnownNode) -> bool {
    rules.iter().all(|other| node.labels.contains_key(&other.topology_key)) && rule.counts(&node.labels, &node.taints)
}

/// The number of tasks in each domain of a key.
pub(crate) fn in_domains<'a>(
    cluster: &'a Cluster,
    key: &str,
    nodes: impl Iterator<Item = (NodeId, u32)>,
) -> Counts<'a> {
    let mut counts = Counts::new();
    for (id, count) in nodes {
        let domain = cluster.node(id).and_then(|node| node.spec().labels.get(key));
        if let Some(domain) = domain {
            *counts.entry(domain).or_default() += count;
        }
    }
    counts
}

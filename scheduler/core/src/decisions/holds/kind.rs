//! What a unit asks for, as far as it decides which nodes can be kept for it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::decisions::unit::Unit;
use crate::state::class::{Class, ClassId};
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::pod_group::PlacementStrategy;
use crate::vocabulary::request::Request;

/// What a unit asks for, and what its members must have in common. Many units have the same kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Kind {
    pub(super) together: Together,
    /// If the group bounds the devices that its members have on a node.
    pub(super) devices_per_node: Option<DevicesPerNode>,
    /// The members, by sub-group. Sub-groups that must be in one domain come first.
    pub(super) parts: Vec<Part>,
}

/// Classes, each with a number of members.
pub(super) type Members = Vec<(ClassId, u32)>;

/// The members of a unit that are in one sub-group that has a domain of its own, or all those that are in none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Part {
    domain: Option<Domain>,
    /// The number of members of each class, those that ask for most first.
    pub(super) wanted: Members,
}

/// One domain of a topology level, in which members must be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Domain {
    level: String,
    /// The node of a member that is placed already.
    with: Option<NodeId>,
}

impl Kind {
    pub(super) fn of(cluster: &Cluster, unit: &Unit) -> Self {
        // Classes stay in the order of the members, because a restored scheduler numbers them differently.
        let mut parts: BTreeMap<(bool, Option<&str>), Members> = BTreeMap::new();
        for claim in &unit.claims {
            let Some(class) = cluster.class_of(*claim) else { continue };
            let sub_group = sub_group_of(cluster, *claim).filter(|name| own_level(cluster, unit, name).is_some());
            let wanted = parts.entry((sub_group.is_none(), sub_group)).or_default();
            match wanted.iter_mut().find(|(other, _)| *other == class) {
                Some((_, members)) => *members += 1,
                None => wanted.push((class, 1)),
            }
        }
        let parts = parts.into_iter().map(|((_, sub_group), mut wanted)| {
            let demand = |(class, _): &(ClassId, u32)| {
                let request = cluster.class(*class).map(Class::request);
                Reverse(request.map_or((0, 0), |request| (request.total_core(), request.cpu.get())))
            };
            wanted.sort_by_key(demand);
            Part { domain: sub_group.and_then(|name| Domain::of(cluster, unit, name)), wanted }
        });
        let devices_per_node = DevicesPerNode::of(cluster, unit);
        Self { together: Together::of(cluster, unit), devices_per_node, parts: parts.collect() }
    }

    /// Whether the places of other tasks decide which nodes are nearest.
    pub(super) fn has_peers(&self, cluster: &Cluster) -> bool {
        self.requests(cluster).any(|request| request.peers.is_some())
    }

    /// The different requests of its members.
    pub(super) fn requests<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = &'a Request> {
        let classes = self.parts.iter().flat_map(|part| &part.wanted);
        classes.filter_map(|(class, _)| cluster.class(*class)).map(Class::request)
    }

    /// Whether all members ask for the same, and where others of them are does not matter.
    pub(super) fn is_one_sort(&self) -> bool {
        matches!(&self.parts[..], [Part { wanted, .. }] if wanted.len() == 1)
    }

    /// Whether members must be in one domain or on one node.
    pub(super) fn is_bound(&self) -> bool {
        self.together.level.is_some() || self.together.one_node || self.parts.iter().any(|part| part.domain.is_some())
    }
}

fn sub_group_of(cluster: &Cluster, claim: ClaimId) -> Option<&str> {
    cluster.claim(claim)?.sub_group.as_deref()
}

/// The level in one domain of which a sub-group must be.
fn own_level<'a>(cluster: &'a Cluster, unit: &Unit, sub_group: &str) -> Option<&'a String> {
    let mut sub_groups = cluster.group(unit.group)?.spec().sub_groups.iter();
    sub_groups.find(|of| of.name == sub_group)?.required_level.as_ref()
}

impl Domain {
    /// The domain in which the members of a sub-group must be; none if they may be anywhere.
    fn of(cluster: &Cluster, unit: &Unit, sub_group: &str) -> Option<Self> {
        let level = own_level(cluster, unit, sub_group)?.clone();
        let mut members = cluster.group(unit.group)?.members();
        let is_placed =
            |member| cluster.allocation(member).filter(|_| sub_group_of(cluster, member) == Some(sub_group));
        Some(Self { level, with: members.find_map(is_placed).map(|allocation| allocation.node) })
    }
}

impl Part {
    /// The sets of these nodes of which one must take all members.
    pub(super) fn areas(&self, cluster: &Cluster, among: &[NodeId]) -> Vec<Vec<NodeId>> {
        let Some(Domain { level, with }) = &self.domain else { return vec![among.to_vec()] };
        let topology = cluster.topology();
        let Some(level) = topology.level(level) else { return Vec::new() };
        let is_open = |id| with.is_none_or(|node| topology.domain_of(node, level) == Some(id));
        let mut areas: BTreeMap<_, Vec<NodeId>> = BTreeMap::new();
        for node in among {
            let domain = topology.domain_of(*node, level).filter(|id| is_open(*id));
            domain.into_iter().for_each(|domain| areas.entry(domain).or_default().push(*node));
        }
        areas.into_values().collect()
    }
}

/// A bound on the devices that members of a group have on a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct DevicesPerNode {
    most: u32,
    /// What placed members have, by node.
    taken: BTreeMap<NodeId, u32>,
}

impl DevicesPerNode {
    fn of(cluster: &Cluster, unit: &Unit) -> Option<Self> {
        let group = cluster.group(unit.group)?;
        let most = u32::from(group.spec().spread.max_devices_per_node?);
        let mut taken = BTreeMap::new();
        for at in group.members().filter_map(|member| cluster.allocation(member)) {
            *taken.entry(at.node).or_default() += u32::try_from(at.devices.len()).unwrap_or(u32::MAX);
        }
        Some(Self { most, taken })
    }

    /// How many more members with this request it allows on a node. Of alternatives, the one with the most devices
    /// counts.
    pub(super) fn members_left(&self, node: NodeId, request: &Request) -> u32 {
        let taken = self.taken.get(&node).copied().unwrap_or(0);
        let left = self.most.saturating_sub(taken);
        left.checked_div(u32::from(request.device_count_max())).unwrap_or(u32::MAX)
    }

    pub(super) fn take(&mut self, node: NodeId, request: &Request, members: u32) {
        *self.taken.entry(node).or_default() += members * u32::from(request.device_count_max());
    }
}

/// What all members of a group must have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Together {
    /// The topology level in one domain of which they must all be.
    level: Option<String>,
    one_node: bool,
    /// The node of a member that is placed already, if they must be together with it.
    with: Option<NodeId>,
}

impl Together {
    fn of(cluster: &Cluster, unit: &Unit) -> Self {
        let Some(group) = cluster.group(unit.group) else { return Self::default() };
        let spec = group.spec();
        let level = spec.spread.required_level.clone();
        let one_node = spec.spread.strategy == PlacementStrategy::SingleNode;
        let mut placed = group.members().filter_map(|member| cluster.allocation(member));
        let with = if level.is_some() || one_node { placed.next().map(|allocation| allocation.node) } else { None };
        Self { level, one_node, with }
    }

    /// The sets of nodes of which one must take all members.
    pub(super) fn areas(&self, cluster: &Cluster) -> Vec<Vec<NodeId>> {
        let areas: Vec<Vec<NodeId>> = match &self.level {
            None => vec![cluster.nodes().map(|(id, _)| id).collect()],
            Some(label) => {
                let topology = cluster.topology();
                let Some(level) = topology.level(label) else { return Vec::new() };
                let is_open = |id| self.with.is_none_or(|node| topology.domain_of(node, level) == Some(id));
                let domains = topology.domains(level, None).filter(|id| is_open(*id));
                domains.filter_map(|id| topology.domain(id)).map(|domain| domain.nodes().collect()).collect()
            }
        };
        if !self.one_node {
            return areas;
        }
        let is_open = |node: &NodeId| self.with.is_none_or(|with| with == *node);
        areas.into_iter().flatten().filter(is_open).map(|node| vec![node]).collect()
    }

    /// Whether all of these nodes are in one of those sets.
    pub(super) fn allows(&self, cluster: &Cluster, nodes: &[NodeId]) -> bool {
        let nodes = || nodes.iter().chain(&self.with).copied();
        let in_one_domain = self.level.as_ref().is_none_or(|label| {
            let topology = cluster.topology();
            let level = topology.level(label);
            level.is_some_and(|level| is_same(nodes().map(|node| topology.domain_of(node, level))))
        });
        in_one_domain && (!self.one_node || is_same(nodes().map(Some)))
    }
}

fn is_same<T: PartialEq>(mut all: impl Iterator<Item = Option<T>>) -> bool {
    let Some(Some(first)) = all.next() else { return false };
    all.all(|other| other.as_ref() == Some(&first))
}

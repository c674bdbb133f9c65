//! The nodes that are nearest to having room for a unit.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::decisions::placement::{PeerRules, admits, fitting_devices, parts, room};
use crate::decisions::unit::Unit;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::node::Node;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::pod_group::PlacementStrategy;
use crate::vocabulary::request::Request;

/// What a unit asks for: its classes, its number of members, and what the members must have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Kind {
    classes: Vec<ClassId>,
    members: usize,
    together: Together,
}

impl Kind {
    /// The kind of a unit. Many units have the same kind.
    pub(super) fn of(cluster: &Cluster, unit: &Unit) -> Self {
        let mut classes: Vec<ClassId> = unit.claims.iter().filter_map(|claim| cluster.class_of(*claim)).collect();
        classes.dedup();
        Self { classes, members: unit.claims.len(), together: Together::of(cluster, unit).unwrap_or_default() }
    }

    /// Whether the places of other tasks decide which nodes are nearest.
    pub(super) fn has_peers(&self, cluster: &Cluster) -> bool {
        let mut classes = self.classes.iter().filter_map(|class| cluster.class(*class));
        classes.any(|class| class.request().peers.is_some())
    }
}

/// What all members of a group must have in common.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Together {
    /// The topology level in one domain of which they must all be.
    level: Option<String>,
    one_node: bool,
    /// The node of a member that is placed already, if they must be together with it.
    with: Option<NodeId>,
}

impl Together {
    /// For a unit's group; `None` if members of the unit are in sub-groups that have domains of their own.
    pub(crate) fn of(cluster: &Cluster, unit: &Unit) -> Option<Self> {
        let group = cluster.group(unit.group)?;
        let spec = group.spec();
        let has_own_level = |claim: &ClaimId| {
            let name = cluster.claim(*claim).and_then(|claim| claim.sub_group.as_deref());
            let sub_group = spec.sub_groups.iter().find(|sub_group| Some(sub_group.name.as_str()) == name);
            sub_group.is_some_and(|sub_group| sub_group.required_level.is_some())
        };
        if unit.claims.iter().any(has_own_level) {
            return None;
        }
        let level = spec.spread.required_level.clone();
        let one_node = spec.spread.strategy == PlacementStrategy::SingleNode;
        let mut placed = group.members().filter_map(|member| cluster.allocation(member));
        let with = if level.is_some() || one_node { placed.next().map(|allocation| allocation.node) } else { None };
        Some(Self { level, one_node, with })
    }

    /// Whether the members must have anything in common.
    pub(crate) fn is_required(&self) -> bool {
        self.level.is_some() || self.one_node
    }

    /// The sets of nodes of which one must take all members.
    fn areas(&self, cluster: &Cluster) -> Vec<Vec<NodeId>> {
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
    fn allows(&self, cluster: &Cluster, nodes: &[NodeId]) -> bool {
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

/// The member of a unit that needs most. It stands for all members.
fn most_demanding<'a>(cluster: &'a Cluster, unit: &Unit) -> Option<&'a Request> {
    let requests = unit.claims.iter().filter_map(|claim| cluster.claim(*claim)).map(|claim| &*claim.request);
    requests.max_by_key(|request| (request.total_core(), request.cpu))
}

fn members(unit: &Unit) -> u32 {
    u32::try_from(unit.claims.len()).unwrap_or(u32::MAX)
}

/// Whether all of a unit's members would fit if no other claim were placed and no node kept.
pub(super) fn fits_when_empty(cluster: &Cluster, unit: &Unit, kind: &Kind) -> bool {
    let areas = kind.together.areas(cluster);
    areas.iter().any(|area| is_room_for(cluster, unit, area))
}

/// Whether nodes can still take a unit after all other claims there have gone.
pub(super) fn will_do(cluster: &Cluster, unit: &Unit, nodes: &[NodeId]) -> bool {
    let together = Together::of(cluster, unit).unwrap_or_default();
    let is_open = most_demanding(cluster, unit).is_some_and(|request| are_open(cluster, request, nodes));
    together.allows(cluster, nodes) && is_room_for(cluster, unit, nodes) && is_open
}

/// Whether rules about peers leave all of these nodes open to tasks with a request.
fn are_open(cluster: &Cluster, request: &Request, nodes: &[NodeId]) -> bool {
    let Some(rules) = PeerRules::of(cluster, request) else { return true };
    nodes.iter().filter_map(|node| cluster.node(*node)).all(|node| rules.lasting_misfit(node.spec()).is_none())
}

/// Whether nodes have room for all members of a unit after all other claims there have gone.
fn is_room_for(cluster: &Cluster, unit: &Unit, nodes: &[NodeId]) -> bool {
    let Some(request) = most_demanding(cluster, unit) else { return false };
    let mut wanted = members(unit);
    nodes.iter().filter_map(|node| cluster.node(*node)).any(|node| {
        wanted = wanted.saturating_sub(room_when_empty(node, request));
        wanted == 0
    })
}

/// How many tasks with a request have room on a node after all other claims there have gone.
fn room_when_empty(node: &Node, request: &Request) -> u32 {
    if admits(node.spec(), request).is_ok() { room(&node.emptied(), request) } else { 0 }
}

/// The nodes that are nearest to having room for a unit's members: enough nodes for all of them after all other claims
/// there have gone. Empty if that takes more than `most` nodes: fewer would not help the unit. Nodes of `without` are
/// left out.
pub(super) fn nearest(
    cluster: &Cluster,
    unit: &Unit,
    kind: &Kind,
    most: usize,
    without: &BTreeSet<NodeId>,
) -> Vec<NodeId> {
    let Some(request) = most_demanding(cluster, unit) else { return Vec::new() };
    let areas = kind.together.areas(cluster).into_iter();
    let areas = areas.map(|area| area.into_iter().filter(|node| !without.contains(node)).collect::<Vec<_>>());
    let choices = areas.filter_map(|area| Choice::of(cluster, request, members(unit), &area, most));
    choices.min_by_key(|choice| choice.lacks).map(|choice| choice.nodes).unwrap_or_default()
}

/// How far nodes are from having room: missing parts of devices, missing CPU, missing memory, and, for counted
/// resources, the missing part of the request in thousandths.
type Missing = [u64; 4];

/// What nodes lack, the more important part first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Lacks {
    /// What would be missing if everything had gone that may be evicted. What may not be evicted often never ends.
    lasting: Missing,
    now: Missing,
}

impl Lacks {
    fn add(&mut self, other: &Self) {
        for (sum, other) in [(&mut self.lasting, other.lasting), (&mut self.now, other.now)] {
            sum.iter_mut().zip(other).for_each(|(sum, missing)| *sum = sum.saturating_add(missing));
        }
    }
}

/// A set of nodes that might be kept.
struct Choice {
    lacks: Lacks,
    nodes: Vec<NodeId>,
}

/// One node that might be kept.
struct Candidate<'a> {
    id: NodeId,
    node: &'a Node,
    /// The node with only those claims that may not be evicted.
    lasting: Node,
    /// How many tasks have room there after all other claims there have gone.
    tasks: u32,
}

impl Candidate<'_> {
    /// How far it is from having room for this many tasks.
    fn lacks(&self, request: &Request, tasks: u32) -> Lacks {
        Lacks { lasting: missing(&self.lasting, request, tasks), now: missing(self.node, request, tasks) }
    }
}

/// A node with only those of its claims that may not be evicted.
fn lasting(cluster: &Cluster, node: &Node) -> Node {
    let mut left = node.clone();
    for id in node.claims() {
        let group = cluster.group_of(id).and_then(|group| cluster.group(group));
        let Some((claim, at)) = cluster.claim(id).zip(cluster.allocation(id)) else { continue };
        if group.is_some_and(|group| group.spec().preemptible) {
            left.give_back(id, &claim.request, at);
        }
    }
    left
}

impl Choice {
    /// The nodes of an area that are nearest to having room for this many tasks. If those are too many nodes, the
    /// largest ones.
    fn of(cluster: &Cluster, request: &Request, wanted: u32, area: &[NodeId], most: usize) -> Option<Self> {
        // Nodes that are kept for others, or that rules about peers close, are left out.
        let rules = PeerRules::of(cluster, request);
        let is_open = |id: NodeId| match (&rules, cluster.node(id)) {
            (Some(rules), Some(node)) => rules.lasting_misfit(node.spec()).is_none(),
            _ => true,
        };
        let open = area.iter().filter(|id| !cluster.is_held(**id) && is_open(**id));
        let nodes = open.filter_map(|id| Some((*id, cluster.node(*id)?)));
        let nodes = nodes.map(|(id, node)| (id, node, room_when_empty(node, request))).filter(|(.., tasks)| *tasks > 0);
        let candidate = |(id, node, tasks)| Candidate { id, node, lasting: lasting(cluster, node), tasks };
        let mut candidates: Vec<Candidate<'_>> = nodes.map(candidate).collect();
        candidates.sort_by_cached_key(|candidate| candidate.lacks(request, 1));
        Self::first(&candidates, request, wanted, most).or_else(|| {
            candidates.sort_by_key(|candidate| Reverse(candidate.tasks));
            Self::first(&candidates, request, wanted, most)
        })
    }

    /// The first of these nodes that together have room for this many tasks; `None` if that takes more than `most`
    /// nodes.
    fn first(candidates: &[Candidate<'_>], request: &Request, mut wanted: u32, most: usize) -> Option<Self> {
        let mut choice = Self { lacks: Lacks::default(), nodes: Vec::new() };
        for candidate in candidates.iter().take(most) {
            let tasks = candidate.tasks.min(wanted);
            choice.lacks.add(&candidate.lacks(request, tasks));
            choice.nodes.push(candidate.id);
            wanted -= tasks;
            if wanted == 0 {
                return Some(choice);
            }
        }
        None
    }
}

/// How far a node is from having room for this many tasks.
fn missing(node: &Node, request: &Request, tasks: u32) -> Missing {
    if request.has_alternatives() {
        let choices = request.choices().map(|choice| missing(node, &choice.request, tasks));
        return choices.min().unwrap_or_default();
    }
    let beyond = |each: u64, free: u64| each.saturating_mul(u64::from(tasks)).saturating_sub(free);
    let lacking = |request: &Request| {
        let fitting = fitting_devices(node, request).map(|(_, device, _)| u64::from(parts(device, request).min(tasks)));
        beyond(u64::from(request.devices.count), fitting.sum())
    };
    let lacking = match request.further {
        None => lacking(request),
        Some(_) => request.singles().iter().map(lacking).fold(0, u64::saturating_add),
    };
    let counted = request.counted.iter().map(|(name, each)| {
        let missing = beyond(*each, node.counted_free(name));
        u64::try_from(u128::from(missing) * 1000 / u128::from((*each).max(1))).unwrap_or(u64::MAX)
    });
    [
        lacking,
        beyond(request.cpu.get(), node.cpu_free().get()),
        beyond(request.memory.get(), node.memory_free().get()),
        counted.fold(0, u64::saturating_add),
    ]
}

//! The nodes that are nearest to having room for a unit.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::decisions::placement::{fitting_devices, parts};
use crate::decisions::unit::Unit;
use crate::state::class::Class;
use crate::state::cluster::Cluster;
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::node::Node;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::request::Request;

use super::kind::{Kind, Part};
use super::packing::{Packing, is_room_for};

/// Whether all of a unit's members would fit if no other claim were placed and no node kept.
pub(super) fn fits_when_empty(cluster: &Cluster, unit: &Unit, kind: &Kind) -> bool {
    let Some(member) = unit.claims.first() else { return false };
    kind.together.areas(cluster).iter().any(|area| is_room_for(cluster, kind, *member, area))
}

/// Whether nodes can still take a unit after all other claims there have gone.
pub(super) fn will_do(cluster: &Cluster, unit: &Unit, nodes: &[NodeId]) -> bool {
    let (kind, Some(member)) = (Kind::of(cluster, unit), unit.claims.first()) else { return false };
    let are_open = || kind.requests(cluster).all(|request| are_open(cluster, request, nodes));
    kind.together.allows(cluster, nodes) && is_room_for(cluster, &kind, *member, nodes) && are_open()
}

/// Whether rules about peers leave all of these nodes open to tasks with a request.
fn are_open(cluster: &Cluster, request: &Request, nodes: &[NodeId]) -> bool {
    let Some(rules) = PeerRules::of(cluster, request) else { return true };
    nodes.iter().filter_map(|node| cluster.node(*node)).all(|node| rules.lasting_misfit(node.spec()).is_none())
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
    let Some(member) = unit.claims.first() else { return Vec::new() };
    // Nodes that are kept for others, or that rules about peers close, are left out.
    let rules: Vec<PeerRules<'_>> =
        kind.requests(cluster).filter_map(|request| PeerRules::of(cluster, request)).collect();
    let is_closed = |node: &Node| rules.iter().any(|rules| rules.lasting_misfit(node.spec()).is_some());
    let is_open = |id: &NodeId| {
        !without.contains(id) && !cluster.is_held(*id) && cluster.node(*id).is_some_and(|node| !is_closed(node))
    };
    let choices = kind.together.areas(cluster).into_iter().filter_map(|mut area| {
        area.retain(is_open);
        let none = Choice { lacks: Lacks::default(), nodes: Vec::new(), packing: Packing::new(cluster, kind, *member) };
        kind.parts.iter().try_fold(none, |choice, part| {
            let areas = part.areas(cluster, &area).into_iter();
            areas.filter_map(|area| choice.with(cluster, part, &area, most)).min_by_key(|choice| choice.lacks)
        })
    });
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
struct Choice<'a> {
    lacks: Lacks,
    nodes: Vec<NodeId>,
    /// The members in their places, after all other claims there have gone.
    packing: Packing<'a>,
}

/// One node that might be kept.
struct Candidate<'a> {
    id: NodeId,
    node: &'a Node,
    /// The node with only those claims that may not be evicted.
    lasting: Node,
    /// How many members have room there after all other claims there have gone.
    members: u32,
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

impl Choice<'_> {
    /// The choice with those nodes of an area in addition that are nearest to having room for the members of a part. If
    /// those are too many nodes, the largest ones.
    fn with(&self, cluster: &Cluster, part: &Part, area: &[NodeId], most: usize) -> Option<Self> {
        let demanding = part.wanted.first().and_then(|(class, _)| cluster.class(*class)).map(Class::request)?;
        let candidates = area.iter().filter_map(|id| {
            let filled = self.packing.clone().fill(*id, &mut part.wanted.clone());
            let members = filled.into_iter().map(|(_, members)| members).sum();
            let node = cluster.node(*id).filter(|_| members > 0)?;
            Some(Candidate { id: *id, node, lasting: lasting(cluster, node), members })
        });
        let mut candidates: Vec<Candidate<'_>> = candidates.collect();
        candidates.sort_by_cached_key(|candidate| candidate.lacks(demanding, 1));
        self.with_first(cluster, &candidates, part, most).or_else(|| {
            candidates.sort_by_key(|candidate| Reverse(candidate.members));
            self.with_first(cluster, &candidates, part, most)
        })
    }

    /// The choice with the first of these nodes that together have room for a part; `None` if that takes more than
    /// `most` nodes in all.
    fn with_first(&self, cluster: &Cluster, candidates: &[Candidate<'_>], part: &Part, most: usize) -> Option<Self> {
        let Self { mut lacks, mut nodes, mut packing } =
            Self { lacks: self.lacks, nodes: self.nodes.clone(), packing: self.packing.clone() };
        let mut wanted = part.wanted.clone();
        for candidate in candidates {
            let is_new = !packing.uses(candidate.id);
            if is_new && nodes.len() >= most {
                continue;
            }
            let filled = packing.fill(candidate.id, &mut wanted);
            nodes.extend((is_new && !filled.is_empty()).then_some(candidate.id));
            for (class, members) in filled {
                let request = cluster.class(class).map(Class::request)?;
                lacks.add(&candidate.lacks(request, members));
            }
            if wanted.is_empty() {
                return Some(Self { lacks, nodes, packing });
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

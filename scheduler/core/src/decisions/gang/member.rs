//! Finds a place for one member of a unit, and the order in which members are placed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::placement::{Engine, PeerWishes, Policy, fits, surcharge};
use crate::state::class::{Class, ClassId};
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::{self, Exceeded};
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::node::Node;
use crate::state::statement::Statement;
use crate::vocabulary::claim::{Allocation, ClaimId, NodeId};
use crate::vocabulary::peers::PeerGroup;
use crate::vocabulary::queue_spec::QueueId;

/// Makes room for tasks that do not fit anywhere in the present state.
pub(crate) trait MakeRoom {
    /// Whether claims may be evicted or moved. If not, a unit is not tried where it does not wholly fit.
    fn may_evict(&self) -> bool;

    /// A place for a claim that fits nowhere, possibly after evictions, which are part of the statement. If `among` is
    /// given, only on one of these nodes.
    fn make_room(
        &mut self,
        statement: &mut Statement<'_>,
        engine: &mut Engine<Box<dyn Policy>>,
        claim: ClaimId,
        among: Option<&[NodeId]>,
    ) -> Option<Allocation>;
}

/// Uses only free room.
pub(crate) struct FreeRoom;

impl MakeRoom for FreeRoom {
    fn may_evict(&self) -> bool {
        false
    }

    fn make_room(
        &mut self,
        _: &mut Statement<'_>,
        _: &mut Engine<Box<dyn Policy>>,
        _: ClaimId,
        _: Option<&[NodeId]>,
    ) -> Option<Allocation> {
        None
    }
}

/// Why a unit cannot be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unplaceable {
    /// Its queue, or one above it, would hold more than it may.
    Limit(Exceeded),
    /// This member fits nowhere, after `placed` of the unit's members have found a place.
    NoRoom { claim: ClaimId, placed: usize },
    /// No domain of a topology level, or no node, has room for all members that must be in one; `claim` is one of them.
    Topology { claim: ClaimId },
    /// There are more ways to put its sub-groups into domains than are tried in one cycle.
    TooManyWays,
}

/// What a claim may not be given because its queue may not hold more of it.
#[derive(Default)]
pub(super) struct Spent {
    /// Models, as their resource numbers.
    pub(super) models: Vec<usize>,
    /// Choices of the claim.
    pub(super) choices: BTreeSet<u16>,
}

impl Spent {
    pub(super) fn is_nothing(&self) -> bool {
        self.models.is_empty() && self.choices.is_empty()
    }
}

/// A place for a claim within its queue's bounds. It avoids models of which the queue may hold no more, models of which
/// the requested part is more memory than the queue may hold, and choices that are more than the queue may hold.
/// `place` finds a place without what is spent.
pub(super) fn place_within_bounds(
    cluster: &Cluster,
    queue: QueueId,
    claim: ClaimId,
    preemptible: bool,
    mut place: impl FnMut(&Spent) -> Option<Allocation>,
) -> Result<Option<Allocation>, Unplaceable> {
    let mut spent = Spent::default();
    let mut best = place(&spent);
    while let Some(allocation) = best {
        let charge = cluster.charge_at(claim, &allocation).unwrap_or_default();
        let Err(exceeded) = limits::check(cluster, queue, &charge, preemptible, false) else {
            return Ok(Some(allocation));
        };
        // Another model can help only if the bound is on this model, or on memory and a part of a device's memory was
        // requested.
        let bounded = charge.models().find(|model| *model == exceeded.resource);
        let model = bounded.or_else(|| largest_model(cluster, &allocation));
        match model.filter(|_| charge.depends_on_model(exceeded.resource)) {
            Some(model) => spent.models.push(model),
            None if !spend_choice(cluster, claim, &allocation, &mut spent) => {
                return Err(Unplaceable::Limit(exceeded));
            }
            None => {}
        }
        best = place(&spent);
        // Another choice may ask for less of these models.
        if best.is_none() && !spent.models.is_empty() && spend_choice(cluster, claim, &allocation, &mut spent) {
            best = place(&spent);
        }
        if best.is_none() {
            return Err(Unplaceable::Limit(exceeded));
        }
    }
    Ok(None)
}

/// Notes that a claim may not have an allocation's choice. Returns whether the claim has another choice left.
fn spend_choice(cluster: &Cluster, claim: ClaimId, allocation: &Allocation, spent: &mut Spent) -> bool {
    let choices = cluster.claim(claim).map_or(1, |claim| claim.request.choice_count());
    spent.choices.insert(allocation.alternative);
    spent.models.clear();
    spent.choices.len() < usize::from(choices)
}

/// The resource number of the model of which an allocation takes the most memory of one device.
fn largest_model(cluster: &Cluster, allocation: &Allocation) -> Option<usize> {
    let largest = allocation.devices.iter().max_by_key(|part| part.memory)?;
    cluster.node(allocation.node)?.model_resource(largest.device)
}

/// A place for a task of a class without what is spent, on nodes that are `open` to it.
pub(super) fn place_besides(
    cluster: &Cluster,
    engine: &mut Engine<Box<dyn Policy>>,
    class: ClassId,
    spent: &Spent,
    open: impl Fn(NodeId) -> bool,
) -> Option<Allocation> {
    let request = cluster.class(class)?.request();
    let Spent { models, choices } = spent;
    let besides = cluster.resources().besides(request, models, choices);
    if besides.is_empty() {
        return None;
    }
    let is_mixed = |node: &Node| !choices.is_empty() || node.has_model_of(models);
    let nodes = cluster.nodes().filter(|(id, _)| open(*id));
    let (mixed, others): (Vec<_>, Vec<_>) = nodes.partition(|(_, node)| is_mixed(node));
    let best = engine.place_among(cluster, class, others.into_iter().map(|(id, _)| id));
    let best = best.and_then(|at| Some((engine.cost_on(cluster, class, at.node)?, at)));
    // The kept bids are for all devices of a node and all choices together, so they cannot be used here.
    let (rules, wishes) = (PeerRules::of(cluster, request), PeerWishes::of(cluster, request));
    let distance = |node: &Node| wishes.as_ref().map_or(0, |wishes| wishes.distance(node.spec()));
    let is_open = |node: &Node| rules.as_ref().is_none_or(|rules| rules.admit(node.spec()));
    let mixed = mixed.into_iter().filter(|(id, _)| !cluster.is_held(*id));
    let mixed = mixed.filter(|(_, node)| is_open(node)).filter_map(|(id, node)| {
        let choice = besides.iter().find(|choice| fits(node, &choice.request).is_ok())?;
        let (cost, at) = engine.choose(id, node, choice)?;
        Some((cost + surcharge(distance(node)), at))
    });
    best.into_iter().chain(mixed).min_by_key(|(cost, at)| (*cost, at.node)).map(|(_, at)| at)
}

/// The members in the order in which they are placed: first those with the fewest nodes to choose from, then those that
/// need most.
pub(crate) fn demanding_first(
    cluster: &Cluster,
    engine: &mut Engine<Box<dyn Policy>>,
    claims: &[ClaimId],
) -> Vec<ClaimId> {
    let mut claims = claims.to_vec();
    if claims.len() < 2 {
        return claims;
    }
    let mut choices: BTreeMap<ClassId, usize> = BTreeMap::new();
    for class in claims.iter().filter_map(|claim| cluster.class_of(*claim)) {
        choices.entry(class).or_default();
    }
    let asks_to_be_near = |class: &ClassId| {
        let peers = cluster.class(*class).and_then(|class| class.request().peers.as_ref());
        peers.is_some_and(|peers| peers.affinity.is_some())
    };
    let near: Vec<ClassId> = choices.keys().copied().filter(asks_to_be_near).collect();
    if choices.len() > 1 {
        choices.iter_mut().for_each(|(class, nodes)| *nodes = engine.choices(cluster, *class));
    }
    let choices = |claim: &ClaimId| cluster.class_of(*claim).and_then(|class| choices.get(&class).copied());
    let demand = |claim: &ClaimId| {
        let class = cluster.class_of(*claim).and_then(|class| cluster.class(class));
        class.map(Class::request).map(|request| (request.total_core(), request.cpu, request.memory))
    };
    claims.sort_by_key(|claim| (choices(claim), Reverse(demand(claim))));
    if near.is_empty() { claims } else { behind_their_peers(cluster, claims, &near) }
}

/// The same members, but a member whose affinity asks for others that are not placed yet comes after those. `near` are
/// the classes with an affinity.
fn behind_their_peers(cluster: &Cluster, claims: Vec<ClaimId>, near: &[ClassId]) -> Vec<ClaimId> {
    let peers = |claim: &ClaimId| cluster.claim(*claim).and_then(|claim| claim.request.peers.as_deref());
    let unmet = near.iter().filter_map(|class| {
        let request = cluster.class(*class)?.request();
        let group = &PeerRules::of(cluster, request)?.unmet_affinity()?.group;
        let is_member = request.peers.as_ref().is_some_and(|peers| peers.member_of.contains(group));
        (!is_member).then_some((*class, group))
    });
    let unmet: BTreeMap<ClassId, &PeerGroup> = unmet.collect();
    let asks_for = |claim: &ClaimId| cluster.class_of(*claim).and_then(|class| unmet.get(&class).copied());
    let (mut ordered, mut left): (Vec<_>, Vec<_>) = claims.into_iter().partition(|claim| asks_for(claim).is_none());
    loop {
        let groups = ordered.iter().filter_map(peers).flat_map(|peers| &peers.member_of);
        let groups: BTreeSet<&PeerGroup> = groups.collect();
        let (next, later): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|claim| asks_for(claim).is_some_and(|group| groups.contains(group)));
        if next.is_empty() {
            ordered.extend(later);
            return ordered;
        }
        ordered.extend(next);
        left = later;
    }
}

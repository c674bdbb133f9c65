//! Units of groups without placement rules. Rules about peers may still keep their members near each other.

use std::collections::BTreeMap;

use super::choices::{has_choices, place_by_choices};
use super::member::{MakeRoom, Unplaceable, demanding_first, place_besides, place_within_bounds};
use crate::decisions::placement::{Engine, Policy, Roomy};
use crate::decisions::unit::Unit;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::state::cluster::peer_rules::PeerRules;
use crate::state::statement::Statement;
use crate::vocabulary::claim::{ClaimId, NodeId};
use crate::vocabulary::peers::{Affinity, PeerGroup};

/// The most domains that are tried for members that must be near each other.
const DOMAINS_MAX: usize = 16;

/// The domain where members of a group are to be: the nodes with this value of a label.
struct Within {
    group: PeerGroup,
    label: String,
    value: String,
}

impl Within {
    fn holds(&self, cluster: &Cluster, node: NodeId) -> bool {
        cluster.node(node).is_some_and(|node| node.spec().labels.get(&self.label) == Some(&self.value))
    }
}

/// Places a unit's members. If it fails, the members placed before the failure are still placed.
///
/// The first of the members that must be near each other goes where it fits best, and the others may find no room near
/// it. Then one domain after another is tried for all of them.
pub(super) fn place_near(
    statement: &mut Statement<'_>,
    engine: &mut Engine<Box<dyn Policy>>,
    unit: &Unit,
    preemptible: bool,
    room: &mut dyn MakeRoom,
) -> Result<(), Unplaceable> {
    let start = statement.savepoint();
    let placed = place_each(statement, engine, unit, preemptible, room, None);
    if placed.is_err() && !room.may_evict() && has_choices(statement.cluster(), unit) {
        statement.rollback(start);
        if place_by_choices(statement, engine, unit, preemptible) {
            return Ok(());
        }
    }
    if unit.claims.len() < 2 || !matches!(placed, Err(Unplaceable::NoRoom { .. })) {
        return placed;
    }
    let members: Vec<ClaimId> =
        unit.claims.iter().copied().filter(|claim| has_affinity(statement.cluster(), *claim)).collect();
    if members.is_empty() {
        return placed;
    }
    statement.rollback(start);
    for within in domains(statement.cluster(), engine, unit, &members, room.may_evict()) {
        if place_each(statement, engine, unit, preemptible, room, Some(&within)).is_ok() {
            return Ok(());
        }
        statement.rollback(start);
    }
    // The failure of the first try is the one to report.
    placed
}

fn has_affinity(cluster: &Cluster, claim: ClaimId) -> bool {
    let peers = cluster.claim(claim).and_then(|claim| claim.request.peers.as_deref());
    peers.is_some_and(|peers| peers.affinity.is_some())
}

/// The domains in which to try a unit with these members that have an affinity; empty if it is not to each other.
fn domains(
    cluster: &Cluster,
    engine: &mut Engine<Box<dyn Policy>>,
    unit: &Unit,
    members: &[ClaimId],
    may_evict: bool,
) -> Vec<Within> {
    let peers = |claim: &ClaimId| cluster.claim(*claim).and_then(|claim| claim.request.peers.as_deref());
    let is_member = |claim: &ClaimId, group: &PeerGroup| peers(claim).is_some_and(|of| of.member_of.contains(group));
    let unmet = |claim: &ClaimId| -> Option<&Affinity> {
        let rule = PeerRules::of(cluster, &cluster.claim(*claim)?.request)?.unmet_affinity()?;
        unit.claims.iter().any(|other| is_member(other, &rule.group)).then_some(rule)
    };
    let Some(rule) = members.iter().find_map(unmet) else { return Vec::new() };
    let mut wanted: BTreeMap<ClassId, u32> = BTreeMap::new();
    let together = unit.claims.iter().filter(|claim| {
        is_member(claim, &rule.group) || peers(claim).is_some_and(|peers| peers.affinity.as_ref() == Some(rule))
    });
    together.filter_map(|claim| cluster.class_of(*claim)).for_each(|class| *wanted.entry(class).or_default() += 1);
    let wanted: Vec<(ClassId, u32)> = wanted.into_iter().collect();
    // The members must share a domain of each key, so it is enough to try the key with the smallest domains.
    let by_label = rule.topology_keys.iter().map(|label| (label, engine.values_for(cluster, label, &wanted)));
    let Some((label, values)) = by_label.max_by_key(|(_, values)| values.len()) else { return Vec::new() };
    let open = values.into_iter().filter(|value: &Roomy<&str>| may_evict || value.holds_all);
    let within = |value: &str| Within { group: rule.group.clone(), label: label.clone(), value: value.to_owned() };
    open.take(DOMAINS_MAX).map(|value| within(value.place)).collect()
}

fn place_each(
    statement: &mut Statement<'_>,
    engine: &mut Engine<Box<dyn Policy>>,
    unit: &Unit,
    preemptible: bool,
    room: &mut dyn MakeRoom,
    within: Option<&Within>,
) -> Result<(), Unplaceable> {
    for (placed, claim) in demanding_first(statement.cluster(), engine, &unit.claims).into_iter().enumerate() {
        let cluster = statement.cluster();
        let Some(class) = cluster.class_of(claim) else { return Err(Unplaceable::NoRoom { claim, placed }) };
        let is_member = |within: &&Within| {
            let peers = cluster.claim(claim).and_then(|claim| claim.request.peers.as_deref());
            peers.is_some_and(|peers| peers.member_of.contains(&within.group))
        };
        let open: Option<Vec<NodeId>> = within
            .filter(is_member)
            .map(|within| cluster.nodes().map(|(id, _)| id).filter(|node| within.holds(cluster, *node)).collect());
        let free = place_within_bounds(cluster, unit.queue, claim, preemptible, |spent| match &open {
            None if spent.is_nothing() => engine.place(cluster, class),
            Some(open) if spent.is_nothing() => engine.place_among(cluster, class, open.iter().copied()),
            None => place_besides(cluster, engine, class, spent, |_| true),
            Some(open) => place_besides(cluster, engine, class, spent, |node| open.contains(&node)),
        });
        let allocation = match free {
            Ok(Some(allocation)) => Some(allocation),
            // All free devices may be of a model of which the queue may hold no more. Evictions can make room
            // elsewhere.
            none => {
                let made = room.make_room(statement, engine, claim, open.as_deref());
                made.map_or_else(|| none, |found| Ok(Some(found)))?
            }
        };
        let taken = allocation.is_some_and(|allocation| statement.place(claim, allocation).is_ok());
        if !taken {
            return Err(Unplaceable::NoRoom { claim, placed });
        }
    }
    Ok(())
}

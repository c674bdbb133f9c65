//! Everything that is in the way of the unit that a group wants placed next.

use crate::decisions::gang::Unplaceable;
use crate::decisions::plan::Refusal;
use crate::decisions::shares::Shares;
use crate::decisions::unit::Unit;
use crate::explain::pending::{self, level, over_bound, refused, retried};
use crate::explain::reason::{Reason, Tier};
use crate::explain::trial::Trial;
use crate::explain::{fairness, room};
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::{self, Exceeded};
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::request::Request;

/// The obstacles that were found.
pub(crate) struct Obstacles {
    /// The reasons, the most basic first.
    pub(crate) reasons: Vec<Reason>,
    /// The result of the first try to place the unit.
    pub(crate) first: Option<Unplaceable>,
    /// The member that finds no place, if there is one.
    pub(crate) blocked: Option<ClaimId>,
}

/// Finds what is in the way of a unit for which no claim makes way. `refusal`: why none does.
pub(crate) fn find(trial: &mut Trial, shares: &Shares, unit: &Unit, refusal: Option<Refusal>) -> Obstacles {
    let cluster = trial.cluster();
    let mut reasons = Vec::new();
    let (_, retry_at_ms) = pending::failures(cluster, unit.claims.iter().copied());
    if retry_at_ms > cluster.now_ms() {
        reasons.push(retried(cluster, unit.group, retry_at_ms));
    }
    let preemptible = unit.is_preemptible(cluster);
    let bounds: Vec<Exceeded> =
        limits::exceeded(cluster, unit.queue, &unit.least_charge(cluster), preemptible, false).collect();
    reasons.extend(bounds.iter().map(|exceeded| over_bound(cluster, exceeded)));
    let first = trial.place(unit).err();
    if let Some(Unplaceable::Limit(exceeded)) = first
        && bounds.is_empty()
    {
        reasons.push(over_bound(trial.cluster(), &exceeded));
    }
    // A bound may hide that there is also no room.
    let room = match first {
        Some(Unplaceable::Limit(_)) => trial.unbounded(|trial| trial.place(unit).err()).flatten(),
        other => other,
    };
    let blocked = room.and_then(|room| blocked(trial, unit, room, &mut reasons));
    let is_matter_of_room = reasons.iter().any(|reason| matches!(reason.tier(), Tier::Device | Tier::Topology));
    if let Some(refusal) = refusal.filter(|_| is_matter_of_room) {
        let cluster = trial.cluster();
        reasons.extend(match refusal {
            Refusal::NothingToTake | Refusal::Unsettled => fairness::nothing_to_reclaim(cluster, shares, unit),
            Refusal::Limit(_) => None,
            _ => refused(cluster, unit, &refusal),
        });
        if matches!(refusal, Refusal::NothingToTake | Refusal::Unsettled | Refusal::AboveFairShare { .. }) {
            reasons.extend(fairness::nothing_to_preempt(cluster, shares, unit));
        }
    }
    reasons.sort_by_key(Reason::tier);
    Obstacles { reasons, first, blocked }
}

/// The member of a unit that finds no place. Adds the reasons for that.
fn blocked(trial: &mut Trial, unit: &Unit, room: Unplaceable, reasons: &mut Vec<Reason>) -> Option<ClaimId> {
    let (claim, placed) = match room {
        Unplaceable::NoRoom { claim, placed } => (claim, placed),
        Unplaceable::Topology { claim } => (claim, 0),
        Unplaceable::Limit(_) => return None,
        Unplaceable::TooManyWays => {
            reasons.push(Reason::TooManyWays);
            return None;
        }
    };
    let cluster = trial.cluster();
    let request = cluster.claim(claim)?.request.clone();
    let alike = pending::alike(cluster, unit, claim);
    if let Some(topology) = topology(cluster, unit, claim, &request, alike, room) {
        reasons.push(topology);
    }
    // What the nodes lack shows only with those members in place that find room.
    let before: Vec<ClaimId> = trial.in_order(unit).into_iter().take(placed).collect();
    let wanted = count(unit.claims.len());
    // The members behind it may find room, although it does not.
    let fitting = trial.unbounded(|trial| trial.find_room(unit)).unwrap_or(placed).max(placed);
    let explain = |cluster: &Cluster| room::no_room(cluster, &request, wanted, count(fitting), alike);
    let with_others = match before.is_empty() {
        true => None,
        false => {
            let part = Unit { claims: before, ..unit.clone() };
            trial.unbounded(|trial| trial.placed(&part, explain)).flatten()
        }
    };
    let no_room = with_others.unwrap_or_else(|| explain(trial.cluster()));
    let only_topology = matches!(room, Unplaceable::Topology { .. }) && matches!(no_room, Reason::NoRoom { .. });
    // If a node has room, only the topology is in the way: the node is not where the other members are.
    if !only_topology {
        reasons.push(no_room);
    }
    Some(claim)
}

/// Whether a rule of the group about the places of its members is in the way.
fn topology(
    cluster: &Cluster,
    unit: &Unit,
    claim: ClaimId,
    request: &Request,
    alike: u32,
    room: Unplaceable,
) -> Option<Reason> {
    let level = level(cluster, unit.group, claim)?;
    let best = room::best_domain(cluster, level, request);
    let too_small = best.as_ref().is_none_or(|(_, fitting)| *fitting < alike);
    let is_topology = too_small || matches!(room, Unplaceable::Topology { .. });
    is_topology.then(|| pending::topology(cluster, level, alike, best))
}

fn count(members: usize) -> u32 {
    u32::try_from(members).unwrap_or(u32::MAX)
}

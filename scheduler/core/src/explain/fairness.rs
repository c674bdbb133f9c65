//! Why no claim is evicted for a unit that finds no room.

use std::collections::BTreeMap;

use crate::decisions::actions::MinRuntime;
use crate::decisions::entitled::{Entitled, PlacedUnit};
use crate::decisions::queue_share::share;
use crate::decisions::shares::{Right, Shares};
use crate::decisions::unit::Unit;
use crate::explain::reason::{Holder, Reason};
use crate::state::cluster::Cluster;
use crate::state::resources::Charge;
use crate::vocabulary::claim::Action;
use crate::vocabulary::protection::Protection;
use crate::vocabulary::queue_spec::QueueId;

/// The queues that hold more than their fair share of what a unit asks for, and why they keep it. `None` if the unit
/// would put its own queue above its own share.
pub(crate) fn nothing_to_reclaim(cluster: &Cluster, shares: &Shares, unit: &Unit) -> Option<Reason> {
    let charge = unit.least_charge(cluster);
    let own = share(cluster, shares, unit.queue, Some(&charge), charge.parts().map(|(resource, _)| resource))?;
    if shares.exceeded(cluster, unit.queue, &charge).is_some() {
        return None;
    }
    let others = cluster.queues().parents_first().into_iter().filter(|id| *id != unit.queue);
    let leaves = others.filter(|id| cluster.queue(*id).is_some_and(|queue| queue.children().is_empty()));
    let mut holders: Vec<Holder> = leaves.filter_map(|queue| holder(cluster, shares, queue, &charge)).collect();
    let above = |holder: &Holder| u128::from(holder.held) * 1000 / u128::from(holder.fair_share.max(1));
    holders.sort_by_key(|holder| std::cmp::Reverse(above(holder)));
    (!holders.is_empty()).then_some(Reason::NothingToReclaim { own, holders })
}

/// A leaf queue that holds more than its fair share of a requested resource, and what protects its claims.
fn holder(cluster: &Cluster, shares: &Shares, queue: QueueId, asked: &Charge) -> Option<Holder> {
    let state = cluster.queue(queue)?;
    let above = |number: usize| state.allocated().get(number) > shares.fair_share(queue, number);
    if !asked.parts().any(|(number, _)| above(number)) {
        return None;
    }
    let held = share(cluster, shares, queue, None, asked.parts().map(|(resource, _)| resource))?;
    let is_above = |placed: &PlacedUnit| !placed.is(Right::FairShare);
    let (protected, evictable) = what_stays(cluster, shares, queue, Action::Reclaim, is_above);
    Some(Holder {
        queue: held.queue,
        resource: held.resource,
        held: held.held,
        fair_share: held.fair_share,
        protected,
        evictable,
    })
}

/// What protects units of a lower priority in a unit's own queue. `None` if nothing protects any of them.
pub(crate) fn nothing_to_preempt(cluster: &Cluster, shares: &Shares, unit: &Unit) -> Option<Reason> {
    let is_lower = |placed: &PlacedUnit| placed.unit.rank.priority > unit.rank.priority;
    let (protected, evictable) = what_stays(cluster, shares, unit.queue, Action::Preempt, is_lower);
    let queue = cluster.queue(unit.queue)?.spec().name.clone();
    (!protected.is_empty()).then_some(Reason::NothingToPreempt { queue, protected, evictable })
}

/// Of some placed units of a queue: what protects them from an action, with the number of units for each protection,
/// and how many are not protected.
fn what_stays(
    cluster: &Cluster,
    shares: &Shares,
    queue: QueueId,
    action: Action,
    is_meant: impl Fn(&PlacedUnit) -> bool,
) -> (Vec<(Protection, u32)>, u32) {
    let rules = MinRuntime::of(cluster, queue, action);
    let mut protected: BTreeMap<Protection, u32> = BTreeMap::new();
    let mut evictable = 0;
    for placed in Entitled::of(cluster, shares, queue).units().filter(|placed| is_meant(placed)) {
        match protection(cluster, rules, &placed.unit) {
            Some(protection) => *protected.entry(protection).or_default() += 1,
            None => evictable += 1,
        }
    }
    (merged(protected), evictable)
}

/// What protects a unit from being evicted.
fn protection(cluster: &Cluster, rules: MinRuntime, unit: &Unit) -> Option<Protection> {
    if let Some(protection) = rules.reason(cluster, cluster.group(unit.group)?, unit) {
        return Some(protection);
    }
    let mut evicted: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for claim in unit.claims.iter().filter_map(|claim| cluster.claim(*claim)) {
        if let Some(budget) = &claim.disruption_budget {
            *evicted.entry((&claim.namespace, budget)).or_default() += 1;
        }
    }
    let spent = evicted.iter().find(|((namespace, name), count)| cluster.spare_of_budget(namespace, name) < **count);
    spent.map(|((_, name), _)| Protection::DisruptionBudget { name: (*name).to_owned() })
}

/// Merges all minimum run times into one, which lasts until the first of them is over. The same for refused evictions.
fn merged(protected: BTreeMap<Protection, u32>) -> Vec<(Protection, u32)> {
    let mut merged: Vec<(Protection, u32)> = Vec::new();
    for (protection, units) in protected {
        match (merged.last_mut(), &protection) {
            (Some((Protection::MinRuntime { .. }, sum)), Protection::MinRuntime { .. })
            | (Some((Protection::EvictionRefused { .. }, sum)), Protection::EvictionRefused { .. }) => *sum += units,
            _ => merged.push((protection, units)),
        }
    }
    merged
}

//! Why nobody is evicted for a unit that finds no room.

use std::collections::BTreeMap;

use crate::cluster::Cluster;
use crate::entitled::Entitled;
use crate::explain::reason::{Holder, Protection, Reason};
use crate::explain::share::share;
use crate::queue::{Queue, QueueId};
use crate::resource::Charge;
use crate::shares::Shares;
use crate::unit::Unit;

/// Whether its queue would be above its fair share, or who is above his and keeps it.
pub(crate) fn reason(cluster: &Cluster, shares: &Shares, unit: &Unit) -> Option<Reason> {
    let charge = unit.least_charge(cluster);
    let own = share(cluster, shares, unit.queue, Some(&charge), &charge)?;
    if let Some(number) = shares.exceeded(cluster, unit.queue, &charge) {
        // If nobody else holds any of it, it does not matter whose share is how large.
        return (held_by_others(cluster, unit.queue, number) > 0).then_some(Reason::AboveFairShare(own));
    }
    let others = cluster.queues().parents_first().into_iter().filter(|id| *id != unit.queue);
    let leaves = others.filter(|id| cluster.queue(*id).is_some_and(|queue| queue.children().is_empty()));
    let mut holders: Vec<Holder> = leaves.filter_map(|queue| holder(cluster, shares, queue, &charge)).collect();
    let above = |holder: &Holder| u128::from(holder.held) * 1000 / u128::from(holder.fair_share.max(1));
    holders.sort_by_key(|holder| std::cmp::Reverse(above(holder)));
    (!holders.is_empty()).then_some(Reason::NothingToReclaim { own, holders })
}

fn held_by_others(cluster: &Cluster, queue: QueueId, number: usize) -> u64 {
    let held = |id: &QueueId| cluster.queue(*id).map_or(0, |queue| queue.allocated().get(number));
    let all = cluster.queues().roots().iter().map(held).fold(0, u64::saturating_add);
    all.saturating_sub(held(&queue))
}

/// A leaf queue that holds more than its fair share of something that is asked for, and what keeps that from being taken.
fn holder(cluster: &Cluster, shares: &Shares, queue: QueueId, asked: &Charge) -> Option<Holder> {
    let state = cluster.queue(queue)?;
    let above = |number: usize| state.allocated().get(number) > shares.fair_share(queue, number);
    if !asked.parts().any(|(number, _)| above(number)) {
        return None;
    }
    let held = share(cluster, shares, queue, None, asked)?;
    let mut protected: BTreeMap<Protection, u32> = BTreeMap::new();
    let mut evictable = 0;
    let entitled = Entitled::of(cluster, shares, queue);
    for unit in entitled.last_first().filter(|placed| !placed.entitled).map(|placed| &placed.unit) {
        match protection(cluster, state, unit) {
            Some(protection) => *protected.entry(protection).or_default() += 1,
            None => evictable += 1,
        }
    }
    Some(Holder {
        queue: held.queue,
        resource: held.resource,
        held: held.held,
        fair_share: held.fair_share,
        protected: merged(protected),
        evictable,
    })
}

/// What keeps a unit of a queue from being reclaimed.
fn protection(cluster: &Cluster, queue: &Queue, unit: &Unit) -> Option<Protection> {
    let spec = cluster.group(unit.group)?.spec();
    if !spec.preemptible {
        return Some(Protection::NonPreemptible);
    }
    let path = std::iter::successors(Some(queue), |queue| cluster.queue(queue.parent()?));
    let of_queue = path.map(Queue::spec).find_map(|spec| spec.reclaim_min_runtime_ms).unwrap_or(0);
    let min_runtime_ms = of_queue.max(spec.min_runtime_ms);
    let started = unit.claims.iter().filter_map(|claim| cluster.started_ms(*claim));
    let left_ms = |since_ms: u64| since_ms.saturating_add(min_runtime_ms).saturating_sub(cluster.now_ms());
    if let Some(left_ms) = started.map(left_ms).max().filter(|left_ms| *left_ms > 0) {
        return Some(Protection::MinRuntime { left_ms });
    }
    let mut evicted: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for claim in unit.claims.iter().filter_map(|claim| cluster.claim(*claim)) {
        if let Some(budget) = &claim.disruption_budget {
            *evicted.entry((&claim.namespace, budget)).or_default() += 1;
        }
    }
    let spent = evicted.iter().find(|((namespace, name), count)| cluster.budgets().spare(namespace, name) < **count);
    spent.map(|((_, name), _)| Protection::DisruptionBudget { name: (*name).to_owned() })
}

/// Minimum run times are told as one: until the first of them is over.
fn merged(protected: BTreeMap<Protection, u32>) -> Vec<(Protection, u32)> {
    let mut merged: Vec<(Protection, u32)> = Vec::new();
    for (protection, units) in protected {
        match (merged.last_mut(), &protection) {
            (Some((Protection::MinRuntime { .. }, sum)), Protection::MinRuntime { .. }) => *sum += units,
            _ => merged.push((protection, units)),
        }
    }
    merged
}

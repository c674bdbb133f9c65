//! Entitlements of the queues of a tree.

use crate::decisions::fair_share::divide::{Demand, divide};
use crate::vocabulary::allowance::Allowance;

/// The inputs that decide a queue's entitlement: what it is allowed, what it asks for, and what it has used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueDemand {
    /// The index of its parent, which comes before it in the list; `None`: it is at the top.
    pub parent: Option<usize>,
    /// Queues of higher priority are given what is left over first. [`Allowance::priority`] overrides it for one
    /// resource.
    pub priority: i32,
    /// What it may have, by resource.
    pub allowances: Vec<Allowance>,
    /// What its own claims ask for, running or pending, by resource. What its children ask for is added.
    pub requested: Vec<u64>,
    /// Its recent usage, in millionths of the capacity, by resource.
    pub usage_ppm: Vec<u64>,
}

/// A queue's entitlement to one resource. It decides whose turn it is, which queues may reclaim, and from which queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entitlement {
    /// Its part of the total.
    pub fair_share: u64,
    /// Its quota; `None`: everything that there is.
    pub quota: Option<u64>,
    /// The most that it may hold; `None`: no limit.
    pub limit: Option<u64>,
    /// The capacity of the cluster.
    pub total: u64,
}

impl Entitlement {
    /// What it may hold before other queues go first: min(max(quota, fair share), limit). The quota counts in full even
    /// if the queue does not ask for all of it now.
    #[must_use]
    pub fn allocatable(&self) -> u64 {
        self.quota.unwrap_or(self.total).max(self.fair_share).min(self.limit.unwrap_or(u64::MAX))
    }
}

/// The entitlements of the queues of a tree, by queue and resource. In the list, parents come before their children,
/// and older siblings before younger ones.
///
/// `totals` is the capacity of each resource. Children divide their parent's share. See [`divide`] for `usage_weight`.
/// A parent asks for no more than its children may have, because it could not use a larger share.
#[must_use]
pub fn entitlements(totals: &[u64], queues: &[QueueDemand], usage_weight: u64) -> Vec<Vec<Entitlement>> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); queues.len()];
    let mut roots = Vec::new();
    for (index, queue) in queues.iter().enumerate() {
        match queue.parent.filter(|parent| *parent < index) {
            Some(parent) => children[parent].push(index),
            None => roots.push(index),
        }
    }
    let mut entitled = vec![Vec::with_capacity(totals.len()); queues.len()];
    for (resource, total) in totals.iter().enumerate() {
        let allowance = |index: usize| queues[index].allowances.get(resource).copied().unwrap_or_default();
        let own = |amounts: &[u64]| amounts.get(resource).copied().unwrap_or(0);
        let mut requested: Vec<u64> = queues.iter().map(|queue| own(&queue.requested)).collect();
        for index in (0..queues.len()).rev() {
            for child in &children[index] {
                let limit = allowance(*child).limit.unwrap_or(u64::MAX);
                requested[index] = requested[index].saturating_add(requested[*child].min(limit));
            }
        }
        let demand = |index: &usize| Demand {
            quota: allowance(*index).quota,
            limit: allowance(*index).limit,
            weight: allowance(*index).weight,
            priority: allowance(*index).priority.unwrap_or(queues[*index].priority),
            requested: requested[*index],
            usage_ppm: own(&queues[*index].usage_ppm),
        };
        let mut shares = vec![0; queues.len()];
        let mut share = |amount: u64, siblings: &[usize]| {
            let demands: Vec<Demand> = siblings.iter().map(demand).collect();
            for (index, part) in siblings.iter().zip(divide(amount, &demands, usage_weight)) {
                shares[*index] = part;
            }
            siblings.iter().map(|index| shares[*index]).collect::<Vec<u64>>()
        };
        let mut waiting: Vec<(usize, u64)> = roots.iter().copied().zip(share(*total, &roots)).collect();
        while let Some((parent, amount)) = waiting.pop() {
            let siblings = &children[parent];
            waiting.extend(siblings.iter().copied().zip(share(amount, siblings)));
        }
        for (index, entitled) in entitled.iter_mut().enumerate() {
            let Allowance { quota, limit, .. } = allowance(index);
            entitled.push(Entitlement { fair_share: shares[index], quota, limit, total: *total });
        }
    }
    entitled
}

//! Trees of queues: what each is entitled to.

use crate::decisions::fair_share::divide::{Demand, divide};
use crate::vocabulary::allowance::Allowance;

/// What decides a queue's entitlement: what it is allowed, what it asks for, and what it has used.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueDemand {
    /// The index of its parent, which stands before it; `None`: none.
    pub parent: Option<usize>,
    /// Queues of higher priority are given what is left over first; [`Allowance::priority`] goes before it.
    pub priority: i32,
    /// By resource.
    pub allowances: Vec<Allowance>,
    /// By resource, what its own claims ask for, running or waiting; what its children ask for is added.
    pub requested: Vec<u64>,
    /// By resource, what it has used lately, in millionths of what there was.
    pub usage_ppm: Vec<u64>,
}

/// What a queue is entitled to of one resource. Everything follows from it: whose turn it is, who may reclaim, and from
/// whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entitlement {
    /// Its part of what there is.
    pub fair_share: u64,
    /// What it deserves; `None`: all there is.
    pub quota: Option<u64>,
    /// What it never exceeds; `None`: no limit.
    pub limit: Option<u64>,
    /// All there is.
    pub total: u64,
}

impl Entitlement {
    /// What it may hold before others go first: its quota even where it does not ask for all of it now, otherwise its
    /// fair share.
    #[must_use]
    pub fn allocatable(&self) -> u64 {
        self.quota.unwrap_or(self.total).max(self.fair_share).min(self.limit.unwrap_or(u64::MAX))
    }
}

/// What queues of a tree are entitled to, by queue and resource. The queues stand parents first and, among siblings,
/// the oldest first.
///
/// `totals` is what there is of each resource. Children divide what their parent gets. See [`divide`] for
/// `usage_weight`. A parent asks for no more than its children may have: a larger share would serve nobody.
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

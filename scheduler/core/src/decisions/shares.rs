//! What every queue is entitled to, as the cluster is now.

use std::collections::BTreeMap;

use crate::decisions::fair_share::{DominantShare, Entitlement, QueueDemand, entitlements};
use crate::state::cluster::Cluster;
use crate::state::queue::Queue;
use crate::state::resources::{Charge, DEVICE_CORE};
use crate::state::usage::DecayedUsage;
use crate::vocabulary::allowance::Allowance;
use crate::vocabulary::queue_spec::QueueId;

/// The entitlements of all queues. They follow from what there is, what is asked for and what was used lately, and not
/// from who is placed where: they stay the same as claims are placed and evicted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    /// By number of the queue's slot.
    by_queue: Vec<Vec<Entitlement>>,
}

impl Shares {
    /// The entitlements; `usage_weight` as in [`divide`](crate::divide).
    pub(crate) fn of(cluster: &Cluster, usage_weight: u64) -> Self {
        let queues = cluster.queues();
        let order = queues.parents_first();
        let totals = cluster.totals();
        let index: BTreeMap<QueueId, usize> = order.iter().enumerate().map(|(index, id)| (*id, index)).collect();
        let all: Vec<&Queue> = order.iter().filter_map(|id| queues.get(*id)).collect();
        // A resource that no queue names is not shared out: otherwise a quota of devices could not be taken back
        // because of memory that nobody spoke of. Only the time of devices always is, as queues are about it.
        let named = |number: usize| all.iter().any(|queue| queue.named_allowance(number).is_some());
        let shared = |number: usize| number == DEVICE_CORE || named(number);
        let shared: Vec<bool> = (0..totals.len()).map(shared).collect();
        let there_was = cluster.capacity_used();
        let demand = |queue: &&Queue| QueueDemand {
            parent: queue.parent().and_then(|parent| index.get(&parent).copied()),
            priority: queue.spec().priority,
            allowances: (0..totals.len())
                .map(|number| match shared[number] {
                    true => queue.allowance(number),
                    false => Allowance::default(),
                })
                .collect(),
            // What children ask for is added by who divides.
            requested: match queue.children().is_empty() {
                true => (0..totals.len()).map(|number| queue.requested().get(number)).collect(),
                false => vec![0; totals.len()],
            },
            usage_ppm: (0..totals.len()).map(|number| usage_ppm(queue, number, there_was)).collect(),
        };
        let demands: Vec<QueueDemand> = all.iter().map(demand).collect();
        let mut entitled = entitlements(&totals, &demands, usage_weight);
        for entitled in &mut entitled {
            for (entitlement, _) in entitled.iter_mut().zip(&shared).filter(|(_, shared)| !**shared) {
                *entitlement = Entitlement { fair_share: u64::MAX, quota: None, limit: None, total: u64::MAX };
            }
        }
        let mut by_queue = Vec::new();
        for (queue, entitled) in order.into_iter().zip(entitled) {
            if by_queue.len() <= queue.index() {
                by_queue.resize(queue.index() + 1, Vec::new());
            }
            by_queue[queue.index()] = entitled;
        }
        Self { by_queue }
    }

    /// What a queue is entitled to of each resource, by number.
    pub(crate) fn get(&self, queue: QueueId) -> &[Entitlement] {
        self.by_queue.get(queue.index()).map_or(&[], Vec::as_slice)
    }

    /// A queue's fair share of a resource.
    pub(crate) fn fair_share(&self, queue: QueueId, number: usize) -> u64 {
        self.get(queue).get(number).map_or(0, |entitlement| entitlement.fair_share)
    }

    /// The first resource of which a queue would be above its fair share with `charge` on top of what it holds.
    pub(crate) fn exceeded(&self, cluster: &Cluster, queue: QueueId, charge: &Charge) -> Option<usize> {
        let held = cluster.queue(queue)?.allocated();
        let exceeds = |(number, amount): &(usize, u64)| {
            held.get(*number).saturating_add(*amount) > self.fair_share(queue, *number)
        };
        charge.parts().find(exceeds).map(|(number, _)| number)
    }

    /// The greatest part that a queue holds of what it is entitled to.
    pub(crate) fn dominant(&self, cluster: &Cluster, queue: QueueId) -> DominantShare {
        self.dominant_with(cluster, queue, &Charge::default()).0
    }

    /// The greatest part that a queue holds of what it is entitled to, and the same with `charge` on top.
    pub(crate) fn dominant_with(
        &self,
        cluster: &Cluster,
        queue: QueueId,
        charge: &Charge,
    ) -> (DominantShare, DominantShare) {
        let held = cluster.queue(queue).map(Queue::allocated);
        let held = |number: usize| held.map_or(0, |held| held.get(number));
        let of = |number: usize, entitled: &Entitlement, more: u64| {
            DominantShare::of(held(number).saturating_add(more), entitled)
        };
        let entitled = || self.get(queue).iter().enumerate();
        let without = entitled().map(|(number, entitled)| of(number, entitled, 0)).max();
        let with = entitled().map(|(number, entitled)| of(number, entitled, charge.get(number))).max();
        (without.unwrap_or_default(), with.unwrap_or_default())
    }
}

fn usage_ppm(queue: &Queue, number: usize, there_was: &[DecayedUsage]) -> u64 {
    match (queue.usage().get(number), there_was.get(number)) {
        (Some(used), Some(there_was)) => used.ppm_of(there_was),
        _ => 0,
    }
}

//! The entitlements of all queues in the cluster's present state.

use crate::decisions::fair_share::{DominantShare, Entitlement, QueueDemand, entitlements};
use crate::decisions::shared_out::SharedOut;
use crate::state::cluster::Cluster;
use crate::state::queue::Queue;
use crate::state::resources::Charge;
use crate::state::usage::DecayedUsage;
use crate::vocabulary::beside::Beside;
use crate::vocabulary::queue_spec::{QueueId, QueueSpec};

/// The entitlements of all queues. They follow from capacity, requests and recent usage, and not from placements. So
/// they stay the same as claims are placed and evicted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    /// By the number of the queue's slot.
    by_queue: Vec<OfQueue>,
}

#[derive(Clone, Debug, Default)]
struct OfQueue {
    entitled: Vec<Entitlement>,
    /// The guaranteed part of the fair share, by resource.
    guaranteed: Vec<u64>,
}

/// The right by which a unit takes something back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Right {
    /// Its queue's fair share.
    FairShare,
    /// The part of the fair share that its queue's quota, and the quotas above it, make certain.
    Guarantee,
}

impl Shares {
    /// The entitlements; `usage_weight` as in [`divide`](crate::divide).
    pub(crate) fn of(cluster: &Cluster, usage_weight: u64) -> Self {
        let queues = cluster.queues();
        let order = queues.parents_first();
        let totals = cluster.totals();
        let index: Beside<usize, QueueSpec> = order.iter().enumerate().map(|(index, id)| (*id, index)).collect();
        let all: Vec<&Queue> = order.iter().filter_map(|id| queues.get(*id)).collect();
        let shared = SharedOut::of(&all, totals.len());
        let there_was = cluster.capacity_used();
        let demand = |queue: &&Queue| QueueDemand {
            parent: queue.parent().and_then(|parent| index.get(parent).copied()),
            priority: queue.spec().priority,
            allowances: (0..totals.len()).map(|number| shared.allowance(queue, number)).collect(),
            // `entitlements` adds what children ask for.
            requested: match queue.children().is_empty() {
                true => (0..totals.len()).map(|number| queue.requested().get(number)).collect(),
                false => vec![0; totals.len()],
            },
            usage_ppm: (0..totals.len()).map(|number| usage_ppm(queue, number, there_was)).collect(),
        };
        let mut demands: Vec<QueueDemand> = all.iter().map(demand).collect();
        let mut entitled = entitlements(&totals, &demands, usage_weight);
        shared.round_up(cluster, &order, &totals, &demands, &mut entitled);
        let guaranteed = shared.guaranteed(&totals, &mut demands, usage_weight);
        let mut shares = Self::default();
        let mut is_unlimited: Vec<Vec<bool>> = Vec::with_capacity(order.len());
        for (place, (queue, mut entitled)) in order.into_iter().zip(entitled).enumerate() {
            let above = demands[place].parent.and_then(|parent| is_unlimited.get(parent));
            let is_unlimited_of = |(number, entitled): (usize, &Entitlement)| {
                entitled.quota.is_none() && above.is_none_or(|above| above[number])
            };
            let unlimited: Vec<bool> = entitled.iter().enumerate().map(is_unlimited_of).collect();
            let mut guaranteed: Vec<u64> =
                guaranteed.iter().map(|of_resource| of_resource.get(place).copied().unwrap_or(0)).collect();
            for (number, entitlement) in entitled.iter_mut().enumerate() {
                if !shared.is_shared[number] {
                    *entitlement = Entitlement { fair_share: u64::MAX, quota: None, limit: None, total: u64::MAX };
                    guaranteed[number] = u64::MAX;
                } else if unlimited[number] {
                    // A queue with a quota of everything, up to the top of the tree, is never over its share.
                    entitlement.fair_share = entitlement.limit.unwrap_or(u64::MAX);
                    guaranteed[number] = entitlement.fair_share;
                }
            }
            is_unlimited.push(unlimited);
            if shares.by_queue.len() <= queue.index() {
                shares.by_queue.resize(queue.index() + 1, OfQueue::default());
            }
            shares.by_queue[queue.index()] = OfQueue { entitled, guaranteed };
        }
        shares
    }

    /// What a queue is entitled to of each resource, by number.
    pub(crate) fn get(&self, queue: QueueId) -> &[Entitlement] {
        self.by_queue.get(queue.index()).map_or(&[], |of_queue| &of_queue.entitled)
    }

    /// The most that a queue may hold of a resource by a right.
    pub(crate) fn by_right(&self, right: Right, queue: QueueId, number: usize) -> u64 {
        match right {
            Right::FairShare => self.fair_share(queue, number),
            Right::Guarantee => self.guaranteed(queue).get(number).copied().unwrap_or(0),
        }
    }

    /// What a queue is certain to get of each resource if it asks for it, by the resource's number.
    pub(crate) fn guaranteed(&self, queue: QueueId) -> &[u64] {
        self.by_queue.get(queue.index()).map_or(&[], |of_queue| &of_queue.guaranteed)
    }

    /// A queue's fair share of a resource.
    pub(crate) fn fair_share(&self, queue: QueueId, number: usize) -> u64 {
        self.get(queue).get(number).map_or(0, |entitlement| entitlement.fair_share)
    }

    /// The first resource of which a queue would be above its fair share if it held `charge` in addition.
    pub(crate) fn exceeded(&self, cluster: &Cluster, queue: QueueId, charge: &Charge) -> Option<usize> {
        let held = cluster.queue(queue)?.allocated();
        let exceeds = |(number, amount): &(usize, u64)| {
            held.get(*number).saturating_add(*amount) > self.fair_share(queue, *number)
        };
        charge.parts().find(exceeds).map(|(number, _)| number)
    }

    /// The greatest part of its entitlement that a queue holds.
    pub(crate) fn dominant(&self, cluster: &Cluster, queue: QueueId) -> DominantShare {
        self.dominant_with(cluster, queue, &Charge::default()).0
    }

    /// The greatest part of its entitlement that a queue holds, and the same with `charge` in addition.
    pub(crate) fn dominant_with(
        &self,
        cluster: &Cluster,
        queue: QueueId,
        charge: &Charge,
    ) -> (DominantShare, DominantShare) {
        let held = cluster.queue(queue).map(Queue::allocated);
        let mut greatest: Option<(DominantShare, DominantShare)> = None;
        for (number, entitled) in self.get(queue).iter().enumerate() {
            let held = held.map_or(0, |held| held.get(number));
            let without = DominantShare::of(held, entitled);
            let with = match charge.get(number) {
                0 => without,
                more => DominantShare::of(held.saturating_add(more), entitled),
            };
            let (of_others, with_others) = greatest.unwrap_or((without, with));
            greatest = Some((of_others.max(without), with_others.max(with)));
        }
        greatest.unwrap_or_default()
    }
}

fn usage_ppm(queue: &Queue, number: usize, there_was: &[DecayedUsage]) -> u64 {
    match (queue.usage().get(number), there_was.get(number)) {
        (Some(used), Some(there_was)) => used.ppm_of(there_was),
        _ => 0,
    }
}

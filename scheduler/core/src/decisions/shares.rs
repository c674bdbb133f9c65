//! The entitlements of all queues in the cluster's present state.

use crate::decisions::fair_share::{DominantShare, Entitlement, QueueDemand, entitlements};
use crate::decisions::shared_out::{Below, SharedOut};
use crate::decisions::usable::Usable;
use crate::state::cluster::Cluster;
use crate::state::queue::Queue;
use crate::state::resources::Charge;
use crate::state::usage::DecayedUsage;
use crate::vocabulary::beside::Beside;
use crate::vocabulary::queue_spec::{QueueId, QueueSpec};

/// The entitlements of all queues. They follow from capacity, requests and recent usage, and not from placements. So
/// they stay the same as claims are placed and evicted. The exception is a gang that lacks members: it counts as long
/// as some of it is placed, and what of it is evicted is not placed again.
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
    /// For a queue below a division: which one, and what is certain among the queues below it.
    among: Option<Among>,
}

/// A queue among those below one division: the first queue on the way from the top that has a quota of less than
/// everything.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Among {
    division: QueueId,
    /// What no other queue of the division may take, by resource.
    certain: Vec<u64>,
}

/// The right by which a unit takes something back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Right {
    /// Its queue's fair share.
    FairShare,
    /// The part of the fair share that its queue's quota, and the quotas above it, make certain. It holds against
    /// queues that are not below the same division.
    Guarantee,
    /// What its queue's quota makes certain among the queues of its division, whatever the division's own quota is.
    AmongSiblings,
}

/// Which guarantees something is within.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Guarantees {
    /// [`Right::Guarantee`].
    pub(crate) of_all: bool,
    /// [`Right::AmongSiblings`].
    pub(crate) among_siblings: bool,
}

impl Guarantees {
    /// By what `is_within` says of each.
    pub(crate) fn of(is_within: impl Fn(Right) -> bool) -> Self {
        Self { of_all: is_within(Right::Guarantee), among_siblings: is_within(Right::AmongSiblings) }
    }

    /// The rights that they follow from.
    pub(crate) fn rights(self) -> impl Iterator<Item = Right> {
        let among_siblings = self.among_siblings.then_some(Right::AmongSiblings);
        among_siblings.into_iter().chain(self.of_all.then_some(Right::Guarantee))
    }

    /// Whether it is any.
    pub(crate) fn any(self) -> bool {
        self.of_all || self.among_siblings
    }

    /// Whether all others are among these.
    pub(crate) fn cover(self, others: Self) -> bool {
        (self.of_all || !others.of_all) && (self.among_siblings || !others.among_siblings)
    }

    /// What is among these or among `others`.
    pub(crate) fn with(self, others: Self) -> Self {
        Self { of_all: self.of_all || others.of_all, among_siblings: self.among_siblings || others.among_siblings }
    }
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
        let usable = Usable::of(cluster);
        let demand = |(id, queue): (&QueueId, &&Queue)| QueueDemand {
            parent: queue.parent().and_then(|parent| index.get(parent).copied()),
            priority: queue.spec().priority,
            allowances: (0..totals.len()).map(|number| shared.allowance(queue, number)).collect(),
            // `entitlements` adds what children ask for.
            requested: match queue.children().is_empty() {
                true => (0..totals.len()).map(|number| usable.amount(*id, queue, number)).collect(),
                false => vec![0; totals.len()],
            },
            usage_ppm: (0..totals.len()).map(|number| usage_ppm(queue, number, there_was)).collect(),
        };
        let mut demands: Vec<QueueDemand> = order.iter().zip(&all).map(demand).collect();
        let mut entitled = entitlements(&totals, &demands, usage_weight);
        shared.round_up(cluster, &order, &totals, &demands, &mut entitled);
        let divisions = shared.divisions(&demands);
        let among = SharedOut::certain_among_siblings(&totals, &demands, &divisions, usage_weight);
        let guaranteed = shared.guaranteed(&totals, &mut demands, usage_weight);
        let among = among.map(|among| comparable(&guaranteed, among, &divisions));
        let slots: Vec<QueueId> = order.clone();
        let mut shares = Self::default();
        let mut is_unlimited: Vec<Vec<bool>> = Vec::with_capacity(order.len());
        for (place, (queue, mut entitled)) in order.into_iter().zip(entitled).enumerate() {
            let above = demands[place].parent.and_then(|parent| is_unlimited.get(parent));
            let is_unlimited_of = |(number, entitled): (usize, &Entitlement)| {
                entitled.quota.is_none() && above.is_none_or(|above| above[number])
            };
            let unlimited: Vec<bool> = entitled.iter().enumerate().map(is_unlimited_of).collect();
            let of_place = |amounts: &[Vec<u64>]| -> Vec<u64> {
                amounts.iter().map(|of_resource| of_resource.get(place).copied().unwrap_or(0)).collect()
            };
            let mut guaranteed = of_place(&guaranteed);
            let division = divisions[place].and_then(|below| slots.get(below.division).copied());
            let among = division.zip(among.as_deref());
            let mut among = among.map(|(division, among)| Among { division, certain: of_place(among) });
            for (number, entitlement) in entitled.iter_mut().enumerate() {
                if !shared.is_shared[number] {
                    *entitlement = Entitlement { fair_share: u64::MAX, quota: None, limit: None, total: u64::MAX };
                } else if unlimited[number] {
                    // A queue with a quota of everything, up to the top of the tree, is never over its share.
                    entitlement.fair_share = entitlement.limit.unwrap_or(u64::MAX);
                } else {
                    continue;
                }
                guaranteed[number] = entitlement.fair_share;
                if let Some(among) = &mut among {
                    among.certain[number] = entitlement.fair_share;
                }
            }
            is_unlimited.push(unlimited);
            if shares.by_queue.len() <= queue.index() {
                shares.by_queue.resize(queue.index() + 1, OfQueue::default());
            }
            shares.by_queue[queue.index()] = OfQueue { entitled, guaranteed, among };
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
            Right::AmongSiblings => self.among_siblings(queue).and_then(|of| of.get(number)).copied().unwrap_or(0),
        }
    }

    /// What no other queue of a queue's division may take from it, by the resource's number; `None`: it is below none.
    pub(crate) fn among_siblings(&self, queue: QueueId) -> Option<&[u64]> {
        self.by_queue.get(queue.index())?.among.as_ref().map(|among| among.certain.as_slice())
    }

    /// Whether two queues are below the same division.
    fn are_siblings(&self, one: QueueId, other: QueueId) -> bool {
        let division = |queue: QueueId| self.by_queue.get(queue.index())?.among.as_ref().map(|among| among.division);
        division(one).is_some_and(|of_one| division(other) == Some(of_one))
    }

    /// Whether a right holds against another queue at all: what siblings owe each other is not decided by what their
    /// division may have, nor the other way round.
    pub(crate) fn holds_against(&self, right: Right, queue: QueueId, other: QueueId) -> bool {
        match right {
            Right::FairShare => true,
            Right::Guarantee => !self.are_siblings(queue, other),
            Right::AmongSiblings => self.are_siblings(queue, other),
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

/// What is certain among siblings, by resource and queue, so that below each division it is at most what is guaranteed,
/// for all queues and resources, or for all of them at least that. Otherwise one queue could take by one right what
/// another one takes back by the other. Where a division's quota makes more certain of one resource, and its queues'
/// quotas of another one, the lesser counts.
fn comparable(guaranteed: &[Vec<u64>], mut among: Vec<Vec<u64>>, divisions: &[Option<Below>]) -> Vec<Vec<u64>> {
    // Nothing at all is guaranteed where lists are empty.
    let at = |guaranteed: &Vec<u64>, place: usize| guaranteed.get(place).copied().unwrap_or(0);
    // By division: whether anything among its siblings is less than what is guaranteed.
    let mut is_less = vec![false; divisions.len()];
    let each = || (0..divisions.len()).filter_map(|place| Some((place, divisions[place]?.division)));
    for (place, division) in each() {
        is_less[division] |= guaranteed.iter().zip(&among).any(|(of_all, among)| among[place] < at(of_all, place));
    }
    for (place, _) in each().filter(|(_, division)| is_less[*division]) {
        for (of_all, among) in guaranteed.iter().zip(&mut among) {
            among[place] = among[place].min(at(of_all, place));
        }
    }
    among
}

/// What a queue has held of a resource lately, in millionths of the capacity that there was.
pub(crate) fn usage_ppm(queue: &Queue, number: usize, there_was: &[DecayedUsage]) -> u64 {
    match (queue.usage().get(number), there_was.get(number)) {
        (Some(used), Some(there_was)) => used.ppm_of(there_was),
        _ => 0,
    }
}

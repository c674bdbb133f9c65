//! Which resources are divided among queues, and the sizes of units to which shares are rounded.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use crate::decisions::demanded::{Demanded, each_demanded};
use crate::decisions::fair_share::{Entitlement, QueueDemand, RoundedQueue, RoundedUnit, entitlements, round_up};
use crate::state::cluster::Cluster;
use crate::state::queue::Queue;
use crate::state::resources::{Amounts, Charge, DEVICE_CORE};
use crate::vocabulary::allowance::Allowance;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

/// The most sizes of units that are considered among those that do not fit into a queue's share.
const SIZES_MAX: usize = 4;

/// The resources that are divided among queues.
///
/// A resource that no queue names is not divided: otherwise a queue could not take back its quota of devices because of
/// memory that no queue names. Device time is the exception. It is always divided, as queues are about it: by each
/// model if queues name models but not the total, and otherwise in total. An equal split of a total that no queue names
/// would keep a queue from its quota of a model.
pub(super) struct SharedOut {
    /// By the resource's number.
    pub(super) is_shared: Vec<bool>,
}

impl SharedOut {
    /// For this many resources.
    pub(super) fn of(queues: &[&Queue], resources: usize) -> Self {
        let is_named = |number: usize| queues.iter().any(|queue| queue.named_allowance(number).is_some());
        let mut is_shared: Vec<bool> = (0..resources).map(is_named).collect();
        let names_models = is_shared.iter().enumerate().any(|(number, named)| *named && Charge::is_model(number));
        match (is_shared.get(DEVICE_CORE), names_models) {
            (Some(false), true) => {
                is_shared
                    .iter_mut()
                    .enumerate()
                    .filter(|(number, _)| Charge::is_model(*number))
                    .for_each(|(_, is)| *is = true);
            }
            _ => is_shared.iter_mut().skip(DEVICE_CORE).take(1).for_each(|is_shared| *is_shared = true),
        }
        Self { is_shared }
    }

    /// What a queue may have of a resource. If a queue names models, but not the total that other queues name, its
    /// allowance of the total is what it may have of the models.
    pub(super) fn allowance(&self, queue: &Queue, number: usize) -> Allowance {
        if !self.is_shared[number] {
            return Allowance::default();
        }
        let of_model = |number: usize| queue.named_allowance(number).filter(|_| Charge::is_model(number));
        let models = || (0..self.is_shared.len()).filter_map(of_model);
        if number != DEVICE_CORE || queue.named_allowance(number).is_some() || models().next().is_none() {
            return queue.allowance(number);
        }
        let add = |sum: Option<u64>, quota: Option<u64>| Some(sum?.saturating_add(quota?));
        let quota = models().map(|allowance| allowance.quota).fold(Some(0), add);
        Allowance { quota, ..Allowance::UNNAMED }
    }

    /// The guaranteed part of each queue, by resource: its share if the queues at the top were given only their quotas. A
    /// queue with a quota of everything bounds nothing: what is below it counts as the top, too. Otherwise all that such a
    /// division's teams borrow from each other would be certain, and none could take its quota back.
    pub(super) fn guaranteed(&self, totals: &[u64], demands: &mut [QueueDemand], usage_weight: u64) -> Vec<Vec<u64>> {
        let mut any = false;
        // By queue and resource: whether it, or a queue above it, has a quota of less than everything.
        let mut is_bounded: Vec<Vec<bool>> = Vec::with_capacity(demands.len());
        for demand in demands.iter_mut() {
            let above = demand.parent.and_then(|parent| is_bounded.get(parent));
            let is_below_bound = |number: usize| above.is_some_and(|above| above.get(number) == Some(&true));
            let mut bounded = Vec::with_capacity(totals.len());
            for (number, (allowance, is_shared)) in demand.allowances.iter_mut().zip(&self.is_shared).enumerate() {
                if !is_below_bound(number) {
                    allowance.weight = 0;
                    any |= *is_shared && allowance.quota != Some(0);
                }
                bounded.push(is_below_bound(number) || allowance.quota.is_some());
            }
            is_bounded.push(bounded);
        }
        if !any {
            return vec![Vec::new(); totals.len()];
        }
        fair_shares(totals, demands, usage_weight)
    }

    /// For each queue, the division that it is below.
    pub(super) fn divisions(&self, demands: &[QueueDemand]) -> Vec<Option<Below>> {
        let is_bounded = |queue: usize| {
            let allowances = demands.get(queue).into_iter().flat_map(|demand| &demand.allowances);
            let mut shared = allowances.zip(&self.is_shared).filter(|(_, is_shared)| **is_shared);
            shared.any(|(allowance, _)| allowance.quota.is_some())
        };
        let mut divisions: Vec<Option<Below>> = Vec::with_capacity(demands.len());
        for demand in demands {
            let below = demand.parent.filter(|parent| *parent < divisions.len()).and_then(|parent| {
                match (divisions[parent], is_bounded(parent)) {
                    (None, is_bounded) => is_bounded.then_some(Below { division: parent, is_next: true }),
                    (Some(above), is_bounded) => Some(Below { is_next: above.is_next && !is_bounded, ..above }),
                }
            });
            divisions.push(below);
        }
        divisions
    }

    /// What is certain among the queues below each division, by resource: their shares if the division has its fair
    /// share, and they are given only their quotas of that. `None`: there is no division.
    pub(super) fn certain_among_siblings(
        totals: &[u64],
        demands: &[QueueDemand],
        divisions: &[Option<Below>],
        usage_weight: u64,
    ) -> Option<Vec<Vec<u64>>> {
        if divisions.iter().all(Option::is_none) {
            return None;
        }
        let mut demands = demands.to_vec();
        for (demand, _) in demands.iter_mut().zip(divisions).filter(|(_, below)| below.is_some_and(|of| of.is_next)) {
            demand.allowances.iter_mut().for_each(|allowance| allowance.weight = 0);
        }
        Some(fair_shares(totals, &demands, usage_weight))
    }

    /// Whether a queue is given everything that it asks for, or as much as its limits allow.
    fn is_satisfied(&self, requested: &[u64], entitled: &[Entitlement]) -> bool {
        let mut shared = self.is_shared.iter().zip(requested).zip(entitled).filter(|((is_shared, _), _)| **is_shared);
        shared.all(|((_, requested), entitlement)| {
            entitlement.fair_share >= (*requested).min(entitlement.limit.unwrap_or(u64::MAX))
        })
    }

    /// Rounds shares to whole units.
    pub(super) fn round_up(
        &self,
        cluster: &Cluster,
        order: &[QueueId],
        totals: &[u64],
        demands: &[QueueDemand],
        entitled: &mut [Vec<Entitlement>],
    ) {
        let is_leaf = |id: &QueueId| cluster.queue(*id).is_some_and(|queue| queue.children().is_empty());
        let leaves = order.iter().zip(demands).zip(entitled.iter()).filter(|((id, _), _)| is_leaf(id));
        // If only one queue wants more than its share, there is no other queue to get more from.
        if leaves.filter(|((_, demand), entitled)| !self.is_satisfied(&demand.requested, entitled)).count() < 2 {
            return;
        }
        let mut sizes = Sizes { shared: self, cluster, least_core: None };
        let mut queues = Vec::with_capacity(order.len());
        for ((id, demand), entitled) in order.iter().zip(demands).zip(entitled.iter()) {
            let state = cluster.queue(*id);
            let quota = |number: usize| state?.named_allowance(number)?.quota;
            let mut queue = RoundedQueue {
                parent: demand.parent,
                priority: demand.priority,
                quotas: (0..totals.len()).map(quota).collect(),
                limits: entitled.iter().map(|entitlement| entitlement.limit).collect(),
                used: vec![0; totals.len()],
                next: Vec::new(),
            };
            if is_leaf(id) {
                sizes.fill_in(*id, &demand.requested, entitled, &mut queue);
            }
            queues.push(queue);
        }
        let mut shares: Vec<Vec<u64>> =
            entitled.iter().map(|of| of.iter().map(|entitlement| entitlement.fair_share).collect()).collect();
        let totals: Vec<Option<u64>> =
            totals.iter().zip(&self.is_shared).map(|(total, is_shared)| is_shared.then_some(*total)).collect();
        round_up(&totals, &queues, &mut shares);
        for (entitled, shares) in entitled.iter_mut().zip(shares) {
            for (entitlement, share) in entitled.iter_mut().zip(shares) {
                entitlement.fair_share = share;
            }
        }
    }
}

/// A queue's place below a division, which is the first queue on the way from the top that has a quota of less than
/// everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Below {
    /// The index of the division.
    pub(super) division: usize,
    /// Whether no further queue with such a quota is between them.
    is_next: bool,
}

/// The fair shares by resource and queue.
fn fair_shares(totals: &[u64], demands: &[QueueDemand], usage_weight: u64) -> Vec<Vec<u64>> {
    let entitled = entitlements(totals, demands, usage_weight);
    let of = |number: usize| entitled.iter().map(|entitled| entitled[number].fair_share).collect();
    (0..totals.len()).map(of).collect()
}

/// Finds the units of queues that fit into their shares.
struct Sizes<'a> {
    shared: &'a SharedOut,
    cluster: &'a Cluster,
    /// The least device time that any claim with devices asks for.
    least_core: Option<u64>,
}

impl Sizes<'_> {
    fn fill_in(&mut self, id: QueueId, requested: &[u64], entitled: &[Entitlement], queue: &mut RoundedQueue) {
        let is_shared = &self.shared.is_shared;
        let shared = || (0..is_shared.len()).filter(|number| is_shared[*number]);
        shared().for_each(|number| queue.used[number] = entitled[number].fair_share);
        if self.shared.is_satisfied(requested, entitled) {
            return;
        }
        let least_core = match shared().all(|number| self.cluster.resources().is_of_devices(number)) {
            true => *self.least_core.get_or_insert_with(|| least_core(self.cluster)),
            false => 0,
        };
        let mut used = Amounts::default();
        let (mut is_flexible, mut arrivals) = (false, Arrivals::default());
        // The groups whose cores do not fit: members beyond those are of no use.
        let mut without_core: BTreeSet<u64> = BTreeSet::new();
        let left = |used: &Amounts, number: usize| entitled[number].fair_share.saturating_sub(used.get(number));
        let _: ControlFlow<()> = each_demanded(self.cluster, id, |rank, claims, charge| {
            if rank.elastic && without_core.contains(&rank.group) {
                return ControlFlow::Continue(());
            }
            arrivals.note(self.cluster, claims);
            is_flexible |= charge.device_core() > 0 && charge.models().next().is_none();
            let parts = || charge.parts().filter(|(number, _)| is_shared.get(*number) == Some(&true));
            if parts().all(|(number, amount)| amount <= left(&used, number)) {
                used.add(charge);
                return ControlFlow::Continue(());
            }
            if !rank.elastic && matches!(claims, Demanded::Claims(_)) {
                without_core.insert(rank.group);
            }
            let is_new = || queue.next.iter().all(|unit| !unit.parts.iter().copied().eq(parts()));
            if queue.next.len() < SIZES_MAX && is_new() {
                queue.next.push(RoundedUnit { parts: parts().collect(), arrival: arrivals.latest(self.cluster) });
            }
            // What is left is too little for any claim.
            let is_full = is_shared[DEVICE_CORE] && left(&used, DEVICE_CORE) < least_core;
            if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        for number in shared() {
            // The model of a pending claim is not known yet, so what it could take of each model may be needed.
            if !(is_flexible && Charge::may_depend_on_model(number)) {
                queue.used[number] = used.get(number).min(entitled[number].fair_share);
            }
        }
    }
}

/// The arrivals of units that were visited. Most of them are never asked for, so single claims are looked up only then.
#[derive(Default)]
struct Arrivals {
    /// The number of the latest claim that was looked up.
    latest: u64,
    /// The groups of single claims that were not.
    singles: Vec<GroupId>,
}

impl Arrivals {
    fn note(&mut self, cluster: &Cluster, claims: Demanded<'_>) {
        match claims {
            Demanded::Single(group) => self.singles.push(group),
            Demanded::Claims(_) => self.latest = self.latest.max(claims.latest(cluster)),
        }
    }

    /// The number of the latest claim of all units so far, in the order in which claims were added.
    fn latest(&mut self, cluster: &Cluster) -> u64 {
        let singles = self.singles.drain(..).map(|group| Demanded::Single(group).latest(cluster));
        self.latest = singles.fold(self.latest, u64::max);
        self.latest
    }
}

fn least_core(cluster: &Cluster) -> u64 {
    let cores = cluster.classes().map(|(_, class)| class.request().least_core()).filter(|core| *core > 0);
    cores.min().unwrap_or(0)
}

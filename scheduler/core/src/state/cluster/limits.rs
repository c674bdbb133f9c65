//! The bounds of queues that claims never exceed.

use crate::state::cluster::Cluster;
use crate::state::queue::Queue;
use crate::state::resources::{Charge, DEVICE_MEMORY};
use crate::vocabulary::allowance::Allowance;
use crate::vocabulary::queue_spec::QueueId;

/// A bound that a charge would exceed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exceeded {
    /// The queue with the bound: the claim's own, or one above it.
    pub(crate) queue: QueueId,
    /// The resource, by its number in the cluster's list of resources.
    pub(crate) resource: usize,
    /// What is held there now: by all claims, or, for a quota, by the claims that may not be evicted.
    pub(crate) held: u64,
    /// How much would be added.
    pub(crate) asked: u64,
    /// How much is kept for a group that has waited longer. 0: the bound would be exceeded without that.
    pub(crate) kept: u64,
    /// The bound.
    pub(crate) bound: u64,
    /// Whether the bound is the quota, for claims that may not be evicted; otherwise it is the limit.
    pub(crate) is_quota: bool,
}

impl Exceeded {
    /// The least bound that would not be exceeded.
    pub(crate) fn needed(&self) -> u64 {
        self.held.saturating_add(self.kept).saturating_add(self.asked)
    }
}

/// Whether a queue and all queues above it may hold `charge`. `booked`: it is already part of what they hold.
///
/// No claim exceeds a limit. Claims that may not be evicted also stay within the quota of each resource that a queue
/// names: borrowed room must be given back when its owner asks.
pub(crate) fn check(
    cluster: &Cluster,
    queue: QueueId,
    charge: &Charge,
    preemptible: bool,
    booked: bool,
) -> Result<(), Exceeded> {
    exceeded(cluster, queue, charge, preemptible, booked).next().map_or(Ok(()), Err)
}

/// All bounds that [`check`] finds passed.
pub(crate) fn exceeded<'a>(
    cluster: &'a Cluster,
    queue: QueueId,
    charge: &'a Charge,
    preemptible: bool,
    booked: bool,
) -> impl Iterator<Item = Exceeded> + 'a {
    let binding = cluster.queues().path(queue).filter(move |(_, queue)| queue.may_bind(preemptible));
    let bounds = binding.flat_map(move |(id, queue)| bounds(cluster, id, queue, charge, preemptible));
    bounds.filter_map(move |bound| {
        let held = if booked { bound.held.saturating_sub(bound.asked) } else { bound.held };
        Some(Exceeded { held, ..bound }).filter(|exceeded| exceeded.needed() > exceeded.bound)
    })
}

/// The bounds of a queue that `charge` would not exceed, but would exceed together with what is kept for a group.
/// `kept`: how much that is of a resource, and, if the flag is set, of its quota.
pub(crate) fn exceeded_by_kept<'a>(
    cluster: &'a Cluster,
    id: QueueId,
    charge: &'a Charge,
    preemptible: bool,
    kept: impl Fn(usize, bool) -> u64 + 'a,
) -> impl Iterator<Item = Exceeded> + 'a {
    let queue = cluster.queue(id).filter(|queue| queue.may_bind(preemptible));
    let bounds = queue.into_iter().flat_map(move |queue| bounds(cluster, id, queue, charge, preemptible));
    bounds.filter_map(move |bound| {
        let with = Exceeded { kept: kept(bound.resource, bound.is_quota), ..bound };
        (bound.needed() <= bound.bound && with.needed() > bound.bound).then_some(with)
    })
}

/// The bounds of a queue that concern `charge`, exceeded or not.
fn bounds<'a>(
    cluster: &'a Cluster,
    id: QueueId,
    queue: &'a Queue,
    charge: &'a Charge,
    preemptible: bool,
) -> impl Iterator<Item = Exceeded> + 'a {
    charge.parts().flat_map(move |(resource, asked)| {
        let limit = queue.named_allowance(resource).and_then(|allowance| allowance.limit);
        let quota = binding_quota(cluster, queue, resource).filter(|_| !preemptible);
        let bounds = [
            (limit, queue.allocated().get(resource), false),
            (quota, queue.allocated_non_preemptible().get(resource), true),
        ];
        bounds.into_iter().filter_map(move |(bound, held, is_quota)| {
            Some(Exceeded { queue: id, resource, held, asked, kept: 0, bound: bound?, is_quota })
        })
    })
}

/// The most of a resource that a queue's claims that may not be evicted may hold, by its quota.
fn binding_quota(cluster: &Cluster, queue: &Queue, resource: usize) -> Option<u64> {
    // A quota of 0 CPU or memory promises none. It does not forbid device work to use any.
    let binds = |quota: &u64| *quota > 0 || cluster.resources().is_of_devices(resource);
    queue.named_allowance(resource).and_then(|allowance| allowance.quota).filter(binds)
}

/// The most of a resource that claims that may not be evicted may hold, by the quotas of their queue and of those above
/// it.
pub(crate) fn quota(cluster: &Cluster, queue: QueueId, resource: usize) -> Option<u64> {
    cluster.queues().path(queue).filter_map(|(_, queue)| binding_quota(cluster, queue, resource)).min()
}

/// Whether a queue, or one above it, has a bound that depends on the model of devices.
pub(crate) fn binds_models(cluster: &Cluster, queue: QueueId) -> bool {
    let binds = |allowance: Allowance| allowance.limit.is_some() || allowance.quota.is_some();
    cluster.queues().path(queue).any(|(_, queue)| {
        (DEVICE_MEMORY..cluster.resources().len()).any(|number| queue.named_allowance(number).is_some_and(binds))
    })
}

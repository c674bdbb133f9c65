//! What a queue may never exceed.

use crate::cluster::Cluster;
use crate::queue::QueueId;
use crate::resource::Charge;

/// Which bound a charge would pass, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exceeded {
    /// The queue, or one above it.
    pub(crate) queue: QueueId,
    /// The number of the resource.
    pub(crate) resource: usize,
    /// What is held there now: by all claims, or by those that may not be evicted.
    pub(crate) held: u64,
    /// What would be added.
    pub(crate) asked: u64,
    /// The bound.
    pub(crate) bound: u64,
    /// Whether the bound is the quota, for claims that may not be evicted; otherwise it is the limit.
    pub(crate) is_quota: bool,
}

/// Whether a queue and all above it may hold `charge` on top of what they hold.
///
/// Nobody exceeds a limit. Claims that may not be evicted stay within the quota of each resource that a queue names: what is borrowed
/// must be given back when its owner asks.
pub(crate) fn check(cluster: &Cluster, queue: QueueId, charge: &Charge, preemptible: bool) -> Result<(), Exceeded> {
    for (id, queue) in cluster.queues().path(queue) {
        for (number, asked) in charge.parts() {
            let Some(allowance) = queue.named_allowance(number) else { continue };
            let (all, fixed) = (queue.allocated().get(number), queue.allocated_non_preemptible().get(number));
            let exceeded = |held: u64, bound: u64, is_quota: bool| Exceeded {
                queue: id,
                resource: number,
                held,
                asked,
                bound,
                is_quota,
            };
            if let Some(limit) = allowance.limit.filter(|limit| all.saturating_add(asked) > *limit) {
                return Err(exceeded(all, limit, false));
            }
            if let Some(quota) = allowance.quota.filter(|quota| !preemptible && fixed.saturating_add(asked) > *quota) {
                return Err(exceeded(fixed, quota, true));
            }
        }
    }
    Ok(())
}

/// Whether a queue and all above it hold no more than they may: after a change that is still on trial.
pub(crate) fn check_now(cluster: &Cluster, queue: QueueId, preemptible: bool) -> Result<(), Exceeded> {
    for (id, queue) in cluster.queues().path(queue) {
        for number in 0..cluster.resources().len() {
            let Some(allowance) = queue.named_allowance(number) else { continue };
            let (all, fixed) = (queue.allocated().get(number), queue.allocated_non_preemptible().get(number));
            let exceeded = |held: u64, bound: u64, is_quota: bool| Exceeded {
                queue: id,
                resource: number,
                held,
                asked: 0,
                bound,
                is_quota,
            };
            if let Some(limit) = allowance.limit.filter(|limit| all > *limit) {
                return Err(exceeded(all, limit, false));
            }
            if let Some(quota) = allowance.quota.filter(|quota| !preemptible && fixed > *quota) {
                return Err(exceeded(fixed, quota, true));
            }
        }
    }
    Ok(())
}

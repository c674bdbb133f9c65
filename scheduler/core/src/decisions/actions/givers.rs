//! Which queues have more than their fair share.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::shares::Shares;
use crate::state::cluster::Cluster;
use crate::state::queue::Queue;
use crate::vocabulary::queue_spec::QueueId;

/// The leaf queues that hold more than their fair share of a resource, by its number: found out once for a cycle, and
/// kept true as claims are placed and evicted.
#[derive(Clone, Debug)]
pub(super) struct Givers {
    by_resource: BTreeMap<usize, BTreeSet<QueueId>>,
}

impl Givers {
    pub(super) fn of(cluster: &Cluster, shares: &Shares) -> Self {
        let mut givers = Self { by_resource: BTreeMap::new() };
        for queue in cluster.queues().parents_first() {
            givers.update(cluster, shares, queue);
        }
        givers
    }

    /// Takes in that a queue holds something else than before.
    pub(super) fn update(&mut self, cluster: &Cluster, shares: &Shares, queue: QueueId) {
        for (number, entitlement) in shares.get(queue).iter().enumerate() {
            let gives =
                |state: &Queue| state.children().is_empty() && state.allocated().get(number) > entitlement.fair_share;
            if cluster.queue(queue).is_some_and(gives) {
                self.by_resource.entry(number).or_default().insert(queue);
            } else if let Some(queues) = self.by_resource.get_mut(&number) {
                queues.remove(&queue);
            }
        }
    }

    /// The queues that have too much of any of these resources, each with all of those.
    pub(super) fn among(&self, resources: &[usize]) -> BTreeMap<QueueId, Vec<usize>> {
        let mut among: BTreeMap<QueueId, Vec<usize>> = BTreeMap::new();
        for resource in resources {
            for queue in self.by_resource.get(resource).into_iter().flatten() {
                among.entry(*queue).or_default().push(*resource);
            }
        }
        among
    }
}

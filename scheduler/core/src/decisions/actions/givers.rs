//! Queues that hold more than their fair share, or more than their guaranteed part.

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::shares::{Right, Shares};
use crate::state::cluster::Cluster;
use crate::state::queue::Queue;
use crate::vocabulary::queue_spec::QueueId;

/// For each resource, by number, the leaf queues that hold more of it than a right gives them. They are found once for
/// a cycle, and updated as claims are placed and evicted.
#[derive(Clone, Debug)]
pub(super) struct Givers {
    right: Right,
    by_resource: BTreeMap<usize, BTreeSet<QueueId>>,
}

impl Givers {
    pub(super) fn of(cluster: &Cluster, shares: &Shares, right: Right) -> Self {
        let mut givers = Self { right, by_resource: BTreeMap::new() };
        for queue in cluster.queues().parents_first() {
            givers.update(cluster, shares, queue);
        }
        givers
    }

    /// Updates a queue after its holdings have changed.
    pub(super) fn update(&mut self, cluster: &Cluster, shares: &Shares, queue: QueueId) {
        for number in 0..shares.get(queue).len() {
            let share = shares.by_right(self.right, queue, number);
            let gives = |state: &Queue| state.children().is_empty() && state.allocated().get(number) > share;
            if cluster.queue(queue).is_some_and(gives) {
                self.by_resource.entry(number).or_default().insert(queue);
            } else if let Some(queues) = self.by_resource.get_mut(&number) {
                queues.remove(&queue);
            }
        }
    }

    /// Whether any other queue than this one holds too much of any of these resources.
    pub(super) fn is_any_other_among(&self, resources: &[usize], queue: QueueId) -> bool {
        let mut queues = resources.iter().filter_map(|resource| self.by_resource.get(resource)).flatten();
        queues.any(|giver| *giver != queue)
    }

    /// The queues that hold too much of any of these resources, each with all such resources.
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

//! What queues could hold of what they ask for. What can never be placed must not take shares from other queues.

use crate::state::cluster::{Cluster, limits};
use crate::state::group::Group;
use crate::state::queue::Queue;
use crate::state::resources::Amounts;
use crate::vocabulary::beside::Beside;
use crate::vocabulary::queue_spec::{QueueId, QueueSpec};

/// Knows what queues ask for in vain at present.
pub(super) struct Usable<'a> {
    cluster: &'a Cluster,
    /// What groups ask for that wait for members.
    incomplete: Beside<OfIncomplete, QueueSpec>,
}

#[derive(Clone, Debug, Default)]
struct OfIncomplete {
    all: Amounts,
    /// The part that may not be evicted.
    non_preemptible: Amounts,
}

impl<'a> Usable<'a> {
    pub(super) fn of(cluster: &'a Cluster) -> Self {
        let mut incomplete: Beside<OfIncomplete, QueueSpec> = Beside::default();
        // A gang that has lost a member may get another one soon. Meanwhile its share keeps the others running.
        let waits = |group: &&Group| group.placed_members() == 0 && group.lacks_members();
        for group in cluster.declared_groups().filter(waits) {
            let of_queue = incomplete.of(group.queue());
            for class in group.members().filter_map(|claim| cluster.class(cluster.class_of(claim)?)) {
                of_queue.all.add(class.most_charge());
                if !group.spec().preemptible {
                    of_queue.non_preemptible.add(class.most_charge());
                }
            }
        }
        Self { cluster, incomplete }
    }

    /// What the claims of a leaf queue, placed or pending, could hold of a resource.
    pub(super) fn amount(&self, id: QueueId, queue: &Queue, number: usize) -> u64 {
        let incomplete = self.incomplete.get(id);
        let without = |asked: &Amounts, of: fn(&OfIncomplete) -> &Amounts| {
            asked.get(number).saturating_sub(incomplete.map_or(0, |incomplete| of(incomplete).get(number)))
        };
        let all = without(queue.requested(), |of| &of.all);
        let stays = without(queue.requested_non_preemptible(), |of| &of.non_preemptible);
        if stays == 0 {
            return all;
        }
        // Claims that may not be evicted never hold more than the quota.
        let beyond_quota = limits::quota(self.cluster, id, number).map_or(0, |quota| stays.saturating_sub(quota));
        all.saturating_sub(beyond_quota)
    }
}

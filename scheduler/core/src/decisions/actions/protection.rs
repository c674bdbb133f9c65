//! Protection of placed units from being disturbed.

use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::vocabulary::claim::Action;
use crate::vocabulary::protection::Protection;
use crate::vocabulary::queue_spec::{QueueId, QueueSpec};

/// How long claims of a queue must have run before an action may take them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MinRuntime {
    queue_min_runtime_ms: u64,
    now_ms: u64,
}

impl MinRuntime {
    /// The minimum run time of a queue, or else that of the nearest queue above it that sets one.
    pub(crate) fn of(cluster: &Cluster, queue: QueueId, action: Action) -> Self {
        let says = |spec: &QueueSpec| match action {
            Action::Reclaim => spec.reclaim_min_runtime_ms,
            _ => spec.preempt_min_runtime_ms,
        };
        let min_runtime_ms = cluster.queues().path(queue).find_map(|(_, queue)| says(queue.spec()));
        Self { queue_min_runtime_ms: min_runtime_ms.unwrap_or(0), now_ms: cluster.now_ms() }
    }

    /// Whether a placed unit must stay.
    pub(super) fn protects(self, cluster: &Cluster, group: &Group, unit: &Unit) -> bool {
        self.reason(cluster, group, unit).is_some()
    }

    /// Why a placed unit must stay: it may not be evicted at all, its node has lately refused to evict it, or it has
    /// not run for long enough. A unit that is placed but does not run yet loses nothing, so its run time does not
    /// protect it.
    pub(crate) fn reason(self, cluster: &Cluster, group: &Group, unit: &Unit) -> Option<Protection> {
        let spec = group.spec();
        if !spec.preemptible {
            return Some(Protection::NonPreemptible);
        }
        let left_alone = unit.claims.iter().filter_map(|claim| cluster.left_alone_ms(*claim)).max();
        if let Some(left_ms) = left_alone {
            return Some(Protection::EvictionRefused { left_ms });
        }
        let min_runtime_ms = self.queue_min_runtime_ms.max(spec.min_runtime_ms);
        let left_ms = |since_ms: u64| min_runtime_ms.saturating_sub(self.now_ms.saturating_sub(since_ms));
        let started = unit.claims.iter().filter_map(|claim| cluster.started_ms(*claim));
        let left_ms = started.map(left_ms).max().filter(|left_ms| *left_ms > 0)?;
        Some(Protection::MinRuntime { left_ms })
    }
}

/// Until when a unit's group has to wait before others are evicted for it; `None`: the wait is over. The wait begins
/// when the group was added, or when the unit itself was evicted.
pub(super) fn delayed_until_ms(cluster: &Cluster, unit: &Unit) -> Option<u64> {
    let group = cluster.group(unit.group)?;
    let displaced = unit.claims.iter().filter_map(|claim| cluster.displaced(*claim)).map(|cause| cause.at_ms).max();
    let since_ms = displaced.unwrap_or(0).max(group.added_ms());
    let until_ms = since_ms.saturating_add(group.spec().preemption_delay_ms);
    (until_ms > cluster.now_ms()).then_some(until_ms)
}

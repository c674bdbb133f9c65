//! Nodes that are kept for a unit that has waited long, so that smaller ones do not take for ever what it is waiting
//! for.
//!
//! Small claims go where a large one does not fit: nothing is gained by leaving that free. But if they always do, the
//! large one never finds enough in one place. So the first unit of a queue that could fit at all, if it would be within
//! the queue's fair share and has waited for room longer than
//! [`Settings::hold_after_ms`](crate::Settings::hold_after_ms), is given the nodes that are nearest to having room:
//! nothing new is placed there until it is.

mod nearest;

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::entitled::EntitledSets;
use crate::decisions::shares::{Right, Shares};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

pub(crate) use nearest::Together;
use nearest::{Kind, fits_when_empty, nearest, will_do};

/// Who waits since when, and which nodes are kept for whom.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    blocked_since_ms: BTreeMap<GroupId, u64>,
    nodes: BTreeMap<NodeId, GroupId>,
    by_group: BTreeMap<GroupId, BTreeSet<NodeId>>,
    /// Whether units would fit if everybody else were gone, of those who were asked about last.
    fits_when_empty: BTreeMap<Kind, bool>,
    /// When they were asked about; see [`Cluster::specs_changed`].
    specs_changed: u64,
    /// Those of them for whom there is nothing to keep while others keep what they do.
    hopeless: BTreeSet<Kind>,
}

impl Holds {
    /// Opens the nodes that are kept for a group; to be closed again by [`Holds::close`] if it was not placed.
    pub(crate) fn open(&self, cluster: &mut Cluster, group: GroupId) {
        self.set(cluster, group, false);
    }

    /// Keeps the nodes of a group again.
    pub(crate) fn close(&self, cluster: &mut Cluster, group: GroupId) {
        self.set(cluster, group, true);
    }

    fn set(&self, cluster: &mut Cluster, group: GroupId, held: bool) {
        for node in self.of(group) {
            // A node that is gone is not held, and forgotten at the end of the cycle.
            let _ = cluster.set_held(node, held);
        }
    }

    /// Who waits for room as one of the first of its queue, and since when.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        self.blocked_since_ms.iter().map(|(group, since_ms)| (*group, *since_ms))
    }

    /// Notes that a group waits since then, and that these nodes are kept for it.
    pub(crate) fn restore(&mut self, group: GroupId, since_ms: u64, nodes: Vec<NodeId>) {
        self.blocked_since_ms.insert(group, since_ms);
        nodes.into_iter().for_each(|node| self.keep(node, group));
    }

    fn keep(&mut self, node: NodeId, group: GroupId) {
        if let Some(before) = self.nodes.insert(node, group) {
            self.forget(node, before);
        }
        self.by_group.entry(group).or_default().insert(node);
    }

    fn forget(&mut self, node: NodeId, group: GroupId) {
        if let Some(nodes) = self.by_group.get_mut(&group) {
            nodes.remove(&node);
            if nodes.is_empty() {
                self.by_group.remove(&group);
            }
        }
    }

    /// Opens the nodes that are kept for groups that are gone, or have nothing to place any more.
    pub(crate) fn release_gone(&mut self, cluster: &mut Cluster) {
        self.retain(cluster, |cluster, group| cluster.group(group).is_some_and(Group::has_waiting));
    }

    /// Opens the nodes that need not be kept for a group any more, and forgets nodes that are gone.
    fn retain(&mut self, cluster: &mut Cluster, keeps: impl Fn(&Cluster, GroupId) -> bool) {
        for (node, group) in self.nodes.clone() {
            if cluster.node(node).is_none() || !keeps(cluster, group) {
                self.nodes.remove(&node);
                self.forget(node, group);
                self.hopeless.clear();
                let _ = cluster.set_held(node, false);
            }
        }
    }

    /// The nodes that are kept, and for whom.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (NodeId, GroupId)> + '_ {
        self.nodes.iter().map(|(node, group)| (*node, *group))
    }

    /// Keeps all nodes that are kept for anybody.
    pub(crate) fn close_all(&self, cluster: &mut Cluster) {
        for node in self.nodes.keys() {
            let _ = cluster.set_held(*node, true);
        }
    }

    /// The groups for which nodes are kept.
    pub(crate) fn holders(&self) -> BTreeSet<GroupId> {
        self.by_group.keys().copied().collect()
    }

    /// Since when a group waits for room as one of the first of its queue.
    pub(crate) fn blocked_since_ms(&self, group: GroupId) -> Option<u64> {
        self.blocked_since_ms.get(&group).copied()
    }

    /// The nodes that are kept for a group.
    pub(crate) fn of(&self, group: GroupId) -> impl Iterator<Item = NodeId> + '_ {
        self.by_group.get(&group).into_iter().flatten().copied()
    }

    /// Takes in which units, the first ones of each queue, have found no room in this cycle, and keeps nodes for those
    /// that have waited for `after_ms`; `nodes_max` nodes at most.
    pub(crate) fn update(
        &mut self,
        cluster: &mut Cluster,
        shares: &Shares,
        blocked: &[Unit],
        after_ms: Option<u64>,
        nodes_max: usize,
    ) {
        let now_ms = cluster.now_ms();
        let since = std::mem::take(&mut self.blocked_since_ms);
        for unit in blocked {
            self.blocked_since_ms.insert(unit.group, since.get(&unit.group).copied().unwrap_or(now_ms));
        }
        let mut sets = EntitledSets::default();
        let mut is_entitled = |cluster: &Cluster, unit: &Unit| {
            let entitled = sets.know(cluster, shares, unit.queue);
            entitled.would_be(Right::FairShare, unit.rank, &unit.least_charge(cluster))
        };
        // Who is no longer blocked needs no nodes, who is no longer entitled may have none, and nobody needs those that
        // have become too small, or another sort.
        let units: BTreeMap<GroupId, &Unit> = blocked.iter().map(|unit| (unit.group, unit)).collect();
        let mut kept = BTreeSet::new();
        for (group, nodes) in &self.by_group {
            let nodes: Vec<NodeId> = nodes.iter().copied().collect();
            let serves = |unit: &&&Unit| is_entitled(cluster, unit) && will_do(cluster, unit, &nodes);
            kept.extend(units.get(group).filter(serves).map(|unit| unit.group));
        }
        self.retain(cluster, |_, group| kept.contains(&group));
        let Some(after_ms) = after_ms else { return };
        let mut due: Vec<(u64, &Unit)> = blocked
            .iter()
            .filter(|unit| !self.by_group.contains_key(&unit.group))
            .filter_map(|unit| Some((self.blocked_since_ms(unit.group)?, unit)))
            .filter(|(since_ms, _)| now_ms.saturating_sub(*since_ms) >= after_ms)
            .collect();
        due.sort_by_key(|(since_ms, unit)| (*since_ms, unit.rank));
        let queue_of = |group: &GroupId| cluster.group(*group).map(Group::queue);
        let mut served: BTreeSet<QueueId> = self.by_group.keys().filter_map(queue_of).collect();
        let (known, hopeless) = (std::mem::take(&mut self.fits_when_empty), std::mem::take(&mut self.hopeless));
        let is_same = self.specs_changed == cluster.specs_changed();
        let (known, hopeless) = if is_same { (known, hopeless) } else { Default::default() };
        self.specs_changed = cluster.specs_changed();
        for (_, unit) in due {
            // One unit of a queue at a time: the first for which it helps.
            if served.contains(&unit.queue) {
                continue;
            }
            let left = nodes_max.saturating_sub(self.nodes.len());
            if left == 0 {
                break;
            }
            if !is_entitled(cluster, unit) {
                continue;
            }
            let kind = Kind::of(cluster, unit);
            let fits = || known.get(&kind).copied().unwrap_or_else(|| fits_when_empty(cluster, unit, &kind));
            let fits = *self.fits_when_empty.entry(kind.clone()).or_insert_with(fits);
            // Who would not fit if everybody else were gone gains nothing by waiting for that.
            if !fits || self.hopeless.contains(&kind) {
                continue;
            }
            // What is kept meanwhile makes none of these hopeful.
            let nodes = if hopeless.contains(&kind) { Vec::new() } else { nearest(cluster, unit, &kind, left) };
            // Where others are decides for who has rules about them, and that changes.
            if nodes.is_empty() && !kind.has_peers(cluster) {
                self.hopeless.insert(kind);
            }
            for node in nodes {
                if cluster.set_held(node, true).is_ok() {
                    self.keep(node, unit.group);
                    served.insert(unit.queue);
                }
            }
        }
    }
}

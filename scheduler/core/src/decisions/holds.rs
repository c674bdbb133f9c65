//! Nodes that are kept for a unit that has waited long, so that smaller claims do not for ever take the room that it
//! waits for. What is kept of its queue's bounds is in [`bounds`].
//!
//! Small claims may use room in which a large unit does not fit: leaving it free would gain nothing. But if they always
//! do, the large unit never finds enough room in one place. So nodes are kept for it if it is the first unit of its
//! queue that could fit at all, if it would be within the queue's fair share, and if it has waited for room longer than
//! [`Settings::hold_after_ms`](crate::Settings::hold_after_ms). It is given the nodes that are nearest to having room.
//! Nothing else is placed there until the unit is placed, or until nothing has left them for as long as that.

mod bounds;
mod kind;
mod nearest;
mod packing;
mod patience;

use std::collections::{BTreeMap, BTreeSet};

use crate::decisions::entitled::EntitledSets;
use crate::decisions::plan::Pending;
use crate::decisions::shares::Shares;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::group::Group;
use crate::vocabulary::claim::NodeId;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

pub(crate) use bounds::{BoundWait, Keeping, KeptBounds};
use kind::Kind;
use nearest::{fits_when_empty, nearest, will_do};
pub(crate) use patience::Patience;

/// The most kinds of units of which it is known whether they would fit on an empty cluster.
const KINDS_MAX: usize = 4096;

/// The groups that wait for room, since when they wait, and the nodes that are kept for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    blocked_since_ms: BTreeMap<GroupId, u64>,
    nodes: BTreeMap<NodeId, GroupId>,
    by_group: BTreeMap<GroupId, BTreeSet<NodeId>>,
    /// For groups that wait and had nodes kept for them.
    patience: BTreeMap<GroupId, Patience>,
    /// For the units that were asked about: whether they would fit on an otherwise empty cluster.
    fits_when_empty: BTreeMap<Kind, bool>,
    /// The value of [`Cluster::specs_changed`] at which they were asked about.
    specs_changed: u64,
    /// Those of the units that were last asked about for which there is nothing to keep as long as the other kept nodes
    /// stay the same.
    hopeless: BTreeSet<Kind>,
    /// What is kept of queues' bounds.
    pub(crate) bounds: KeptBounds,
}

impl Holds {
    /// Opens the nodes that are kept for a group. If the group is then not placed, [`Holds::close`] must close them
    /// again.
    pub(crate) fn open(&self, cluster: &mut Cluster, group: GroupId) {
        self.set(cluster, group, false);
    }

    /// Keeps the nodes of a group again, after [`Holds::open`].
    pub(crate) fn close(&self, cluster: &mut Cluster, group: GroupId) {
        self.set(cluster, group, true);
    }

    fn set(&self, cluster: &mut Cluster, group: GroupId, held: bool) {
        for node in self.of(group) {
            // A node that is gone is not held. It is forgotten at the end of the cycle.
            let _ = cluster.set_held(node, held);
        }
    }

    /// The groups that wait for room among the first of their queue, and since when, in milliseconds.
    pub(crate) fn blocked(&self) -> impl Iterator<Item = (GroupId, u64)> + '_ {
        self.blocked_since_ms.iter().map(|(group, since_ms)| (*group, *since_ms))
    }

    /// What is known of the nodes that were kept for a group that waits.
    pub(crate) fn patience(&self, group: GroupId) -> Option<&Patience> {
        self.patience.get(&group)
    }

    /// Notes since when a group has waited, that these nodes are kept for it, and what is known of earlier ones.
    pub(crate) fn restore(&mut self, group: GroupId, since_ms: u64, nodes: Vec<NodeId>, patience: Patience) {
        self.blocked_since_ms.insert(group, since_ms);
        self.patience.extend(Some(patience).filter(|of| *of != Patience::default()).map(|of| (group, of)));
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

    /// Opens the nodes that are kept for groups that are gone or have no pending members.
    pub(crate) fn release_gone(&mut self, cluster: &mut Cluster) {
        self.retain(cluster, |cluster, group| cluster.group(group).is_some_and(Group::has_waiting));
        self.bounds.release_gone(cluster);
    }

    /// Opens the nodes that need no longer be kept for a group, and forgets nodes that are gone.
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

    /// The kept nodes, each with the group that it is kept for.
    pub(crate) fn kept(&self) -> impl Iterator<Item = (NodeId, GroupId)> + '_ {
        self.nodes.iter().map(|(node, group)| (*node, *group))
    }

    /// Keeps all nodes again that are kept for any group.
    pub(crate) fn close_all(&self, cluster: &mut Cluster) {
        for node in self.nodes.keys() {
            let _ = cluster.set_held(*node, true);
        }
    }

    /// The groups for which nodes are kept.
    pub(crate) fn holders(&self) -> BTreeSet<GroupId> {
        self.by_group.keys().copied().collect()
    }

    /// Since when a group has waited for room among the first of its queue, in milliseconds.
    pub(crate) fn blocked_since_ms(&self, group: GroupId) -> Option<u64> {
        self.blocked_since_ms.get(&group).copied()
    }

    /// The nodes that are kept for a group.
    pub(crate) fn of(&self, group: GroupId) -> impl Iterator<Item = NodeId> + '_ {
        self.by_group.get(&group).into_iter().flatten().copied()
    }

    /// Whether rules about places keep a unit's members together, so that emptier nodes could help it even if there is
    /// room for each of them somewhere.
    pub(crate) fn is_bound(cluster: &Cluster, unit: &Unit) -> bool {
        Kind::of(cluster, unit).is_bound()
    }

    /// Whether a unit has waited long, but would not fit on an otherwise empty cluster.
    pub(crate) fn waits_in_vain(&mut self, cluster: &Cluster, unit: &Unit, after_ms: Option<u64>) -> bool {
        let (since_ms, now_ms) = (self.blocked_since_ms(unit.group), cluster.now_ms());
        let waited_ms = since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms));
        let is_due = after_ms.is_some_and(|after_ms| waited_ms >= after_ms);
        is_due && !self.would_fit(cluster, unit, &Kind::of(cluster, unit))
    }

    /// Whether a unit would fit on an otherwise empty cluster.
    fn would_fit(&mut self, cluster: &Cluster, unit: &Unit, kind: &Kind) -> bool {
        if self.specs_changed != cluster.specs_changed() || self.fits_when_empty.len() > KINDS_MAX {
            self.specs_changed = cluster.specs_changed();
            self.fits_when_empty.clear();
            self.hopeless.clear();
        }
        match self.fits_when_empty.get(kind) {
            Some(fits) => *fits,
            None => {
                let fits = fits_when_empty(cluster, unit, kind);
                self.fits_when_empty.insert(kind.clone(), fits);
                fits
            }
        }
    }

    /// Notes which units are the first that wait for their queues' bounds: see [`KeptBounds::update`].
    pub(crate) fn update_bounds(
        &mut self,
        cluster: &Cluster,
        shares: &Shares,
        pending: &[Pending],
        placed: &BTreeSet<GroupId>,
        after_ms: Option<u64>,
    ) {
        let mut bounds = std::mem::take(&mut self.bounds);
        let would_fit = |unit: &Unit| self.would_fit(cluster, unit, &Kind::of(cluster, unit));
        let mut sets = EntitledSets::default();
        let is_entitled = |unit: &Unit| sets.would_be_entitled(cluster, shares, unit, &unit.least_charge(cluster));
        bounds.update(cluster, pending, placed, after_ms, would_fit, is_entitled);
        self.bounds = bounds;
    }

    /// Notes which of the first units of each queue found no room in this cycle. Keeps nodes for those that have waited
    /// for `after_ms`, at most `nodes_max` nodes. If no other ones are kept, a unit may have up to a quarter of all
    /// nodes kept: otherwise a small cluster would keep none for a gang. The waits of groups that are `still_waiting`
    /// go on even if they are not among these units now.
    pub(crate) fn update(
        &mut self,
        cluster: &mut Cluster,
        shares: &Shares,
        blocked: &[Unit],
        still_waiting: &BTreeSet<GroupId>,
        after_ms: Option<u64>,
        nodes_max: usize,
    ) {
        let now_ms = cluster.now_ms();
        let before = std::mem::take(&mut self.blocked_since_ms);
        let now_first: BTreeSet<GroupId> = blocked.iter().map(|unit| unit.group).collect();
        let goes_on = |group: &GroupId| now_first.contains(group) || still_waiting.contains(group);
        self.blocked_since_ms = before.into_iter().filter(|(group, _)| goes_on(group)).collect();
        blocked.iter().for_each(|unit| _ = self.blocked_since_ms.entry(unit.group).or_insert(now_ms));
        let mut sets = EntitledSets::default();
        let mut is_entitled =
            |cluster: &Cluster, unit: &Unit| sets.would_be_entitled(cluster, shares, unit, &unit.least_charge(cluster));
        self.patience.retain(|group, _| self.blocked_since_ms.contains_key(group));
        // A unit that is no longer blocked needs no nodes. A unit that is no longer entitled may keep none. Nodes that
        // have become too small or of another sort are of no use, nor are those that nothing leaves.
        let holders = blocked.iter().filter(|unit| self.by_group.contains_key(&unit.group));
        let units: BTreeMap<GroupId, &Unit> = holders.map(|unit| (unit.group, unit)).collect();
        let mut kept = BTreeSet::new();
        for (group, nodes) in &self.by_group {
            let nodes: Vec<NodeId> = nodes.iter().copied().collect();
            let serves = |unit: &&&Unit| is_entitled(cluster, unit) && will_do(cluster, unit, &nodes);
            if units.get(group).filter(serves).is_none() {
                continue;
            }
            let patience = self.patience.entry(*group).or_default();
            match after_ms.is_none_or(|after_ms| patience.lasts(cluster, &nodes, after_ms)) {
                true => _ = kept.insert(*group),
                false => patience.give_up(cluster, &nodes),
            }
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
        if self.specs_changed != cluster.specs_changed() {
            self.hopeless.clear();
        }
        let hopeless = std::mem::take(&mut self.hopeless);
        for (_, unit) in due {
            // At most one unit of a queue at a time: the first for which keeping nodes helps.
            if served.contains(&unit.queue) {
                continue;
            }
            let left = match self.nodes.is_empty() {
                true => nodes_max.max(cluster.nodes().count() / 4),
                false => nodes_max.saturating_sub(self.nodes.len()),
            };
            if left == 0 {
                break;
            }
            if !is_entitled(cluster, unit) {
                continue;
            }
            let kind = Kind::of(cluster, unit);
            // A unit that would not fit on an otherwise empty cluster gains nothing by waiting for that.
            if !self.would_fit(cluster, unit, &kind) || self.hopeless.contains(&kind) {
                continue;
            }
            // Nodes that are kept meanwhile cannot make one of these units hopeful.
            let among = |without: &BTreeSet<NodeId>| match hopeless.contains(&kind) {
                true => Vec::new(),
                false => nearest(cluster, unit, &kind, left, without),
            };
            let given_up = self.patience.get_mut(&unit.group).map(|patience| &mut patience.given_up);
            let nodes = match given_up.filter(|given_up| !given_up.is_empty()) {
                None => among(&BTreeSet::new()),
                Some(given_up) => Some(among(given_up)).filter(|nodes| !nodes.is_empty()).unwrap_or_else(|| {
                    given_up.clear();
                    among(given_up)
                }),
            };
            // For a unit with rules about peers, the places of others decide, and those change.
            if nodes.is_empty() && !kind.has_peers(cluster) {
                self.hopeless.insert(kind);
            }
            for node in &nodes {
                if cluster.set_held(*node, true).is_ok() {
                    self.keep(*node, unit.group);
                    served.insert(unit.queue);
                }
            }
            if served.contains(&unit.queue) {
                self.patience.entry(unit.group).or_default().begin(cluster, &nodes);
            }
        }
    }
}

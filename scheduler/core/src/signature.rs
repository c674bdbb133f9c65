//! What is known to fail, so that it is not tried again: in a queue of thousands of equal claims one search is enough.

use std::collections::{BTreeMap, BTreeSet};

use crate::class::ClassId;
use crate::cluster::Cluster;
use crate::gang::Unplaceable;
use crate::group::{GroupId, GroupPlacement};
use crate::plan::Obstacle;
use crate::queue::{QueueId, Turn};
use crate::resource::Charge;
use crate::unit::Unit;

/// Units with equal signatures need the same room.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Signature {
    One(ClassId),
    Many(Vec<ClassId>),
}

impl Signature {
    /// A unit's signature; `None` if its group has rules of its own about where members may be.
    pub(crate) fn of(cluster: &Cluster, unit: &Unit) -> Option<Self> {
        let group = cluster.group(unit.group)?.spec();
        let has_rules = group.spread != GroupPlacement::default()
            || group.sub_groups.iter().any(|sub_group| sub_group.required_level.is_some());
        if has_rules {
            return None;
        }
        if let [claim] = unit.claims[..] {
            return Some(Self::One(cluster.class_of(claim)?));
        }
        let mut classes: Vec<ClassId> = unit.claims.iter().filter_map(|claim| cluster.class_of(*claim)).collect();
        classes.sort_unstable();
        Some(Self::Many(classes))
    }
}

/// What has failed since something became free last: there is no room for units of a signature, or a queue may not hold
/// more of them.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    no_room: BTreeMap<Signature, Unplaceable>,
    limited: BTreeMap<(QueueId, bool, Signature), Unplaceable>,
    /// Groups for which nodes are kept that others may not have: what others have found says nothing of them.
    holders: BTreeSet<GroupId>,
}

impl Failures {
    /// Nothing is known yet; nodes are kept for `holders`.
    pub(crate) fn with_holders(holders: BTreeSet<GroupId>) -> Self {
        Self { holders, ..Self::default() }
    }

    /// What the next unit of a group takes at least; `None` if there is none to try, which is noted in `waiting`.
    pub(crate) fn look(
        &self,
        cluster: &Cluster,
        turn: &Turn,
        waiting: &mut Vec<(GroupId, Obstacle)>,
    ) -> Option<Charge> {
        match self.next(cluster, turn.group) {
            Ok(unit) => Some(unit?.least_charge(cluster)),
            Err(obstacle) => {
                waiting.push((turn.group, obstacle));
                None
            }
        }
    }

    /// The next unit of a group that is not known to fail; if all are, what is in the way of the first.
    pub(crate) fn next(&self, cluster: &Cluster, group: GroupId) -> Result<Option<Unit>, Obstacle> {
        let Some(first) = Unit::next(cluster, group).map_err(Obstacle::MembersMissing)? else { return Ok(None) };
        match self.obstacle(cluster, &first) {
            None => Ok(Some(first)),
            Some(obstacle) => {
                let other = first.others(cluster).find(|unit| self.obstacle(cluster, unit).is_none());
                other.map(Some).ok_or(obstacle)
            }
        }
    }

    fn obstacle(&self, cluster: &Cluster, unit: &Unit) -> Option<Obstacle> {
        let retry_at_ms = unit.claims.iter().map(|claim| cluster.failures(*claim).1).max();
        if let Some(retry_at_ms) = retry_at_ms.filter(|retry_at_ms| *retry_at_ms > cluster.now_ms()) {
            return Some(Obstacle::RetriedAt(retry_at_ms));
        }
        self.of(cluster, unit).map(Obstacle::Unplaceable)
    }

    fn of(&self, cluster: &Cluster, unit: &Unit) -> Option<Unplaceable> {
        if (self.no_room.is_empty() && self.limited.is_empty()) || self.holders.contains(&unit.group) {
            return None;
        }
        let signature = Signature::of(cluster, unit)?;
        if let Some(failure) = self.no_room.get(&signature) {
            return Some(*failure);
        }
        self.limited.get(&(unit.queue, unit.is_preemptible(cluster), signature)).copied()
    }

    /// Notes that a unit could not be placed; says whether that is known from now on.
    pub(crate) fn note(&mut self, cluster: &Cluster, unit: &Unit, failure: Unplaceable) -> bool {
        self.holders.remove(&unit.group);
        let Some(signature) = Signature::of(cluster, unit) else { return false };
        match failure {
            Unplaceable::Limit(_) => {
                self.limited.insert((unit.queue, unit.is_preemptible(cluster), signature), failure);
            }
            Unplaceable::NoRoom { .. } | Unplaceable::Topology { .. } => {
                self.no_room.insert(signature, failure);
            }
        }
        true
    }
}

//! What is known to fail, so that it is not tried again: in a queue of thousands of equal claims one search is enough.

use std::collections::BTreeMap;

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

/// What has failed since something became free last: there is no room for units of a signature, or a queue may not hold more of them.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    no_room: BTreeMap<Signature, Unplaceable>,
    limited: BTreeMap<(QueueId, bool, Signature), Unplaceable>,
}

impl Failures {
    /// What the next unit of a group takes at least; `None` if it is known to fail, which is noted in `waiting`.
    pub(crate) fn look(
        &self,
        cluster: &Cluster,
        turn: &Turn,
        waiting: &mut Vec<(GroupId, Obstacle)>,
    ) -> Option<Charge> {
        match Unit::next(cluster, turn.group) {
            Ok(unit) => {
                let unit = unit?;
                let retry_at_ms = unit.claims.iter().map(|claim| cluster.failures(*claim).1).max();
                if let Some(retry_at_ms) = retry_at_ms.filter(|retry_at_ms| *retry_at_ms > cluster.now_ms()) {
                    waiting.push((turn.group, Obstacle::RetriedAt(retry_at_ms)));
                    return None;
                }
                match self.of(cluster, &unit) {
                    Some(failure) => {
                        waiting.push((turn.group, Obstacle::Unplaceable(failure)));
                        None
                    }
                    None => Some(unit.least_charge(cluster)),
                }
            }
            Err(missing) => {
                waiting.push((turn.group, Obstacle::MembersMissing(missing)));
                None
            }
        }
    }

    fn of(&self, cluster: &Cluster, unit: &Unit) -> Option<Unplaceable> {
        if self.no_room.is_empty() && self.limited.is_empty() {
            return None;
        }
        let signature = Signature::of(cluster, unit)?;
        if let Some(failure) = self.no_room.get(&signature) {
            return Some(*failure);
        }
        self.limited.get(&(unit.queue, unit.is_preemptible(cluster), signature)).copied()
    }

    /// Notes that a unit could not be placed.
    pub(crate) fn note(&mut self, cluster: &Cluster, unit: &Unit, failure: Unplaceable) {
        let Some(signature) = Signature::of(cluster, unit) else { return };
        match failure {
            Unplaceable::Limit(_) => {
                self.limited.insert((unit.queue, unit.is_preemptible(cluster), signature), failure);
            }
            Unplaceable::NoRoom { .. } | Unplaceable::Topology { .. } => {
                self.no_room.insert(signature, failure);
            }
        }
    }
}

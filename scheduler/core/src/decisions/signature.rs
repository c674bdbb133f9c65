//! What is known to fail, so that it is not tried again: in a queue of thousands of equal claims one search is enough.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::decisions::beyond::Beyond;
use crate::decisions::gang::Unplaceable;
use crate::decisions::plan::Obstacle;
use crate::decisions::unit::Unit;
use crate::state::class::{Class, ClassId};
use crate::state::cluster::Cluster;
use crate::state::cluster::limits::binds_models;
use crate::state::group::Group;
use crate::state::queue::Single;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

/// Classes that have no room which others are compared with.
const TOO_LARGE_MAX: usize = 64;

/// Units with equal signatures need the same room.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Signature {
    One(ClassId),
    Many(Vec<ClassId>),
    /// Of a group with rules of its own about where members may be.
    Own(GroupId, Vec<ClassId>),
}

impl Signature {
    /// A unit's signature.
    pub(crate) fn of(cluster: &Cluster, unit: &Unit) -> Self {
        let mut classes: Vec<ClassId> = unit.claims.iter().filter_map(|claim| cluster.class_of(*claim)).collect();
        classes.sort_unstable();
        if cluster.group(unit.group).is_some_and(Group::has_rules) {
            return Self::Own(unit.group, classes);
        }
        match classes[..] {
            [class] => Self::One(class),
            _ => Self::Many(classes),
        }
    }
}

/// What has failed since something became free last: there is no room for units of a signature, or none within what a
/// queue may hold.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    no_room: BTreeMap<Signature, Unplaceable>,
    limited: BTreeMap<(QueueId, bool, Signature), Unplaceable>,
    /// Classes of which not even one task has room, the last ones: who asks for more has none either.
    too_large: VecDeque<ClassId>,
    /// Groups for which nodes are kept that others may not have: what others have found says nothing of them.
    holders: BTreeSet<GroupId>,
    /// Of groups of which more than one member waits beyond the core: which of those are still to be tried.
    beyond: BTreeMap<GroupId, Beyond>,
}

impl Failures {
    /// Nothing is known yet; nodes are kept for `holders`.
    pub(crate) fn with_holders(holders: BTreeSet<GroupId>) -> Self {
        Self { holders, ..Self::default() }
    }

    /// The next unit of a group that is not known to fail; if all are, what is in the way of the first.
    pub(crate) fn next(&mut self, cluster: &Cluster, group: GroupId) -> Result<Option<Unit>, Obstacle> {
        if let Some(unit) = self.next_beyond(cluster, group) {
            return Ok(Some(unit));
        }
        let Some(first) = Unit::next(cluster, group).map_err(Obstacle::MembersMissing)? else { return Ok(None) };
        let Some(obstacle) = self.obstacle(cluster, &first) else { return Ok(Some(first)) };
        self.other_core(cluster, &first, obstacle).map(Some).ok_or(obstacle)
    }

    /// The first of the members that wait beyond a group's core which is not known to fail, if there are several.
    fn next_beyond(&mut self, cluster: &Cluster, group: GroupId) -> Option<Unit> {
        let mut beyond = match self.beyond.remove(&group) {
            Some(beyond) => beyond,
            None => Beyond::of(cluster, group)?,
        };
        let next = beyond.next(cluster, group, |unit| self.obstacle(cluster, unit).is_some());
        self.beyond.insert(group, beyond);
        next
    }

    /// A core that is not known to fail, without the members that had no room in those that are.
    fn other_core(&self, cluster: &Cluster, first: &Unit, mut obstacle: Obstacle) -> Option<Unit> {
        let mut without = BTreeSet::new();
        loop {
            let Obstacle::Unplaceable(Unplaceable::NoRoom { claim, .. }) = obstacle else { return None };
            if !without.insert(cluster.class_of(claim)?) {
                return None;
            }
            let core = first.core_without(cluster, &without)?;
            match self.obstacle(cluster, &core) {
                None => return Some(core),
                Some(next) => obstacle = next,
            }
        }
    }

    fn obstacle(&self, cluster: &Cluster, unit: &Unit) -> Option<Obstacle> {
        let retry_at_ms = unit.claims.iter().map(|claim| cluster.failures(*claim).1).max();
        if let Some(retry_at_ms) = retry_at_ms.filter(|retry_at_ms| *retry_at_ms > cluster.now_ms()) {
            return Some(Obstacle::RetriedAt(retry_at_ms));
        }
        if self.is_empty() || self.holders.contains(&unit.group) {
            return None;
        }
        let signature = Signature::of(cluster, unit);
        self.of(unit.queue, unit.is_preemptible(cluster), signature).map(Obstacle::Unplaceable)
    }

    /// What is known to be in the way of a single claim of a queue.
    pub(crate) fn of_single(&self, queue: QueueId, group: GroupId, single: Single) -> Option<Unplaceable> {
        if self.is_empty() || self.holders.contains(&group) {
            return None;
        }
        self.of(queue, single.preemptible, Signature::One(single.class))
    }

    fn is_empty(&self) -> bool {
        self.no_room.is_empty() && self.limited.is_empty()
    }

    fn of(&self, queue: QueueId, preemptible: bool, signature: Signature) -> Option<Unplaceable> {
        if let Some(failure) = self.no_room.get(&signature) {
            return Some(*failure);
        }
        self.limited.get(&(queue, preemptible, signature)).copied()
    }

    /// Whether a single task can have no room because something smaller has none.
    pub(crate) fn is_hopeless(&self, cluster: &Cluster, unit: &Unit) -> bool {
        let request = |class: ClassId| cluster.class(class).map(Class::request);
        let Signature::One(class) = Signature::of(cluster, unit) else { return false };
        let Some(this) = request(class).filter(|_| !self.holders.contains(&unit.group)) else { return false };
        self.too_large.iter().filter_map(|class| request(*class)).any(|smaller| this.covers(smaller))
    }

    /// Notes that a unit could not be placed.
    pub(crate) fn note(&mut self, cluster: &Cluster, unit: &Unit, failure: Unplaceable) {
        self.holders.remove(&unit.group);
        let signature = Signature::of(cluster, unit);
        match failure {
            Unplaceable::Limit(_) => {
                self.limited.insert((unit.queue, unit.is_preemptible(cluster), signature), failure);
            }
            // A queue that may have no more of a model packs a gang's members otherwise than others do.
            Unplaceable::NoRoom { .. }
                if matches!(signature, Signature::Many(_)) && binds_models(cluster, unit.queue) =>
            {
                self.limited.insert((unit.queue, unit.is_preemptible(cluster), signature), failure);
            }
            Unplaceable::NoRoom { .. } | Unplaceable::Topology { .. } | Unplaceable::TooManyWays => {
                if let Signature::One(class) = signature
                    && !self.is_hopeless(cluster, unit)
                {
                    self.too_large.push_front(class);
                    self.too_large.truncate(TOO_LARGE_MAX);
                }
                self.no_room.insert(signature, failure);
            }
        }
    }
}

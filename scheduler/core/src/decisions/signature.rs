//! Units that are known to fail, so that they are not tried again: for thousands of equal claims one search is enough.

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

/// The most classes without room that other classes are compared with.
const TOO_LARGE_MAX: usize = 64;

/// What decides which room a unit needs: units with equal signatures need the same room.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Signature {
    One(ClassId),
    Many(Vec<ClassId>),
    /// Of a group that has its own rules about where members may be.
    Own(GroupId, Vec<ClassId>),
}

impl Signature {
    /// A unit's signature.
    pub(crate) fn of(cluster: &Cluster, unit: &Unit) -> Self {
        let has_rules = cluster.group(unit.group).is_some_and(Group::has_rules);
        // Most units have one member.
        if let [claim] = unit.claims[..]
            && !has_rules
            && let Some(class) = cluster.class_of(claim)
        {
            return Self::One(class);
        }
        let mut classes: Vec<ClassId> = unit.claims.iter().filter_map(|claim| cluster.class_of(*claim)).collect();
        classes.sort_unstable();
        if has_rules { Self::Own(unit.group, classes) } else { Self::Many(classes) }
    }
}

/// What has failed since room last became free: signatures without room, or without room within a queue's bounds.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    no_room: BTreeMap<Signature, Unplaceable>,
    limited: BTreeMap<(QueueId, bool, Signature), Unplaceable>,
    /// The latest classes of which not even one task has room. A task that asks for more has no room either.
    too_large: VecDeque<ClassId>,
    /// Groups that have nodes kept for them. The failures of other groups say nothing about those nodes.
    holders: BTreeSet<GroupId>,
    /// For groups with more than one pending member beyond the core: which of those members are still to be tried.
    beyond: BTreeMap<GroupId, Beyond>,
}

impl Failures {
    /// Knows of no failures yet. Nodes are kept for `holders`.
    pub(crate) fn with_holders(holders: BTreeSet<GroupId>) -> Self {
        Self { holders, ..Self::default() }
    }

    /// The next unit of a group that is not known to fail. If all units are known to fail, the obstacle of the first.
    pub(crate) fn next(&mut self, cluster: &Cluster, group: GroupId) -> Result<Option<Unit>, Obstacle> {
        if let Some(unit) = self.next_beyond(cluster, group) {
            return Ok(Some(unit));
        }
        let Some(first) = Unit::next(cluster, group).map_err(Obstacle::MembersMissing)? else { return Ok(None) };
        let Some(obstacle) = self.obstacle(cluster, &first) else { return Ok(Some(first)) };
        self.other_core(cluster, &first, obstacle).map(Some).ok_or(obstacle)
    }

    /// The first pending member beyond a group's core that is not known to fail, if the group has several such members.
    fn next_beyond(&mut self, cluster: &Cluster, group: GroupId) -> Option<Unit> {
        let mut beyond = match self.beyond.remove(&group) {
            Some(beyond) => beyond,
            None => Beyond::of(cluster, group)?,
        };
        let next = beyond.next(cluster, group, |unit| self.obstacle(cluster, unit).is_some());
        self.beyond.insert(group, beyond);
        next
    }

    /// A core that is not known to fail. It leaves out the members that found no room in cores that are known to fail.
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
        if self.is_empty() || self.is_holder(unit.group) {
            return None;
        }
        let signature = Signature::of(cluster, unit);
        self.of(unit.queue, unit.is_preemptible(cluster), signature).map(Obstacle::Unplaceable)
    }

    /// The known obstacle of a single claim of a queue. Groups that have nodes kept for them are an exception.
    pub(crate) fn of_single(&self, queue: QueueId, single: Single) -> Option<Unplaceable> {
        if self.is_empty() {
            return None;
        }
        self.of(queue, single.preemptible, Signature::One(single.class))
    }

    /// Whether a group has nodes kept for it, about which the failures of others say nothing.
    pub(crate) fn is_holder(&self, group: GroupId) -> bool {
        self.holders.contains(&group)
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

    /// Whether a single task can have no room because a smaller task has none.
    pub(crate) fn is_hopeless(&self, cluster: &Cluster, unit: &Unit) -> bool {
        let request = |class: ClassId| cluster.class(class).map(Class::request);
        let Signature::One(class) = Signature::of(cluster, unit) else { return false };
        let Some(this) = request(class).filter(|_| !self.is_holder(unit.group)) else { return false };
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
            // A queue that may hold no more of a model packs a gang's members differently from other queues.
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

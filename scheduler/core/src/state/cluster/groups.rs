//! Pod groups and the queues that they wait in.

use std::cmp::Reverse;

use super::Cluster;
use crate::state::cluster::limits::{self, Exceeded};
use crate::state::group::Group;
use crate::state::queue::{Single, Turn};
use crate::state::resources::Charge;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::event::EventError;
use crate::vocabulary::pod_group::{GroupId, PodGroup};
use crate::vocabulary::queue_spec::QueueId;

impl Cluster {
    pub(super) fn add_group(&mut self, spec: PodGroup) -> Result<GroupId, EventError> {
        spec.validate()?;
        if self.groups.named(&spec.namespace, &spec.name).is_some() {
            return Err(EventError::GroupExists { namespace: spec.namespace, name: spec.name });
        }
        let queue = self.queue_for(&spec.queue, &spec.namespace)?;
        self.note_declared_group(queue, true);
        Ok(self.groups.add(spec, queue, self.now_ms))
    }

    /// Changes a group's configuration. Returns the claims that are pending again: members of a gang that has not
    /// started and now needs more members.
    pub(super) fn replace_group(&mut self, id: GroupId, spec: PodGroup) -> Result<Vec<ClaimId>, EventError> {
        let group = self.groups.get(id).filter(|group| group.is_declared()).ok_or(EventError::NoSuchGroup(id))?;
        let names = |spec: &PodGroup| {
            let sub_groups: Vec<String> = spec.sub_groups.iter().map(|sub_group| sub_group.name.clone()).collect();
            (spec.name.clone(), spec.namespace.clone(), spec.queue.clone(), sub_groups)
        };
        if names(group.spec()) != names(&spec) {
            return Err(EventError::GroupRenamed(group.spec().name.clone()));
        }
        spec.validate()?;
        let (before, preemptible, queue) = (group.spec().clone(), spec.preemptible, group.queue());
        let members: Vec<ClaimId> = group.members().filter(|claim| self.allocation(*claim).is_some()).collect();
        self.rebook_group(id, &members, spec);
        // A claim that may not be evicted must stay within the quota: borrowed room must be given back when its owner
        // asks.
        let mut charge = Charge::default();
        members.iter().filter_map(|claim| self.charge(*claim)).for_each(|each| charge.add(&each));
        if let Err(exceeded) = limits::check(self, queue, &charge, preemptible, true)
            && exceeded.is_quota
            && before.preemptible
        {
            self.rebook_group(id, &members, before);
            return Err(self.exceeded(&exceeded));
        }
        let displaced = self.release_short(id)?;
        self.start_together(id);
        self.note_staleness(id);
        Ok(displaced)
    }

    /// Changes a group's configuration, and books its members anew, some of which are placed: the books separate claims
    /// that may be evicted from those that may not.
    fn rebook_group(&mut self, id: GroupId, placed: &[ClaimId], spec: PodGroup) {
        let members: Vec<ClaimId> = self.groups.get(id).into_iter().flat_map(Group::members).collect();
        members.iter().for_each(|claim| self.book_requested(*claim, false));
        placed.iter().for_each(|claim| self.book_placed(*claim, false));
        self.change_group(id, |group| group.replace_spec(spec));
        placed.iter().for_each(|claim| self.book_placed(*claim, true));
        members.iter().for_each(|claim| self.book_requested(*claim, true));
    }

    /// The error for a claim that would make a queue hold more than it may.
    pub(super) fn exceeded(&self, exceeded: &Exceeded) -> EventError {
        let queue = self.queue(exceeded.queue).map(|queue| queue.spec().name.clone()).unwrap_or_default();
        EventError::QueueExceeded {
            queue,
            resource: self.resources.resource(exceeded.resource),
            held: exceeded.held,
            asked: exceeded.asked,
            bound: exceeded.bound,
        }
    }

    pub(super) fn remove_group(&mut self, id: GroupId) -> Result<(), EventError> {
        let group = self.groups.get(id).filter(|group| group.is_declared()).ok_or(EventError::NoSuchGroup(id))?;
        if !group.is_empty() {
            return Err(EventError::GroupInUse(group.spec().name.clone()));
        }
        let queue = group.queue();
        self.groups.remove(id);
        self.note_declared_group(queue, false);
        Ok(())
    }

    fn note_declared_group(&mut self, queue: QueueId, is_declared: bool) {
        if let Some(queue) = self.queues.get_mut(queue) {
            queue.note_declared_group(is_declared);
        }
    }

    /// Changes a group and updates its entries in its queue.
    pub(super) fn change_group(&mut self, id: GroupId, change: impl FnOnce(&mut Group)) {
        let Some(group) = self.groups.get_mut(id) else { return };
        let before = (waiting_turn(id, group), placed_turn(id, group));
        change(group);
        let after = (waiting_turn(id, group), placed_turn(id, group));
        let queue = group.queue();
        let single = self.single(id);
        let Some(queue) = self.queues.get_mut(queue) else { return };
        if before.0 != after.0 {
            before.0.into_iter().for_each(|turn| queue.forget_waiting(&turn));
        }
        if before.0 != after.0 || single.is_some() {
            after.0.into_iter().for_each(|turn| queue.note_waiting(turn, single));
        }
        if before.1 != after.1 {
            before.1.into_iter().for_each(|turn| queue.note_placed(turn, false));
            after.1.into_iter().for_each(|turn| queue.note_placed(turn, true));
        }
    }

    /// Updates what decides whether a single pending claim can be placed: its request has changed, or it has failed to
    /// start.
    pub(super) fn note_single(&mut self, id: GroupId) {
        let single = self.single(id);
        let Some(group) = self.groups.get(id) else { return };
        let Some(turn) = waiting_turn(id, group) else { return };
        if let Some(queue) = self.queues.get_mut(group.queue()) {
            queue.note_waiting(turn, single);
        }
    }

    /// The only claim of a group that was not declared. `None` after a failed start: then the claim itself is looked
    /// at.
    fn single(&self, id: GroupId) -> Option<Single> {
        let group = self.groups.get(id).filter(|group| !group.is_declared())?;
        let state = self.claims.get(group.members().next()?).filter(|state| state.failures == 0)?;
        Some(Single { class: state.claim.class, preemptible: group.spec().preemptible })
    }

    /// The turn of a group's next unit among the pending ones.
    pub(crate) fn turn(&self, id: GroupId) -> Option<Turn> {
        waiting_turn(id, self.groups.get(id)?)
    }

    /// Removes the group of a single claim, once that claim is gone.
    pub(super) fn forget_single_group(&mut self, id: GroupId) {
        if self.groups.get(id).is_some_and(|group| !group.is_declared() && group.is_empty()) {
            self.groups.remove(id);
        }
    }

    /// Notes since when a group is incomplete. To be called only when a change is final.
    pub(super) fn note_staleness(&mut self, id: GroupId) {
        let now_ms = self.now_ms;
        if let Some(group) = self.groups.get_mut(id) {
            group.note_staleness(now_ms);
        }
    }
}

fn waiting_turn(id: GroupId, group: &Group) -> Option<Turn> {
    group.has_waiting().then(|| turn(id, group, group.has_minimum()))
}

fn placed_turn(id: GroupId, group: &Group) -> Option<Turn> {
    (group.placed_members() > 0).then(|| turn(id, group, false))
}

fn turn(id: GroupId, group: &Group, elastic: bool) -> Turn {
    Turn { priority: Reverse(group.spec().priority), elastic, group: id }
}

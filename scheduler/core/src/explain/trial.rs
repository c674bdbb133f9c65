//! A copy of the state, in which changes are tried.

use std::collections::BTreeSet;

use crate::decisions::gang::{FreeRoom, Unplaceable, demanding_first, place_unit};
use crate::decisions::placement::{Engine, Policy};
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::statement::Statement;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::event::Event;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueSpec;
use crate::vocabulary::request::Request;

/// A copy of a cluster and of the engine that follows it.
pub(crate) struct Trial {
    cluster: Cluster,
    engine: Engine<Box<dyn Policy>>,
    group: GroupId,
}

impl Trial {
    /// A trial for the unit that a group wants placed next.
    pub(crate) fn new(cluster: Cluster, engine: Engine<Box<dyn Policy>>, group: GroupId) -> Self {
        Self { cluster, engine, group }
    }

    /// The members of a unit in the order in which places are sought for them.
    pub(crate) fn in_order(&mut self, unit: &Unit) -> Vec<ClaimId> {
        demanding_first(&self.cluster, &mut self.engine, &unit.claims)
    }

    /// The cluster's state in this trial.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Whether the group's next unit can be placed into free room.
    pub(crate) fn admits(&mut self) -> bool {
        Unit::next(&self.cluster, self.group).ok().flatten().is_some_and(|unit| self.place(&unit).is_ok())
    }

    /// Whether the group's next unit can be placed after these events. The events are undone afterwards.
    pub(crate) fn admits_after(&mut self, events: Vec<Event>) -> bool {
        self.after(events, Self::admits).unwrap_or(false)
    }

    /// Whether the group's next unit can be placed once a claim has ended.
    pub(crate) fn admits_without(&mut self, claim: ClaimId) -> bool {
        let Ok(Some(unit)) = Unit::next(&self.cluster, self.group) else { return false };
        let mut statement = Statement::new(&mut self.cluster);
        statement.evict(claim).is_ok() && place_unit(&mut statement, &mut self.engine, &unit, &mut FreeRoom).is_ok()
    }

    /// Tries to place a unit in free room. The unit does not stay placed.
    pub(crate) fn place(&mut self, unit: &Unit) -> Result<(), Unplaceable> {
        place_unit(&mut Statement::new(&mut self.cluster), &mut self.engine, unit, &mut FreeRoom)
    }

    /// Places a unit, looks at the cluster, and takes the unit back. `None` if the unit cannot be placed.
    pub(crate) fn placed<T>(&mut self, unit: &Unit, look: impl FnOnce(&Cluster) -> T) -> Option<T> {
        let mut statement = Statement::new(&mut self.cluster);
        place_unit(&mut statement, &mut self.engine, unit, &mut FreeRoom).ok()?;
        Some(look(statement.cluster()))
    }

    /// How many of a unit's members find room one after another, if those that find none are left out.
    pub(crate) fn find_room(&mut self, unit: &Unit) -> usize {
        let members = self.in_order(unit);
        let mut statement = Statement::new(&mut self.cluster);
        let (mut placed, mut without) = (0, BTreeSet::new());
        for claim in members {
            // Where one has found no room, another one like it does not.
            let class = statement.cluster().class_of(claim);
            if without.contains(&class) {
                continue;
            }
            let member = Unit { claims: vec![claim], ..unit.clone() };
            match place_unit(&mut statement, &mut self.engine, &member, &mut FreeRoom) {
                Ok(()) => placed += 1,
                Err(_) => _ = without.insert(class),
            }
        }
        placed
    }

    /// The result of `find` without the bounds of the group's queue and of the queues above it.
    pub(crate) fn unbounded<T>(&mut self, find: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let queue = self.cluster.group(self.group)?.queue();
        let specs = self.cluster.queues().path(queue).map(|(_, queue)| queue.spec().clone());
        let unbounded = specs.map(|mut spec: QueueSpec| {
            spec.allowances.values_mut().for_each(|allowance| (allowance.quota, allowance.limit) = (None, None));
            Event::QueueChanged(spec)
        });
        let events = unbounded.collect();
        self.after(events, find)
    }

    /// The result of `find` after these events, which are undone afterwards; `None` if one of them is refused.
    pub(crate) fn after<T>(&mut self, events: Vec<Event>, find: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let mut undo = Vec::with_capacity(events.len());
        let mut all = true;
        for event in events {
            let back = self.reverse(&event);
            all &= back.is_some() && self.cluster.apply(event).is_ok();
            if !all {
                break;
            }
            undo.extend(back);
        }
        let found = all.then(|| find(self));
        for back in undo.into_iter().rev() {
            let undone = self.cluster.apply(back);
            debug_assert!(undone.is_ok(), "what was so before can be so again: {undone:?}");
        }
        found
    }

    /// The event that undoes another one, if there is one.
    fn reverse(&self, event: &Event) -> Option<Event> {
        Some(match event {
            Event::ClaimResized(claim, _) => {
                Event::ClaimResized(*claim, Request::clone(&self.cluster.claim(*claim)?.request))
            }
            Event::NodeRelabelled(node, _) => Event::NodeRelabelled(*node, self.cluster.node(*node)?.spec().into()),
            Event::QueueChanged(spec) => {
                Event::QueueChanged(self.cluster.queue(self.cluster.queue_named(&spec.name)?)?.spec().clone())
            }
            Event::NamespaceChanged(spec) => Event::NamespaceChanged(self.cluster.namespace(&spec.name)?.clone()),
            Event::PodGroupChanged(group, _) => {
                Event::PodGroupChanged(*group, self.cluster.group(*group)?.spec().clone())
            }
            _ => return None,
        })
    }
}

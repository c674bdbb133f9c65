//! The pending members beyond a group's core, and which of them are still to be tried.

use std::collections::{BTreeMap, VecDeque};

use crate::decisions::unit::Unit;
use crate::state::class::ClassId;
use crate::state::cluster::Cluster;
use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::pod_group::GroupId;

/// The members of a group that could be placed one by one, while a cycle places some of them. If one of them finds no
/// room, no other of its class does. So only the first of each class is tried: a group may have thousands of members.
#[derive(Debug, Default)]
pub(crate) struct Beyond {
    /// By class, the pending members in the order in which they were added, each with its number in that order.
    waiting: BTreeMap<ClassId, VecDeque<(u64, ClaimId)>>,
    /// The classes that are still to be tried, by the number of their first member.
    open: BTreeMap<u64, ClassId>,
}

impl Beyond {
    /// For a group that has its minimum and more than one pending member.
    pub(crate) fn of(cluster: &Cluster, id: GroupId) -> Option<Self> {
        let group = cluster.group(id).filter(|group| group.has_minimum() && group.waiting_members() > 1)?;
        let mut beyond = Self::default();
        for claim in group.waiting().filter(|claim| cluster.failures(*claim).1 <= cluster.now_ms()) {
            if let Some((class, number)) = cluster.class_of(claim).zip(cluster.sequence(claim)) {
                let waiting = beyond.waiting.entry(class).or_default();
                if waiting.is_empty() {
                    beyond.open.insert(number, class);
                }
                waiting.push_back((number, claim));
            }
        }
        Some(beyond)
    }

    /// The first member that is not known to fail. `fails` says whether a unit is known to fail.
    pub(crate) fn next(&mut self, cluster: &Cluster, group: GroupId, fails: impl Fn(&Unit) -> bool) -> Option<Unit> {
        while let Some((_, class)) = self.open.pop_first() {
            let Some(waiting) = self.waiting.get_mut(&class) else { continue };
            while waiting.front().is_some_and(|(_, claim)| cluster.allocation(*claim).is_some()) {
                waiting.pop_front();
            }
            let Some((number, claim)) = waiting.front().copied() else { continue };
            // Members of other classes may come before the next one of this class.
            if self.open.first_key_value().is_some_and(|(other, _)| *other < number) {
                self.open.insert(number, class);
                continue;
            }
            if let Some(unit) = Unit::beyond(cluster, group, claim).filter(|unit| !fails(unit)) {
                self.open.insert(number, class);
                return Some(unit);
            }
        }
        None
    }
}

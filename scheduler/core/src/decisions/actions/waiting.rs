//! Those who wait, and who of them are alike.

use std::collections::{BTreeMap, VecDeque};

use crate::decisions::gang::Unplaceable;
use crate::decisions::plan::{Obstacle, Pending, Refusal};
use crate::decisions::signature::Signature;
use crate::decisions::unit::Unit;
use crate::state::cluster::Cluster;
use crate::state::queue::Single;
use crate::vocabulary::pod_group::GroupId;
use crate::vocabulary::queue_spec::QueueId;

/// So often a claim may have failed to start, and others still make way for it.
const FAILURES_MAX: u32 = 3;

/// The groups of which something waits, in the order of turns. Of those for whom others may make way, who wait in the
/// same queue and need the same stand behind one another: where the first is refused, so would be the others.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) pending: Vec<Pending>,
    /// By place, those that are alike.
    pub(super) alike: Vec<Alike>,
    /// By what their next units need, and whether they may be evicted: those who may not are bound by a quota.
    known: BTreeMap<QueueId, BTreeMap<(Signature, bool), usize>>,
}

/// Groups of a queue whose next units need the same.
#[derive(Debug)]
pub(super) struct Alike {
    pub(super) queue: QueueId,
    /// The numbers among what is pending of those that may be tried.
    pub(super) numbers: VecDeque<usize>,
}

impl Waiting {
    /// Adds a group that can be tried by its next unit only.
    pub(crate) fn add(&mut self, cluster: &Cluster, queue: QueueId, group: GroupId, obstacle: Obstacle) {
        let number = self.pending.len();
        self.pending.push(Pending { group, queue, alike: None, obstacle, refusal: None });
        if !may_try(obstacle) {
            return;
        }
        let Ok(Some(unit)) = Unit::next(cluster, group) else { return };
        if !starts(cluster, &unit) {
            return;
        }
        match unit.sorts(cluster).nth(1) {
            None => {
                let place = self.place(queue, (Signature::of(cluster, &unit), unit.is_preemptible(cluster)));
                self.join(place, number);
            }
            // A group with members of several sorts is like no other.
            Some(_) => self.join_new(queue, number),
        }
    }

    /// Adds a single claim.
    pub(crate) fn add_single(&mut self, queue: QueueId, group: GroupId, single: Single, obstacle: Obstacle) {
        let number = self.pending.len();
        let place = self.place(queue, (Signature::One(single.class), single.preemptible));
        self.pending.push(Pending { group, queue, alike: Some(place), obstacle, refusal: None });
        if may_try(obstacle) {
            self.join(place, number);
        }
    }

    /// The place of those alike, which may be new.
    fn place(&mut self, queue: QueueId, sort: (Signature, bool)) -> usize {
        let place = *self.known.entry(queue).or_default().entry(sort).or_insert(self.alike.len());
        if place == self.alike.len() {
            self.alike.push(Alike { queue, numbers: VecDeque::new() });
        }
        place
    }

    fn join(&mut self, place: usize, number: usize) {
        self.alike.get_mut(place).into_iter().for_each(|alike| alike.numbers.push_back(number));
    }

    fn join_new(&mut self, queue: QueueId, number: usize) {
        self.alike.push(Alike { queue, numbers: VecDeque::from([number]) });
    }

    /// Puts a group that has been placed by itself: what it could use beyond that is not what those behind it need.
    /// Answers its place.
    pub(super) fn separate(&mut self, queue: QueueId, number: usize) -> usize {
        self.join_new(queue, number);
        self.alike.len() - 1
    }

    /// The first of those alike.
    pub(super) fn first(&self, place: usize) -> Option<GroupId> {
        let number = self.alike.get(place)?.numbers.front()?;
        self.pending.get(*number).map(|pending| pending.group)
    }

    /// Takes the first of those alike out. Answers its number among what is pending.
    pub(super) fn pop(&mut self, place: usize) -> Option<usize> {
        self.alike.get_mut(place)?.numbers.pop_front()
    }

    /// Notes that nobody makes way for one of those who wait.
    pub(super) fn refuse(&mut self, number: usize, refusal: Refusal) {
        self.pending.get_mut(number).into_iter().for_each(|pending| pending.refuse(refusal));
    }

    /// The same for all that are alike.
    pub(super) fn refuse_alike(&mut self, place: usize, refusal: Refusal) {
        for number in self.alike.get(place).into_iter().flat_map(|alike| &alike.numbers) {
            self.pending.get_mut(*number).into_iter().for_each(|pending| pending.refuse(refusal));
        }
    }
}

impl Pending {
    fn refuse(&mut self, refusal: Refusal) {
        self.refusal = Some(self.refusal.map_or(refusal, |before| before.more_telling(refusal)));
    }
}

/// Whether others may make way for a unit: who cannot be started takes what is free, but nobody else must stop for one
/// more try.
pub(super) fn starts(cluster: &Cluster, unit: &Unit) -> bool {
    unit.claims
        .iter()
        .map(|claim| cluster.failures(*claim))
        .all(|(failures, retry_at_ms)| failures < FAILURES_MAX && retry_at_ms <= cluster.now_ms())
}

fn may_try(obstacle: Obstacle) -> bool {
    match obstacle {
        Obstacle::Unplaceable(Unplaceable::Limit(exceeded)) => !exceeded.is_quota,
        Obstacle::Unplaceable(_) => true,
        Obstacle::MembersMissing(_) | Obstacle::RetriedAt(_) => false,
    }
}

//! Whose turn it is: the order in which waiting units of all queues are looked at.
//!
//! At each level of the tree that queue goes first which, with its next unit, stays within its fair share; then the one
//! that stays within its quota; then the one of higher priority; then the one with the smaller dominant share with the
//! next unit, and without it; then the older one. Within a leaf units go by rank.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::decisions::fair_share::DominantShare;
use crate::decisions::shares::Shares;
use crate::state::cluster::Cluster;
use crate::state::queue::{Queue, Turn};
use crate::state::resources::Charge;
use crate::vocabulary::queue_spec::QueueId;

/// What decides between sibling queues; the least goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SiblingKey {
    above_fair_share: bool,
    above_quota: bool,
    priority: Reverse<i32>,
    with_next: DominantShare,
    without: DominantShare,
    /// Older queues stand first.
    age: usize,
}

#[derive(Debug)]
struct Place {
    queue: QueueId,
    parent: Option<usize>,
    key: Option<SiblingKey>,
    /// The children that have something to place.
    children: BTreeSet<(SiblingKey, usize)>,
    /// Of a leaf: where it has got to, and what its next unit takes.
    next: Option<(Turn, Charge)>,
}

/// Knows which of the groups that wait are to be looked at.
pub(crate) trait Candidates {
    /// The first group of a leaf queue, from a turn on, that is to be looked at, and what its next unit takes at least.
    fn next(&mut self, cluster: &Cluster, queue: QueueId, from: Bound<Turn>) -> Option<(Turn, Charge)>;
}

/// Goes through the waiting units of all queues, one after another.
#[derive(Debug)]
pub(crate) struct Turns {
    places: Vec<Place>,
    index: BTreeMap<QueueId, usize>,
    roots: BTreeSet<(SiblingKey, usize)>,
}

/// The turn of a unit: the first part of a group that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Next {
    place: usize,
    pub(crate) queue: QueueId,
    pub(crate) turn: Turn,
}

impl Turns {
    /// Begins.
    pub(crate) fn new(cluster: &Cluster, shares: &Shares, candidates: &mut impl Candidates) -> Self {
        let order = cluster.queues().parents_first();
        let index: BTreeMap<QueueId, usize> = order.iter().enumerate().map(|(index, id)| (*id, index)).collect();
        let mut place = |queue: &QueueId| Place {
            queue: *queue,
            parent: cluster.queue(*queue).and_then(Queue::parent).and_then(|parent| index.get(&parent).copied()),
            key: None,
            children: BTreeSet::new(),
            next: candidates.next(cluster, *queue, Bound::Unbounded),
        };
        let places = order.iter().map(&mut place).collect();
        let mut turns = Self { places, index, roots: BTreeSet::new() };
        // Those below come first: what the best of them takes decides about those above.
        (0..order.len()).rev().for_each(|place| turns.set_key(place, cluster, shares));
        turns
    }

    /// The unit whose turn it is.
    pub(crate) fn next(&self) -> Option<Next> {
        let mut place = self.roots.first()?.1;
        while let Some((_, child)) = self.places.get(place)?.children.first() {
            place = *child;
        }
        let leaf = self.places.get(place)?;
        let (turn, _) = leaf.next.as_ref()?;
        Some(Next { place, queue: leaf.queue, turn: *turn })
    }

    /// Goes on after a unit was looked at. Its group is the first that is thought of: more of it may wait.
    pub(crate) fn advance(&mut self, next: Next, cluster: &Cluster, shares: &Shares, candidates: &mut impl Candidates) {
        if let Some(place) = self.places.get_mut(next.place) {
            place.next = candidates.next(cluster, next.queue, Bound::Included(next.turn));
        }
        self.update(next.place, cluster, shares);
    }

    /// Takes in that a leaf queue holds something else than before.
    pub(crate) fn refresh(&mut self, queue: QueueId, cluster: &Cluster, shares: &Shares) {
        if let Some(place) = self.index.get(&queue).copied() {
            self.update(place, cluster, shares);
        }
    }

    /// Puts a leaf, and all above it, where they belong now.
    fn update(&mut self, leaf: usize, cluster: &Cluster, shares: &Shares) {
        let mut at = Some(leaf);
        while let Some(place) = at {
            self.set_key(place, cluster, shares);
            at = self.places.get(place).and_then(|place| place.parent);
        }
    }

    /// Puts a place where it belongs among its siblings.
    fn set_key(&mut self, index: usize, cluster: &Cluster, shares: &Shares) {
        let Some(queue) = self.places.get(index).map(|place| place.queue) else { return };
        let key = self.charge_below(index).map(|charge| key(index, queue, charge, cluster, shares));
        let Some(place) = self.places.get_mut(index) else { return };
        let (old, parent) = (std::mem::replace(&mut place.key, key), place.parent);
        let siblings = match parent {
            Some(parent) => match self.places.get_mut(parent) {
                Some(parent) => &mut parent.children,
                None => return,
            },
            None => &mut self.roots,
        };
        if old != key {
            old.map(|old| siblings.remove(&(old, index)));
            key.map(|key| siblings.insert((key, index)));
        }
    }

    /// What the next unit of a place takes: of a leaf its own, further up that of the best child.
    fn charge_below(&self, mut place: usize) -> Option<&Charge> {
        while let Some((_, child)) = self.places.get(place)?.children.first() {
            place = *child;
        }
        self.places.get(place)?.next.as_ref().map(|(_, charge)| charge)
    }
}

fn key(age: usize, queue: QueueId, charge: &Charge, cluster: &Cluster, shares: &Shares) -> SiblingKey {
    let state = cluster.queue(queue);
    let (without, with_next) = shares.dominant_with(cluster, queue, charge);
    // By the resources that the queue names; who names none of them deserves none.
    let within_quota = state.map(|state| {
        let named = |(number, amount): (usize, u64)| {
            let quota = state.named_allowance(number)?.quota.unwrap_or(u64::MAX);
            Some(state.allocated().get(number).saturating_add(amount) <= quota)
        };
        charge.parts().filter_map(named).min()
    });
    SiblingKey {
        above_fair_share: shares.exceeded(cluster, queue, charge).is_some(),
        above_quota: within_quota.flatten() != Some(true),
        priority: Reverse(state.map_or(0, |state| state.spec().priority)),
        with_next,
        without,
        age,
    }
}

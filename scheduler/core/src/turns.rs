//! Whose turn it is: the order in which waiting units of all queues are looked at.
//!
//! At each level of the tree that queue goes first which, with its next unit, stays within its fair share; then the one
//! that stays within its quota; then the one of higher priority; then the one with the smaller dominant share with the
//! next unit, and without it; then the older one. Within a leaf units go by rank.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::cluster::Cluster;
use crate::fair_share::DominantShare;
use crate::queue::{Queue, QueueId, Turn};
use crate::resource::Charge;
use crate::shares::Shares;

/// What decides between sibling queues; the least goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
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
    key: Option<Key>,
    /// The children that have something to place.
    children: BTreeSet<(Key, usize)>,
    /// Of a leaf: where it has got to, and what its next unit takes.
    next: Option<(Turn, Charge)>,
}

/// Goes through the waiting units of all queues, one after another.
#[derive(Debug)]
pub(crate) struct Turns {
    places: Vec<Place>,
    index: BTreeMap<QueueId, usize>,
    roots: BTreeSet<(Key, usize)>,
}

/// The turn of a unit: the first part of a group that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Next {
    place: usize,
    pub(crate) turn: Turn,
}

impl Turns {
    /// Begins. `charge` says what the next unit of a group takes at least, or `None` if it need not be looked at.
    pub(crate) fn new(cluster: &Cluster, shares: &Shares, mut charge: impl FnMut(&Turn) -> Option<Charge>) -> Self {
        let order = cluster.queues().parents_first();
        let index: BTreeMap<QueueId, usize> = order.iter().enumerate().map(|(index, id)| (*id, index)).collect();
        let place = |queue: &QueueId| Place {
            queue: *queue,
            parent: cluster.queue(*queue).and_then(Queue::parent).and_then(|parent| index.get(&parent).copied()),
            key: None,
            children: BTreeSet::new(),
            next: None,
        };
        let places = order.iter().map(place).collect();
        let mut turns = Self { places, index, roots: BTreeSet::new() };
        for (place, queue) in order.iter().enumerate() {
            if cluster.queue(*queue).is_some_and(|queue| !queue.waiting().is_empty()) {
                turns.seek(place, Bound::Unbounded, cluster, &mut charge);
                turns.update(place, cluster, shares);
            }
        }
        turns
    }

    /// The unit whose turn it is.
    pub(crate) fn next(&self) -> Option<Next> {
        let mut place = self.roots.first()?.1;
        while let Some((_, child)) = self.places.get(place)?.children.first() {
            place = *child;
        }
        let (turn, _) = self.places.get(place)?.next.as_ref()?;
        Some(Next { place, turn: *turn })
    }

    /// Goes on after a unit was looked at. If it was placed, more of its group may wait, and is looked at again in its
    /// turn; otherwise the group is passed over.
    pub(crate) fn advance(
        &mut self,
        next: Next,
        placed: bool,
        cluster: &Cluster,
        shares: &Shares,
        mut charge: impl FnMut(&Turn) -> Option<Charge>,
    ) {
        let from = if placed { Bound::Included(next.turn) } else { Bound::Excluded(next.turn) };
        self.seek(next.place, from, cluster, &mut charge);
        self.update(next.place, cluster, shares);
    }

    /// Takes in that a leaf queue holds something else than before.
    pub(crate) fn refresh(&mut self, queue: QueueId, cluster: &Cluster, shares: &Shares) {
        if let Some(place) = self.index.get(&queue).copied() {
            self.update(place, cluster, shares);
        }
    }

    /// Finds a leaf's next unit from a turn on.
    fn seek(
        &mut self,
        place: usize,
        from: Bound<Turn>,
        cluster: &Cluster,
        charge: &mut impl FnMut(&Turn) -> Option<Charge>,
    ) {
        let Some(place) = self.places.get_mut(place) else { return };
        let waiting = cluster.queue(place.queue).map(Queue::waiting);
        let mut later = waiting.into_iter().flat_map(|waiting| waiting.range((from, Bound::Unbounded)));
        place.next = later.find_map(|turn| Some((*turn, charge(turn)?)));
    }

    /// Puts a leaf, and all above it, where they belong now.
    fn update(&mut self, leaf: usize, cluster: &Cluster, shares: &Shares) {
        let Some(next) = self.places.get(leaf).map(|place| place.next.clone()) else { return };
        let mut at = Some(leaf);
        // What the best unit below takes: of the leaf its own, further up that of the best child.
        let mut charge = next.map(|(_, charge)| charge);
        while let Some(index) = at {
            let Some(place) = self.places.get(index) else { return };
            let key = charge.as_ref().map(|charge| key(index, place.queue, charge, cluster, shares));
            let (old, parent) = (place.key, place.parent);
            if let Some(place) = self.places.get_mut(index) {
                place.key = key;
            }
            let siblings = match parent {
                Some(parent) => match self.places.get_mut(parent) {
                    Some(parent) => &mut parent.children,
                    None => return,
                },
                None => &mut self.roots,
            };
            old.map(|old| siblings.remove(&(old, index)));
            key.map(|key| siblings.insert((key, index)));
            let best = siblings.first().map(|(_, best)| *best);
            at = parent;
            charge = if at.is_some() { best.and_then(|best| self.charge_below(best)) } else { None };
        }
    }

    /// What the next unit of a place takes.
    fn charge_below(&self, mut place: usize) -> Option<Charge> {
        while let Some((_, child)) = self.places.get(place)?.children.first() {
            place = *child;
        }
        self.places.get(place)?.next.as_ref().map(|(_, charge)| charge.clone())
    }
}

fn key(age: usize, queue: QueueId, charge: &Charge, cluster: &Cluster, shares: &Shares) -> Key {
    let state = cluster.queue(queue);
    // By the resources that the queue names; who names none of them deserves none.
    let within_quota = state.map(|state| {
        let named = |(number, amount): (usize, u64)| {
            let quota = state.named_allowance(number)?.quota.unwrap_or(u64::MAX);
            Some(state.allocated().get(number).saturating_add(amount) <= quota)
        };
        charge.parts().filter_map(named).min()
    });
    Key {
        above_fair_share: shares.exceeded(cluster, queue, charge).is_some(),
        above_quota: within_quota.flatten() != Some(true),
        priority: Reverse(state.map_or(0, |state| state.spec().priority)),
        with_next: shares.dominant(cluster, queue, Some(charge)),
        without: shares.dominant(cluster, queue, None),
        age,
    }
}

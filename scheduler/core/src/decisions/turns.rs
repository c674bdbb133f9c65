//! The order in which the pending units of all queues are looked at.
//!
//! At each level of the tree, these rules decide between sibling queues, in this order. First comes the queue that
//! stays within its fair share with its next unit, then the one that stays within its quota, then the one of higher
//! priority, then the one with the smaller dominant share with the next unit, then without it, then the one whose next
//! unit arrived first. Within a leaf queue, units go by rank.

use std::cmp::Reverse;
use std::ops::Bound;

use crate::decisions::fair_share::DominantShare;
use crate::decisions::shares::Shares;
use crate::state::cluster::Cluster;
use crate::state::queue::{Queue, Turn};
use crate::state::resources::Charge;
use crate::vocabulary::beside::Beside;
use crate::vocabulary::least::Least;
use crate::vocabulary::queue_spec::{QueueId, QueueSpec};

/// The key that decides between sibling queues; the least goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SiblingKey {
    above_fair_share: bool,
    above_quota: bool,
    priority: Reverse<i32>,
    with_next: DominantShare,
    without: DominantShare,
    /// The next unit's group's number in the order in which groups were added.
    arrival: u64,
    /// The queue's place; older queues come first.
    place: usize,
}

impl SiblingKey {
    /// The key of a queue without siblings to compare with.
    fn of_only_child(place: usize) -> Self {
        Self {
            above_fair_share: false,
            above_quota: false,
            priority: Reverse(0),
            with_next: DominantShare::default(),
            without: DominantShare::default(),
            arrival: 0,
            place,
        }
    }
}

#[derive(Debug)]
struct Place {
    queue: QueueId,
    parent: Option<usize>,
    /// Whether it has no siblings: then it is always its turn, whatever it holds.
    is_only_child: bool,
    /// Its number among its siblings.
    number: usize,
    /// The keys of its children that have something to place.
    children: Least<SiblingKey>,
    /// For a leaf: the turn that it has reached, and the least charge of its next unit.
    next: Option<(Turn, Charge)>,
    /// The leaf whose turn it is at this place, so that a deep tree need not be walked down to find it.
    leaf: Option<usize>,
}

/// Knows which pending groups are to be looked at.
pub(crate) trait Candidates {
    /// The first group of a leaf queue, from a turn on, that is to be looked at, and the least charge of its next unit.
    fn next(&mut self, cluster: &Cluster, queue: QueueId, from: Bound<Turn>) -> Option<(Turn, Charge)>;
}

/// Goes through the pending units of all queues, one after another.
#[derive(Debug)]
pub(crate) struct Turns {
    places: Vec<Place>,
    index: Beside<usize, QueueSpec>,
    roots: Least<SiblingKey>,
}

/// The turn of a unit: of the first pending part of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Next {
    place: usize,
    pub(crate) queue: QueueId,
    pub(crate) turn: Turn,
}

impl Turns {
    /// Begins with the first pending unit of each queue.
    pub(crate) fn new(cluster: &Cluster, shares: &Shares, candidates: &mut impl Candidates) -> Self {
        let order = cluster.queues().parents_first();
        let index: Beside<usize, QueueSpec> = order.iter().enumerate().map(|(index, id)| (*id, index)).collect();
        let parent_of = |queue: &QueueId| cluster.queue(*queue).and_then(Queue::parent);
        let roots = cluster.queues().roots().len();
        let children = |queue: &QueueId| cluster.queue(*queue).map_or(0, |queue| queue.children().len());
        // Siblings come one after another.
        let numbers = (0..roots).chain(order.iter().flat_map(|queue| 0..children(queue)));
        let mut place = |(queue, number): (&QueueId, usize)| Place {
            queue: *queue,
            parent: parent_of(queue).and_then(|parent| index.get(parent).copied()),
            is_only_child: match parent_of(queue) {
                Some(parent) => cluster.queue(parent).is_some_and(|parent| parent.children().len() == 1),
                None => roots == 1,
            },
            number,
            children: Least::new(children(queue)),
            next: candidates.next(cluster, *queue, Bound::Unbounded),
            leaf: None,
        };
        let places = order.iter().zip(numbers).map(&mut place).collect();
        let mut turns = Self { places, index, roots: Least::new(roots) };
        // Queues at the bottom come first, because the charge of their best unit decides about the queues above them.
        (0..order.len()).rev().for_each(|place| turns.set_key(place, cluster, shares));
        turns
    }

    /// The unit that is next in turn.
    pub(crate) fn next(&self) -> Option<Next> {
        let place = self.places.get(self.roots.get()?.place)?.leaf?;
        let leaf = self.places.get(place)?;
        let (turn, _) = leaf.next.as_ref()?;
        Some(Next { place, queue: leaf.queue, turn: *turn })
    }

    /// Goes on after a unit was looked at. The search begins at the same group, as more of it may be pending.
    pub(crate) fn advance(&mut self, next: Next, cluster: &Cluster, shares: &Shares, candidates: &mut impl Candidates) {
        if let Some(place) = self.places.get_mut(next.place) {
            place.next = candidates.next(cluster, next.queue, Bound::Included(next.turn));
        }
        self.update(next.place, cluster, shares);
    }

    /// Updates a leaf queue's position after its holdings have changed.
    pub(crate) fn refresh(&mut self, queue: QueueId, cluster: &Cluster, shares: &Shares) {
        if let Some(place) = self.index.get(queue).copied() {
            self.update(place, cluster, shares);
        }
    }

    /// Updates the positions of a leaf and of all places above it.
    fn update(&mut self, leaf: usize, cluster: &Cluster, shares: &Shares) {
        let mut at = Some(leaf);
        while let Some(place) = at {
            self.set_key(place, cluster, shares);
            at = self.places.get(place).and_then(|place| place.parent);
        }
    }

    /// Updates the position of a place among its siblings. The positions below it must be up to date.
    fn set_key(&mut self, index: usize, cluster: &Cluster, shares: &Shares) {
        let leaf = self.leaf_of(index);
        let next = leaf.and_then(|leaf| self.places.get(leaf)?.next.as_ref());
        let key = next.zip(self.places.get(index));
        let key = key.map(|(next, place)| match place.is_only_child {
            true => SiblingKey::of_only_child(index),
            false => key_of(index, place.queue, next, cluster, shares),
        });
        let Some(place) = self.places.get_mut(index) else { return };
        place.leaf = leaf;
        let (number, parent) = (place.number, place.parent);
        let siblings = match parent {
            Some(parent) => match self.places.get_mut(parent) {
                Some(parent) => &mut parent.children,
                None => return,
            },
            None => &mut self.roots,
        };
        siblings.set(number, key);
    }

    /// The leaf whose turn it is at a place: the place itself, or for an inner place the leaf of its best child.
    fn leaf_of(&self, index: usize) -> Option<usize> {
        let place = self.places.get(index)?;
        match place.children.get() {
            Some(child) => self.places.get(child.place)?.leaf,
            None => place.next.as_ref().map(|_| index),
        }
    }
}

fn key_of(
    place: usize,
    queue: QueueId,
    (turn, charge): &(Turn, Charge),
    cluster: &Cluster,
    shares: &Shares,
) -> SiblingKey {
    let state = cluster.queue(queue);
    let (without, with_next) = shares.dominant_with(cluster, queue, charge);
    // Only the resources that the queue names count. A queue that names none of them has no quota.
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
        arrival: turn.group.number(),
        place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::event::Event;

    /// A queue with a single turn.
    struct Only(QueueId, Turn);

    impl Candidates for Only {
        fn next(&mut self, _: &Cluster, queue: QueueId, from: Bound<Turn>) -> Option<(Turn, Charge)> {
            (queue == self.0 && from == Bound::Unbounded).then(|| (self.1, Charge::default()))
        }
    }

    #[test]
    fn each_queue_above_a_leaf_knows_whose_turn_it_is_and_forgets_it() {
        let mut cluster = Cluster::new();
        for depth in 0..100 {
            let parent = (depth > 0).then(|| format!("queue-{}", depth - 1));
            let spec = QueueSpec { name: format!("queue-{depth}"), parent, ..QueueSpec::default() };
            assert!(cluster.apply(Event::QueueAdded(spec)).is_ok());
        }
        let leaf = cluster.queue_named("queue-99").expect("the last queue");
        let group = crate::vocabulary::slab::Slab::<(), crate::vocabulary::pod_group::PodGroup>::default().insert(());
        let turn = Turn { priority: Reverse(0), elastic: false, group };
        let (shares, mut only) = (Shares::of(&cluster, 0), Only(leaf, turn));
        let mut turns = Turns::new(&cluster, &shares, &mut only);
        let leaves = |turns: &Turns| turns.places.iter().filter(|place| place.leaf.is_some()).count();
        let next = turns.next().expect("there is a next turn");
        assert_eq!((next.queue, leaves(&turns)), (leaf, 100));
        turns.advance(next, &cluster, &shares, &mut only);
        assert_eq!((turns.next(), leaves(&turns)), (None, 0));
    }
}

//! Rounds shares to whole units.
//!
//! Ten equal queues have a share of 0.9 of nine devices each. No claim for a device fits into 0.9, so no queue could
//! take anything back from a queue that holds all nine. So the parts of shares that queues cannot use are put together,
//! and queues are given enough of that for their next unit to fit: at most one unit for each queue, and at most one
//! beyond the share of each queue above it.
//!
//! All of this follows from what is asked for, and not from what is placed. So a queue that loses a claim by it is not
//! then entitled to take the claim back.

use std::cmp::Reverse;

/// A queue of a tree, as far as rounding needs it. Amounts are by resource.
#[derive(Clone, Debug)]
pub(crate) struct RoundedQueue {
    /// The index of its parent, which comes before it in the list.
    pub(crate) parent: Option<usize>,
    pub(crate) priority: i32,
    /// `None`: the queue names no quota, or its quota is everything that there is.
    pub(crate) quotas: Vec<Option<u64>>,
    pub(crate) limits: Vec<Option<u64>>,
    /// The part of its share that its own units can use; 0 for a queue with queues below it.
    pub(crate) used: Vec<u64>,
    /// Units that do not fit into its share beside those that do. Earlier units go first.
    pub(crate) next: Vec<RoundedUnit>,
}

/// A unit that does not fit into its queue's share.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RoundedUnit {
    /// What it takes, as (resource, amount) pairs.
    pub(crate) parts: Vec<(usize, u64)>,
    /// The number of the latest claim among it and the units before it, in the order in which claims were added. A unit
    /// comes only after those before it.
    pub(crate) arrival: u64,
}

/// Raises shares so that units fit, and lowers others by unusable parts of theirs. `shares` is by queue and resource. A
/// resource without an entry in `totals` is not limited.
///
/// * The given shares never exceed the total, nor, below a queue, that queue's share.
/// * A queue's share is never less than what its units can use of it.
/// * Queues are raised in this order: first those whose unit is within their quota, then those of higher priority, then
///   those that will be least beyond their share, then those whose units arrived first. So of two equal queues, the one
///   whose units run already keeps its place, because these are nearly always the older ones.
pub(crate) fn round_up(totals: &[Option<u64>], queues: &[RoundedQueue], shares: &mut [Vec<u64>]) {
    if queues.iter().all(|queue| queue.next.is_empty()) {
        return;
    }
    let mut rounding = Rounding::new(totals, queues);
    let mut candidates: Vec<_> = (0..queues.len())
        .flat_map(|leaf| (0..queues[leaf].next.len()).map(move |place| (leaf, place)))
        .map(|(leaf, place)| {
            let unit = &queues[leaf].next[place];
            (rounding.order(shares, leaf, &unit.parts), unit.arrival, leaf, place)
        })
        .collect();
    candidates.sort_unstable();
    let mut is_rounded = vec![false; queues.len()];
    for (.., leaf, place) in candidates {
        let unit = &queues[leaf].next[place].parts;
        if !is_rounded[leaf] && rounding.has_room(shares, leaf, unit) {
            is_rounded[leaf] = true;
            rounding.take(leaf, unit);
        }
    }
    rounding.assign(shares);
}

struct Rounding<'a> {
    totals: &'a [Option<u64>],
    queues: &'a [RoundedQueue],
    /// The used part of each queue's share, including the queues below it.
    used: Vec<Vec<u64>>,
    /// The used part of all queues at the top together.
    used_of_all: Vec<u64>,
    /// For each queue, the index of the queue above it at the top.
    roots: Vec<usize>,
}

impl<'a> Rounding<'a> {
    fn new(totals: &'a [Option<u64>], queues: &'a [RoundedQueue]) -> Self {
        let mut used: Vec<Vec<u64>> = queues.iter().map(|queue| queue.used.clone()).collect();
        let mut used_of_all = vec![0; totals.len()];
        for index in (0..queues.len()).rev() {
            let own = used[index].clone();
            let above = match queues[index].parent {
                Some(parent) => &mut used[parent],
                None => &mut used_of_all,
            };
            above.iter_mut().zip(own).for_each(|(above, own): (&mut u64, u64)| *above = above.saturating_add(own));
        }
        let mut roots: Vec<usize> = Vec::with_capacity(queues.len());
        for (index, queue) in queues.iter().enumerate() {
            roots.push(queue.parent.and_then(|parent| roots.get(parent).copied()).unwrap_or(index));
        }
        Self { totals, queues, used, used_of_all, roots }
    }

    /// A queue and all queues above it.
    fn path(&self, leaf: usize) -> impl Iterator<Item = usize> + use<'a> {
        let queues = self.queues;
        std::iter::successors(Some(leaf), move |index| queues[*index].parent)
    }

    /// The parts of a unit that are of limited resources.
    fn parts<'b>(&self, unit: &'b [(usize, u64)]) -> impl Iterator<Item = (usize, u64)> + use<'a, 'b> {
        let totals = self.totals;
        unit.iter()
            .copied()
            .filter(|(resource, amount)| *amount > 0 && totals.get(*resource).copied().flatten().is_some())
    }

    /// The position of a unit in the order in which shares are raised; the least goes first.
    fn order(
        &self,
        shares: &[Vec<u64>],
        leaf: usize,
        unit: &[(usize, u64)],
    ) -> (bool, Reverse<i32>, Reverse<i32>, u64) {
        let with = |index: usize, (resource, amount): (usize, u64)| self.used[index][resource].saturating_add(amount);
        let is_named = self.parts(unit).any(|(resource, _)| self.queues[leaf].quotas[resource].is_some());
        let is_within = |index: usize| {
            let quotas = &self.queues[index].quotas;
            self.parts(unit).all(|part| quotas[part.0].is_none_or(|quota| with(index, part) <= quota))
        };
        // In millionths of the total. Of several resources, the one that is exceeded most counts.
        let beyond = |part: (usize, u64)| {
            let beyond = with(leaf, part).saturating_sub(shares[leaf][part.0]);
            let total = self.totals[part.0].unwrap_or(0).max(1);
            u64::try_from(u128::from(beyond) * 1_000_000 / u128::from(total)).unwrap_or(u64::MAX)
        };
        (
            !(is_named && self.path(leaf).all(is_within)),
            Reverse(self.queues[self.roots[leaf]].priority),
            Reverse(self.queues[leaf].priority),
            self.parts(unit).map(beyond).max().unwrap_or(0),
        )
    }

    /// Whether a unit fits into the unused amounts. It may take a queue beyond its share only if less than the share is
    /// used so far, and never beyond its limit.
    fn has_room(&self, shares: &[Vec<u64>], leaf: usize, unit: &[(usize, u64)]) -> bool {
        self.parts(unit).all(|(resource, amount)| {
            let fits = |used: u64, into: u64| used.saturating_add(amount) <= into;
            let has_room = |index: usize| {
                let (used, share) = (self.used[index][resource], shares[index][resource]);
                fits(used, share)
                    || (used < share && fits(used, self.queues[index].limits[resource].unwrap_or(u64::MAX)))
            };
            fits(self.used_of_all[resource], self.totals[resource].unwrap_or(u64::MAX)) && self.path(leaf).all(has_room)
        })
    }

    fn take(&mut self, leaf: usize, unit: &[(usize, u64)]) {
        for (resource, amount) in self.parts(unit) {
            for index in self.path(leaf) {
                self.used[index][resource] = self.used[index][resource].saturating_add(amount);
            }
            self.used_of_all[resource] = self.used_of_all[resource].saturating_add(amount);
        }
    }

    /// Raises shares to at least what is used. What then exceeds the total is taken from unused parts, from the
    /// youngest queues first.
    fn assign(&self, shares: &mut [Vec<u64>]) {
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.queues.len()];
        let mut roots = Vec::new();
        for (index, queue) in self.queues.iter().enumerate() {
            match queue.parent {
                Some(parent) => children[parent].push(index),
                None => roots.push(index),
            }
        }
        for (resource, total) in self.totals.iter().enumerate() {
            let Some(total) = *total else { continue };
            for (share, used) in shares.iter_mut().zip(&self.used) {
                share[resource] = share[resource].max(used[resource]);
            }
            self.fit(resource, total, &roots, shares);
            // Parents come before their children in the list.
            for (index, children) in children.iter().enumerate() {
                self.fit(resource, shares[index][resource], children, shares);
            }
        }
    }

    fn fit(&self, resource: usize, into: u64, siblings: &[usize], shares: &mut [Vec<u64>]) {
        let sum: u128 = siblings.iter().map(|index| u128::from(shares[*index][resource])).sum();
        let mut too_much = u64::try_from(sum.saturating_sub(into.into())).unwrap_or(u64::MAX);
        for index in siblings.iter().rev() {
            let unused = shares[*index][resource].saturating_sub(self.used[*index][resource]);
            let less = unused.min(too_much);
            shares[*index][resource] -= less;
            too_much -= less;
        }
    }
}

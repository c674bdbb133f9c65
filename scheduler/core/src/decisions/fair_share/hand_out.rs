//! Hands out units of a resource one after the other, in proportion to portions.
//!
//! Each taker's units become due at even distances, the first after half a distance. With portions of 1 and 3, the
//! units of the first taker become due at 1/2, 3/2, ..., and those of the second at 1/6, 3/6, 5/6, ... Units are given
//! in the order in which they become due. If two are due at once, the taker that comes first in the list gets its unit
//! first. So the units that are given of an amount are always the first units that are given of a larger amount.
//! Largest remainders, or rounds, do not have this property. (This is the method of Sainte-Laguë, with upper bounds.)

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// The number of ticks in a unit. Ticks keep what a taker's next unit still lacks when portions change.
const UNIT: i128 = 1 << 16;
const HALF: i128 = UNIT / 2;
/// Binary places after the point of a level.
const POINT: u32 = 40;
/// If portions depend on which takers are not yet satisfied, they are computed anew whenever one taker in this many
/// (and at least one) has been satisfied. So the time stays proportional to the number of takers.
const SETTLED_ANEW_PER: usize = 32;

/// A queue that takes units until it is satisfied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taker {
    /// The index of the queue.
    pub(super) queue: usize,
    /// The proportion in which it is given units. It is below `2^PORTION_BITS`, and so is the sum of all portions.
    pub(super) portion: u64,
    /// The number of units that it has been given.
    pub(super) given: u64,
    /// The most units that it takes.
    most: u64,
    /// What has become due beyond the given units, in ticks; from -[`HALF`] to less than [`HALF`].
    rest: i128,
}

impl Taker {
    /// With this many bits, products of amounts in ticks (80 bits) with portions, and sums of those, fit into 127 bits.
    pub(super) const PORTION_BITS: u32 = 40;

    /// A taker that has been given this many units already. Its portion is still to be set.
    pub(super) fn new(queue: usize, given: u64, most: u64) -> Self {
        Self { queue, portion: 0, given, most, rest: 0 }
    }

    /// How many more units it takes.
    pub(super) fn missing(&self) -> u64 {
        self.most.saturating_sub(self.given)
    }

    fn takes(&self) -> bool {
        self.portion > 0 && self.missing() > 0
    }

    /// How many ticks must become due until it has been given this many more units.
    fn ticks_until(&self, units: u64) -> i128 {
        i128::from(units) * UNIT - HALF - self.rest
    }

    fn ticks_until_satisfied(&self) -> i128 {
        self.ticks_until(self.missing())
    }

    /// How many units it is given when this many ticks become due.
    fn units_within(&self, ticks: i128) -> u64 {
        let units = (ticks + self.rest + HALF).div_euclid(UNIT);
        u64::try_from(units).unwrap_or(u64::MAX).min(self.missing())
    }

    /// Compares when two takers are satisfied if both start now.
    fn cmp_satisfied(&self, other: &Self) -> Ordering {
        cmp_levels((self.ticks_until_satisfied(), self.portion), (other.ticks_until_satisfied(), other.portion))
    }
}

/// Compares two levels, given as ticks and portion: level = ticks / portion.
fn cmp_levels(one: (i128, u64), other: (i128, u64)) -> Ordering {
    (one.0 * i128::from(other.1)).cmp(&(other.0 * i128::from(one.1)))
}

/// The level at which a taker's next unit is due, and the taker's index.
struct DueUnit {
    ticks: i128,
    portion: u64,
    index: usize,
}

impl Ord for DueUnit {
    fn cmp(&self, other: &Self) -> Ordering {
        cmp_levels((self.ticks, self.portion), (other.ticks, other.portion)).then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for DueUnit {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for DueUnit {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for DueUnit {}

/// Hands out all of `left`, if the takers take it. Returns what no taker takes.
pub(super) fn hand_out(mut left: u64, takers: &mut [Taker]) -> u64 {
    let mut active: Vec<usize> = (0..takers.len()).filter(|index| takers[*index].takes()).collect();
    let wanted: u128 = active.iter().map(|index| u128::from(takers[*index].missing())).sum();
    let enough = wanted <= u128::from(left);
    loop {
        // If units became due continuously until none is left, the takers satisfied by then are satisfied in any case.
        let portions: i128 = active.iter().map(|index| i128::from(takers[*index].portion)).sum();
        let ahead: i128 = active.iter().map(|index| takers[*index].rest + HALF).sum();
        let ticks = i128::from(left) * UNIT - ahead;
        let before = active.len();
        active.retain(|index| {
            let taker = &mut takers[*index];
            let satisfied = enough || taker.ticks_until_satisfied() * portions <= ticks * i128::from(taker.portion);
            if satisfied {
                left -= taker.missing();
                taker.given = taker.most;
            }
            !satisfied
        });
        if active.len() == before || active.is_empty() {
            return hand_out_by_turns(left, takers, &active, |taker| {
                ticks.max(0) * i128::from(taker.portion) / portions
            });
        }
    }
}

/// Gives each of the `active` takers the units that are `due` to it, in ticks, and then the rest unit by unit. No taker
/// may be satisfied before everything is given.
fn hand_out_by_turns(mut left: u64, takers: &mut [Taker], active: &[usize], due: impl Fn(&Taker) -> i128) -> u64 {
    let mut turns = Vec::with_capacity(active.len());
    for index in active {
        let taker = &mut takers[*index];
        let units = taker.units_within(due(taker));
        turns.push(Reverse(DueUnit { ticks: taker.ticks_until(units + 1), portion: taker.portion, index: *index }));
        taker.given += units;
        left -= units;
    }
    if left == 0 {
        return 0;
    }
    let mut turns = BinaryHeap::from(turns);
    while left > 0 {
        let Some(mut turn) = turns.peek_mut() else { break };
        let taker = &mut takers[turn.0.index];
        if taker.missing() == 0 {
            PeekMut::pop(turn);
            continue;
        }
        taker.given += 1;
        left -= 1;
        turn.0.ticks += UNIT;
    }
    left
}

/// Hands out up to `left` units until some takers are satisfied. Returns what is left.
pub(super) fn hand_out_until_satisfied(left: u64, takers: &mut [Taker]) -> u64 {
    let mut active: Vec<Taker> = takers.iter().copied().filter(|taker| taker.takes()).collect();
    if active.is_empty() {
        return left;
    }
    let enough = active.len() / SETTLED_ANEW_PER;
    let last = *active.select_nth_unstable_by(enough, Taker::cmp_satisfied).1;
    let level = (last.ticks_until_satisfied() << POINT) / i128::from(last.portion) + 1;
    let due = |taker: &Taker| match taker.cmp_satisfied(&last) {
        Ordering::Greater => (level * i128::from(taker.portion)) >> POINT,
        _ => taker.ticks_until_satisfied(),
    };
    let wanted: u128 = active.iter().map(|taker| u128::from(taker.units_within(due(taker)))).sum();
    if wanted > u128::from(left) {
        return hand_out(left, takers);
    }
    let mut given = 0;
    for taker in takers.iter_mut().filter(|taker| taker.takes()) {
        let ticks = due(taker);
        let units = taker.units_within(ticks);
        taker.given += units;
        taker.rest += ticks - i128::from(units) * UNIT;
        given += units;
    }
    left - given
}

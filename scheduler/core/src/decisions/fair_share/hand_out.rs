//! Units of a resource, handed out one after the other in proportion.
//!
//! Each taker's units become due at even distances, the first after half a distance: of two takers whose portions are 1
//! and 3, the one's become due at 1/2, 3/2, ... and the other's at 1/6, 3/6, 5/6, ... Units are given in the order in
//! which they are due, and the one of the taker that stands first where two are due at once. What is given of an amount
//! is thus always a beginning of what is given of a larger one; largest remainders, or rounds, do not have this
//! property. (The method of Sainte-Laguë, with upper bounds.)

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// A unit is so many ticks: what a taker's next unit still lacks is kept when portions change.
const UNIT: i128 = 1 << 16;
const HALF: i128 = UNIT / 2;
/// Bits after the point of a level.
const POINT: u32 = 40;
/// Where portions depend on who is not yet satisfied, they are settled anew whenever one in so many has been satisfied
/// (and at least one): the time that it takes stays proportional to the number of takers.
const SETTLED_ANEW_PER: usize = 32;

/// One who takes units until it is satisfied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taker {
    /// Whose the units are.
    pub(super) queue: usize,
    /// The proportion in which it is given units, below `2^PORTION_BITS`, as is the sum of all.
    pub(super) portion: u64,
    /// What it has been given.
    pub(super) given: u64,
    /// What it takes at most.
    most: u64,
    /// What has become due beyond what was given, in ticks; from -[`HALF`] to less than [`HALF`].
    rest: i128,
}

impl Taker {
    /// Products of amounts in ticks (80 bits) with portions, and sums of those, fit into 127 bits.
    pub(super) const PORTION_BITS: u32 = 40;

    /// One who has been given so much already; its portion is still to be set.
    pub(super) fn new(queue: usize, given: u64, most: u64) -> Self {
        Self { queue, portion: 0, given, most, rest: 0 }
    }

    /// What it would still take.
    pub(super) fn missing(&self) -> u64 {
        self.most.saturating_sub(self.given)
    }

    fn takes(&self) -> bool {
        self.portion > 0 && self.missing() > 0
    }

    /// How many ticks must become due until it has got so many more units.
    fn ticks_until(&self, units: u64) -> i128 {
        i128::from(units) * UNIT - HALF - self.rest
    }

    fn ticks_until_satisfied(&self) -> i128 {
        self.ticks_until(self.missing())
    }

    /// How many units it gets when so many ticks become due.
    fn units_within(&self, ticks: i128) -> u64 {
        let units = (ticks + self.rest + HALF).div_euclid(UNIT);
        u64::try_from(units).unwrap_or(u64::MAX).min(self.missing())
    }

    /// Which of two is satisfied first, if both start now.
    fn cmp_satisfied(&self, other: &Self) -> Ordering {
        cmp_levels((self.ticks_until_satisfied(), self.portion), (other.ticks_until_satisfied(), other.portion))
    }
}

/// Compares two levels: ticks by portion.
fn cmp_levels(one: (i128, u64), other: (i128, u64)) -> Ordering {
    (one.0 * i128::from(other.1)).cmp(&(other.0 * i128::from(one.1)))
}

/// The level at which a taker's next unit is due, and where the taker stands.
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

/// Hands out up to `left` units to the end. Returns what nobody takes.
pub(super) fn hand_out(mut left: u64, takers: &mut [Taker]) -> u64 {
    let mut active: Vec<usize> = (0..takers.len()).filter(|index| takers[*index].takes()).collect();
    let wanted: u128 = active.iter().map(|index| u128::from(takers[*index].missing())).sum();
    let enough = wanted <= u128::from(left);
    loop {
        // If units became due continuously until none is left: who is satisfied by then is so in any case.
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

/// Gives each of the `active` takers what is `due` to it, in ticks, and then unit by unit what is left. Nobody is
/// satisfied before all is given.
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

//! Pseudo-random numbers from a seed, so that a round can be repeated.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A pseudo-random sequence (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The sequence of round number `round`. It does not depend on earlier rounds.
    pub(crate) fn of_round(seed: u64, round: u64) -> Chance {
        Chance(seed ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to `end - 1`. `end` must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// True with probability 1 / `times`.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn milliseconds(&mut self, range: RangeInclusive<u64>) -> Duration {
        let (start, end) = range.into_inner();
        Duration::from_micros(start * 1000 + self.number() % ((end - start) * 1000 + 1))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.below(end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_the_same_again_and_rounds_differ() {
        let numbers = |seed, round| {
            let mut chance = Chance::of_round(seed, round);
            [chance.number(), chance.number(), chance.number()]
        };
        assert_eq!(numbers(7, 3), numbers(7, 3));
        assert_ne!(numbers(7, 3), numbers(7, 4));
        assert_ne!(numbers(7, 3), numbers(8, 3));
    }

    #[test]
    fn what_is_shuffled_is_all_still_there() {
        let mut items: Vec<usize> = (0..50).collect();
        Chance::of_round(1, 1).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}

//! The set of the places at which extents begin.

use crate::process::reserve_memory_range;

/// A set of numbers below a bound, with a summary bit for each word of the level below.
pub(super) struct Bitmap {
    levels: Vec<*mut u64>,
}

impl Bitmap {
    pub(super) fn new(count: u64) -> Option<Bitmap> {
        let mut levels = Vec::new();
        let mut words = count.div_ceil(64);
        loop {
            levels.push(reserve_memory_range(words as usize * 8)?.cast());
            if words == 1 {
                return Some(Bitmap { levels });
            }
            words = words.div_ceil(64);
        }
    }

    fn word(&mut self, level: usize, index: u64) -> &mut u64 {
        // SAFETY: callers pass indices below the level's length, as numbers are below the bound; `self` is borrowed
        // mutably.
        unsafe { &mut *self.levels[level].add(index as usize) }
    }

    pub(super) fn set(&mut self, mut number: u64) {
        for level in 0..self.levels.len() {
            let word = self.word(level, number / 64);
            let was = *word;
            *word |= 1 << (number % 64);
            if was != 0 {
                return;
            }
            number /= 64;
        }
    }

    pub(super) fn clear(&mut self, mut number: u64) {
        for level in 0..self.levels.len() {
            let word = self.word(level, number / 64);
            *word &= !(1 << (number % 64));
            if *word != 0 {
                return;
            }
            number /= 64;
        }
    }

    pub(super) fn last_at_or_before(&mut self, number: u64) -> Option<u64> {
        let mut index = number;
        // Goes up until a word has a bit at or below the position; above the first level, strictly below it.
        for level in 0..self.levels.len() {
            let below_and_at = u64::MAX >> (63 - index % 64);
            let mask = if level == 0 { below_and_at } else { below_and_at & !(1 << (index % 64)) };
            let bits = *self.word(level, index / 64) & mask;
            if bits != 0 {
                let mut found = index / 64 * 64 + u64::from(bits.ilog2());
                for lower in (0..level).rev() {
                    found = found * 64 + u64::from(self.word(lower, found).ilog2());
                }
                return Some(found);
            }
            index /= 64;
        }
        None
    }
}

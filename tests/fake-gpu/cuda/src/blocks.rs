//! Blocks of device memory that small allocations share: one takes memory when its first allocation is made, and gives
//! it back when its last is freed.
//!
//! Places are counted in granules. Blocks are aligned to their size, so a place tells which block it is in.

use crate::process::reserve_memory_range;

pub(crate) struct Blocks {
    block_granules: u64,
    /// One for each block of the range.
    table: *mut Block,
    /// Freed places by size. Those of a life of their block that has ended are passed over.
    kept: Vec<Vec<Kept>>,
    /// What is left of the newest block.
    newest: (u64, u64),
}

/// All zero where there is no block.
#[repr(C)]
struct Block {
    /// How many allocations are in it.
    live: u32,
    /// Which of its lives it is in: it ends with the last allocation.
    life: u32,
}

#[derive(Clone, Copy)]
struct Kept {
    granule: u64,
    life: u32,
}

// SAFETY: the pointer is to a reservation that only this table uses.
unsafe impl Send for Blocks {}

impl Blocks {
    /// For a range of so many granules.
    pub(crate) fn new(range_granules: u64, block_granules: u64) -> Option<Blocks> {
        let count = range_granules.div_ceil(block_granules) as usize;
        Some(Blocks {
            block_granules,
            table: reserve_memory_range(count * size_of::<Block>())?.cast(),
            kept: vec![Vec::new(); block_granules as usize + 1],
            newest: (0, 0),
        })
    }

    fn block(&mut self, granule: u64) -> &mut Block {
        // SAFETY: the place lies in the range, so its block is in the table; zeroed memory is a valid entry; `self` is
        // borrowed mutably.
        unsafe { &mut *self.table.add((granule / self.block_granules) as usize) }
    }

    /// Takes a place of `count` granules, and says whether it is its block's first. `None` if a block is missing.
    pub(crate) fn take(&mut self, count: u64) -> Option<(u64, bool)> {
        let granule = self.take_kept(count).or_else(|| self.take_newest(count)).or_else(|| self.split_kept(count))?;
        let block = self.block(granule);
        block.live += 1;
        Some((granule, block.live == 1))
    }

    fn take_kept(&mut self, count: u64) -> Option<u64> {
        while let Some(Kept { granule, life }) = self.kept[count as usize].pop() {
            if self.block(granule).life == life {
                return Some(granule);
            }
        }
        None
    }

    fn take_newest(&mut self, count: u64) -> Option<u64> {
        let (begin, end) = self.newest;
        (end - begin >= count).then(|| {
            self.newest.0 += count;
            begin
        })
    }

    fn split_kept(&mut self, count: u64) -> Option<u64> {
        (count + 1..=self.block_granules).find_map(|size| {
            let granule = self.take_kept(size)?;
            self.keep(granule + count, size - count);
            Some(granule)
        })
    }

    fn keep(&mut self, granule: u64, count: u64) {
        if count > 0 {
            let life = self.block(granule).life;
            self.kept[count as usize].push(Kept { granule, life });
        }
    }

    /// Has one more block, which begins at `granule`.
    pub(crate) fn add(&mut self, granule: u64) {
        let (begin, end) = core::mem::replace(&mut self.newest, (granule, granule + self.block_granules));
        self.keep(begin, end - begin);
    }

    /// Takes a place back. If it was its block's last the block is no more, and it is returned where it began.
    pub(crate) fn give_back(&mut self, granule: u64, count: u64) -> Option<u64> {
        let start = granule - granule % self.block_granules;
        let block = self.block(granule);
        block.live -= 1;
        if block.live > 0 {
            self.keep(granule, count);
            return None;
        }
        block.life = block.life.wrapping_add(1);
        if self.newest.1 == start + self.block_granules {
            self.newest = (0, 0);
        }
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_taken_with_its_first_place_and_free_with_its_last() {
        let mut blocks = Blocks::new(32, 8).unwrap();
        let mut starts = [0, 8, 16].into_iter();
        let mut take = |blocks: &mut Blocks, count| {
            blocks.take(count).unwrap_or_else(|| {
                blocks.add(starts.next().unwrap());
                blocks.take(count).unwrap()
            })
        };
        let places = [take(&mut blocks, 4), take(&mut blocks, 3), take(&mut blocks, 2), take(&mut blocks, 1)];
        assert_eq!(places, [(0, true), (4, false), (8, true), (7, false)]);
        assert_eq!(blocks.give_back(0, 4), None);
        assert_eq!(take(&mut blocks, 4), (0, false));
        assert_eq!((blocks.give_back(0, 4), blocks.give_back(4, 3)), (None, None));
        // A part of what was freed serves a smaller one, when the newest block has no room.
        assert_eq!((take(&mut blocks, 3), take(&mut blocks, 2)), ((4, false), (10, false)));
        assert_eq!((take(&mut blocks, 4), take(&mut blocks, 3)), ((0, false), (12, false)));
        for (granule, count) in [(0, 4), (4, 3)] {
            assert_eq!(blocks.give_back(granule, count), None);
        }
        assert_eq!(blocks.give_back(7, 1), Some(0));
        // What was kept of the block is not given out any more.
        assert_eq!(take(&mut blocks, 4), (16, true));
    }
}

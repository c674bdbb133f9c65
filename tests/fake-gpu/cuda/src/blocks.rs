//! Blocks of device memory that small allocations share. A block takes memory with its first allocation, and gives it
//! back when the last one is freed.
//!
//! Places are counted in granules. Blocks are aligned to their size, so a place determines its block.

use crate::process::reserve_memory_range;

pub(crate) struct Blocks {
    block_granules: u64,
    /// One entry for each block of the range.
    table: *mut Block,
    /// Freed places by size. Places from an ended life of their block are skipped.
    kept: Vec<Vec<Kept>>,
    /// The unused rest of the newest block: begin and end.
    newest: (u64, u64),
}

/// The state of a block. All zero where there is no block.
#[repr(C)]
struct Block {
    /// Number of allocations in it.
    live: u32,
    /// Number of the block's present life. A life ends when its last allocation is freed.
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
    /// The blocks of a range of `range_granules`.
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

    /// Takes a place of `count` granules. The flag is true for its block's first allocation. `None`: a block must be
    /// added.
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

    /// Adds a block that begins at `granule`.
    pub(crate) fn add(&mut self, granule: u64) {
        let (begin, end) = core::mem::replace(&mut self.newest, (granule, granule + self.block_granules));
        self.keep(begin, end - begin);
    }

    /// Frees a place. If it was its block's last one, the block is removed and its begin is returned.
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
        // When the newest block has no room, a part of a freed place is used.
        assert_eq!((take(&mut blocks, 3), take(&mut blocks, 2)), ((4, false), (10, false)));
        assert_eq!((take(&mut blocks, 4), take(&mut blocks, 3)), ((0, false), (12, false)));
        for (granule, count) in [(0, 4), (4, 3)] {
            assert_eq!(blocks.give_back(granule, count), None);
        }
        assert_eq!(blocks.give_back(7, 1), Some(0));
        // Freed places of the removed block are not used any more.
        assert_eq!(take(&mut blocks, 4), (16, true));
    }
}

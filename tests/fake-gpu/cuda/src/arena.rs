//! A device's address range: the extents in use and their owners.
//!
//! The range is four times the device's memory, so addresses do not run out before memory does. Freed extents are kept
//! by size and reused last in, first out. When the range is used up, neighbouring free extents are joined. An extent's
//! record is found directly from its first address, and the extent around an address by a bitmap with summaries. So
//! both cost the same for any number of allocations.
//!
//! A context's allocations take memory in blocks: small ones share blocks ([`crate::blocks`]), others have whole
//! blocks.
//!
//! The range is backed by an anonymous file, so that other processes can map shared parts of it.

mod bitmap;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::backing::{Backing, unmap};
use crate::blocks::Blocks;
use crate::process::reserve_memory_range;
use bitmap::Bitmap;

/// Addresses are multiples of this.
pub(crate) const GRANULE_BYTES: u64 = 512;
const RANGE_PER_MEMORY: u64 = 4;
/// Extents of fewer granules than this are kept in a table by size.
const SMALL_GRANULES: u64 = 4096;
/// Additional bytes in the file after the range.
pub(crate) const TRAILER_BYTES: u64 = 64 << 10;
/// Freed extents of at least this size, if they were written, are returned to the operating system.
const PAGE_BYTES: u64 = 4096;

/// The use of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Use {
    /// `cuMemAlloc` and `cuMemAllocPitch`.
    Linear = 1,
    /// `cuMemAllocManaged`.
    Managed,
    /// Memory of either kind whose free is queued on a stream.
    Freeing,
    /// A CUDA array.
    Array,
    /// Stream-ordered memory.
    Pool,
    /// Stream-ordered memory of the host.
    HostPool,
    /// Stream-ordered memory whose free is queued on a stream.
    PoolFreeing,
    /// An allocation node of a graph.
    Graph,
    /// A module's global variable.
    Global,
    /// The addresses of a sparse array, whose memory is mapped to it.
    Sparse,
}

impl Use {
    /// Whether such an extent belongs to a context and ends with it.
    pub(crate) fn is_of_context(self) -> bool {
        matches!(self, Use::Linear | Use::Managed | Use::Freeing | Use::Array | Use::Global)
    }
}

/// An extent in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    /// The size asked for. The extent itself is rounded up to granules or blocks.
    pub(crate) bytes: u64,
    /// The context or pool that holds it.
    pub(crate) owner: u32,
    pub(crate) usage: Use,
    /// Whether it has been written to.
    pub(crate) touched: bool,
}

impl Extent {
    /// The size rounded up to granules, which is what a pool counts.
    pub(crate) fn granular_bytes(&self) -> u64 {
        round_up(self.bytes, GRANULE_BYTES)
    }
}

/// `value` rounded up to a multiple of `unit`, a power of two.
pub(crate) fn round_up(value: u64, unit: u64) -> u64 {
    value.saturating_add(unit - 1) & !(unit - 1)
}

/// The record of an extent, at the table index of its first granule. All zero where no extent starts.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    bytes: u64,
    owner: u32,
    usage: Option<Use>,
    touched: bool,
}

pub(crate) struct Arena {
    base: u64,
    bytes: u64,
    backing: Backing,
    state: Mutex<State>,
}

struct State {
    base: u64,
    granules: u64,
    block_bytes: u64,
    blocks: Blocks,
    /// Granules from this number on have never been used.
    unused_from: u64,
    small: Vec<Vec<u64>>,
    large: BTreeMap<u64, Vec<u64>>,
    entries: *mut Entry,
    starts: Bitmap,
}

// SAFETY: the pointers are to reservations that only this state uses, under its lock.
unsafe impl Send for State {}

/// Maps a range with its file. The first address is a multiple of two megabytes.
fn map_range(bytes: u64) -> Option<(u64, Backing)> {
    const ALIGNMENT: u64 = 2 << 20;
    let backing = Backing::create(c"simulated-gpu", bytes + TRAILER_BYTES)?;
    let reserved = reserve_memory_range((bytes + ALIGNMENT) as usize)? as u64;
    let base = round_up(reserved, ALIGNMENT);
    for (address, length) in [(reserved, base - reserved), (base + bytes, reserved + ALIGNMENT - base)] {
        if length > 0 {
            // SAFETY: the parts before and behind the range, reserved just now.
            unsafe { unmap(address, length) };
        }
    }
    backing.map(0, bytes, base, libc::PROT_READ | libc::PROT_WRITE)?;
    Some((base, backing))
}

impl Arena {
    /// The range of a device with `memory_bytes`. Contexts take memory in blocks of `block_bytes`, a power of two.
    pub(crate) fn new(memory_bytes: u64, block_bytes: u64) -> Option<Arena> {
        let bytes = round_up(memory_bytes, 2 << 20) * RANGE_PER_MEMORY;
        let granules = bytes / GRANULE_BYTES;
        let (base, backing) = map_range(bytes)?;
        let state = State {
            base,
            granules,
            block_bytes,
            blocks: Blocks::new(granules, block_bytes / GRANULE_BYTES)?,
            unused_from: 0,
            small: vec![Vec::new(); SMALL_GRANULES as usize],
            large: BTreeMap::new(),
            entries: reserve_memory_range(granules as usize * size_of::<Entry>())?.cast(),
            starts: Bitmap::new(granules)?,
        };
        Some(Arena { base, bytes, backing, state: Mutex::new(state) })
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.bytes
    }

    /// The range's file, and the offset of an address in it.
    pub(crate) fn backing_of(&self, address: u64) -> (&Backing, u64) {
        (&self.backing, address.wrapping_sub(self.base))
    }

    /// The range's file, and the offset of its [`TRAILER_BYTES`] of information for other processes.
    pub(crate) fn trailer(&self) -> (&Backing, u64) {
        (&self.backing, self.bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an extent of `bytes`, which must not be 0. Returns its address, and the additional memory that it takes if
    /// it is a context's.
    pub(crate) fn take(&self, bytes: u64, owner: u32, usage: Use) -> Option<(u64, u64)> {
        let mut state = self.state();
        let (granule, charged_bytes) = state.find_room(bytes, usage)?;
        *state.entry(granule) = Entry { bytes, owner, usage: Some(usage), touched: usage == Use::Managed };
        state.starts.set(granule);
        Some((state.base + granule * GRANULE_BYTES, charged_bytes))
    }

    /// Frees the extent that starts at `address`, if `allowed` returns true. Returns the extent, and the memory that
    /// this frees if it was a context's.
    pub(crate) fn give_back(&self, address: u64, allowed: impl FnOnce(&Extent) -> bool) -> Option<(Extent, u64)> {
        let mut state = self.state();
        let granule = state.granule_at(address)?;
        let extent = state.extent(granule)?;
        if extent.start != address || !allowed(&extent) {
            return None;
        }
        let freed_bytes = state.remove(granule, &extent);
        Some((extent, freed_bytes))
    }

    /// Frees every extent for which `chosen` returns true. Returns the memory that this frees of contexts' extents.
    pub(crate) fn give_back_all(&self, chosen: impl Fn(&Extent) -> bool) -> u64 {
        let mut state = self.state();
        let mut freed_bytes = 0;
        let mut below = state.unused_from;
        while let Some(granule) = below.checked_sub(1).and_then(|last| state.starts.last_at_or_before(last)) {
            if let Some(extent) = state.extent(granule).filter(&chosen) {
                freed_bytes += state.remove(granule, &extent);
            }
            below = granule;
        }
        freed_bytes
    }

    /// The extent around `address`.
    pub(crate) fn around(&self, address: u64) -> Option<Extent> {
        let mut state = self.state();
        let granule = address.checked_sub(state.base)? / GRANULE_BYTES;
        let last = state.granules - 1;
        let start = state.starts.last_at_or_before(granule.min(last))?;
        let extent = state.extent(start)?;
        (address - extent.start < extent.bytes).then_some(extent)
    }

    /// Changes the use of the extent that starts at `address`, if its present use is `from`.
    pub(crate) fn turn(&self, address: u64, from: Use, to: Use) -> Option<Extent> {
        let mut state = self.state();
        let granule = state.granule_at(address)?;
        let extent = state.extent(granule).filter(|extent| extent.usage == from)?;
        state.entry(granule).usage = Some(to);
        Some(extent)
    }

    /// Marks the extent that starts at `address` as written.
    pub(crate) fn touch(&self, address: u64) {
        let mut state = self.state();
        if let Some(granule) = state.granule_at(address) {
            state.entry(granule).touched = true;
        }
    }
}

impl State {
    fn granule_at(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        (offset % GRANULE_BYTES == 0 && offset / GRANULE_BYTES < self.granules).then_some(offset / GRANULE_BYTES)
    }

    fn entry(&mut self, granule: u64) -> &mut Entry {
        debug_assert!(granule < self.granules);
        // SAFETY: the table has an entry for each granule; zeroed memory is a valid entry; `self` is borrowed mutably.
        unsafe { &mut *self.entries.add(granule as usize) }
    }

    fn extent(&mut self, granule: u64) -> Option<Extent> {
        let start = self.base + granule * GRANULE_BYTES;
        let Entry { bytes, owner, usage, touched } = *self.entry(granule);
        usage.map(|usage| Extent { start, bytes, owner, usage, touched })
    }

    /// Whether an extent shares a block.
    fn is_shared(&self, bytes: u64, usage: Use) -> bool {
        usage.is_of_context() && usage != Use::Array && bytes <= (self.block_bytes / 2).max(GRANULE_BYTES)
    }

    /// The granules that an extent takes.
    fn granules_of(&self, bytes: u64, usage: Use) -> u64 {
        let has_blocks = usage.is_of_context() && !self.is_shared(bytes, usage);
        round_up(bytes, if has_blocks { self.block_bytes } else { GRANULE_BYTES }) / GRANULE_BYTES
    }

    /// A place for an extent, and the additional memory that it takes if it is a context's.
    fn find_room(&mut self, bytes: u64, usage: Use) -> Option<(u64, u64)> {
        let count = self.granules_of(bytes, usage);
        if !self.is_shared(bytes, usage) {
            let alignment = if usage.is_of_context() { self.block_bytes / GRANULE_BYTES } else { 1 };
            return Some((self.find_free(count, alignment)?, count * GRANULE_BYTES));
        }
        let (granule, is_first) = match self.blocks.take(count) {
            Some(taken) => taken,
            None => {
                let block_granules = self.block_bytes / GRANULE_BYTES;
                let block = self.find_free(block_granules, block_granules)?;
                self.blocks.add(block);
                self.blocks.take(count)?
            }
        };
        Some((granule, if is_first { self.block_bytes } else { 0 }))
    }

    /// `count` granules, which begin at a multiple of `alignment`.
    fn find_free(&mut self, count: u64, alignment: u64) -> Option<u64> {
        match self.take_kept(count) {
            Some(granule) if granule.is_multiple_of(alignment) => return Some(granule),
            Some(granule) => self.keep(granule, count),
            None => {}
        }
        let granule = round_up(self.unused_from, alignment);
        if self.granules.saturating_sub(granule) < count {
            self.join_neighbours();
            return self.split_kept(count, alignment);
        }
        self.keep(self.unused_from, granule - self.unused_from);
        self.unused_from = granule + count;
        Some(granule)
    }

    fn take_kept(&mut self, count: u64) -> Option<u64> {
        if count < SMALL_GRANULES {
            return self.small[count as usize].pop();
        }
        let kept = self.large.get_mut(&count)?;
        let granule = kept.pop();
        if kept.is_empty() {
            self.large.remove(&count);
        }
        granule
    }

    fn keep(&mut self, granule: u64, count: u64) {
        if count == 0 {
            return;
        }
        if count < SMALL_GRANULES {
            self.small[count as usize].push(granule);
        } else {
            self.large.entry(count).or_default().push(granule);
        }
    }

    /// A part of the smallest kept extent that has room for `count` aligned granules at any start. The rest is kept.
    fn split_kept(&mut self, count: u64, alignment: u64) -> Option<u64> {
        let least = count + alignment - 1;
        let small = (least..SMALL_GRANULES).find(|&size| !self.small[size as usize].is_empty());
        let size = small.or_else(|| self.large.range(least..).next().map(|(&size, _)| size))?;
        let kept = self.take_kept(size)?;
        let granule = round_up(kept, alignment);
        self.keep(kept, granule - kept);
        self.keep(granule + count, kept + size - granule - count);
        Some(granule)
    }

    fn join_neighbours(&mut self) {
        let mut free: Vec<(u64, u64)> = Vec::new();
        for (count, kept) in self.small.iter_mut().enumerate() {
            free.extend(kept.drain(..).map(|granule| (granule, count as u64)));
        }
        for (count, kept) in std::mem::take(&mut self.large) {
            free.extend(kept.into_iter().map(|granule| (granule, count)));
        }
        free.push((self.unused_from, self.granules - self.unused_from));
        self.unused_from = self.granules;
        free.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (granule, count) in free.into_iter().filter(|&(_, count)| count > 0) {
            match joined.last_mut() {
                Some((start, length)) if *start + *length == granule => *length += count,
                _ => joined.push((granule, count)),
            }
        }
        for (granule, count) in joined {
            self.keep(granule, count);
        }
    }

    /// Removes an extent. Returns the memory that this frees if it was a context's.
    fn remove(&mut self, granule: u64, extent: &Extent) -> u64 {
        *self.entry(granule) = Entry { bytes: 0, owner: 0, usage: None, touched: false };
        self.starts.clear(granule);
        if extent.touched {
            let first = round_up(extent.start, PAGE_BYTES);
            let end = (extent.start + extent.granular_bytes()) & !(PAGE_BYTES - 1);
            if first < end {
                // SAFETY: whole pages of this arena's reservation that belong to this extent alone, which is not in use
                // any more.
                unsafe { libc::madvise(first as *mut _, (end - first) as usize, libc::MADV_REMOVE) };
            }
        }
        let count = self.granules_of(extent.bytes, extent.usage);
        if self.is_shared(extent.bytes, extent.usage) {
            let Some(block) = self.blocks.give_back(granule, count) else { return 0 };
            self.keep(block, self.block_bytes / GRANULE_BYTES);
            return self.block_bytes;
        }
        self.keep(granule, count);
        count * GRANULE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_found_around_any_address() {
        let arena = Arena::new(64 << 20, GRANULE_BYTES).unwrap();
        let (small, _) = arena.take(100, 1, Use::Linear).unwrap();
        let (large, _) = arena.take(8 << 20, 2, Use::Linear).unwrap();
        assert_eq!(arena.around(small + 99).unwrap().start, small);
        assert!(arena.around(small + 100).is_none());
        assert_eq!(arena.around(large + (8 << 20) - 1).unwrap().start, large);
        assert!(arena.around(large + (8 << 20)).is_none());
        assert!(arena.give_back(large + 512, |_| true).is_none());
        assert!(arena.give_back(large, |_| true).is_some());
        assert!(arena.give_back(large, |_| true).is_none());
        assert!(arena.around(large).is_none());
    }

    #[test]
    fn a_used_up_range_is_joined_again() {
        let arena = Arena::new(1 << 20, GRANULE_BYTES).unwrap();
        let whole = 8 << 20;
        let pieces = (0..whole / 4096).map(|_| arena.take(4096, 1, Use::Linear).unwrap().0).collect::<Vec<_>>();
        assert!(arena.take(1, 1, Use::Linear).is_none());
        for piece in pieces {
            assert!(arena.give_back(piece, |_| true).is_some());
        }
        assert!(arena.take(whole, 1, Use::Linear).is_some());
    }

    #[test]
    fn allocations_take_whole_blocks() {
        const MIB: u64 = 1 << 20;
        let arena = Arena::new(64 * MIB, 2 * MIB).unwrap();
        // As measured on an H100, eight allocations of each size.
        for (bytes, charged_mib) in [
            (1, 2),
            (MIB, 8),
            (MIB + (128 << 10), 16),
            (2 * MIB, 16),
            (2 * MIB + 1, 32),
            (10 * MIB, 80),
            (10 * MIB + 1, 96),
        ] {
            let taken = (0..8).map(|_| arena.take(bytes, 1, Use::Linear).unwrap()).collect::<Vec<_>>();
            assert_eq!(taken.iter().map(|(_, charged)| charged).sum::<u64>(), charged_mib * MIB, "{bytes}");
            let freed = taken.iter().map(|(address, _)| arena.give_back(*address, |_| true).unwrap().1);
            assert_eq!(freed.sum::<u64>(), charged_mib * MIB, "{bytes}");
        }
        let taken = (0..3).map(|_| arena.take(MIB, 1, Use::Linear).unwrap().1).sum::<u64>();
        assert_eq!((taken, arena.take(40_000, 1, Use::Array).unwrap().1), (4 * MIB, 2 * MIB));
        assert_eq!(arena.give_back_all(|extent| extent.owner == 1), 6 * MIB);
    }

    #[test]
    fn bitmap_finds_the_last_member() {
        let mut bitmap = Bitmap::new(1 << 20).unwrap();
        assert_eq!(bitmap.last_at_or_before((1 << 20) - 1), None);
        for number in [0, 63, 64, 70_000, 900_000] {
            bitmap.set(number);
            assert_eq!(bitmap.last_at_or_before((1 << 20) - 1), Some(number));
        }
        assert_eq!(bitmap.last_at_or_before(899_999), Some(70_000));
        bitmap.clear(70_000);
        assert_eq!(bitmap.last_at_or_before(899_999), Some(64));
        assert_eq!(bitmap.last_at_or_before(62), Some(0));
    }
}

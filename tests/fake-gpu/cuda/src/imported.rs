//! Memory of other processes or other interfaces that is mapped here. It is charged to the process that made it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::CUresult;

use crate::Done;
use crate::backing::{Backing, unmap};

const PAGE_BYTES: u64 = 4096;

/// The function that imported a range, and the functions that end it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// `cuIpcOpenMemHandle`; `cuIpcCloseMemHandle`.
    Ipc,
    /// `cuMemPoolImportPointer`; the functions that free.
    Pool,
    /// `cuExternalMemoryGetMappedBuffer`; `cuMemFree`.
    External,
}

#[derive(Clone, Copy)]
pub(crate) struct Imported {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Ordinal of its device.
    pub(crate) ordinal: usize,
    /// The life of the context in which it was opened.
    pub(crate) life: u32,
    pub(crate) origin: Origin,
    /// Number of opens without a close.
    opened: usize,
}

static RANGES: Mutex<BTreeMap<u64, Imported>> = Mutex::new(BTreeMap::new());

fn ranges() -> MutexGuard<'static, BTreeMap<u64, Imported>> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The range around an address.
pub(crate) fn around(address: u64) -> Option<Imported> {
    let ranges = ranges();
    let (_, range) = ranges.range(..=address).next_back()?;
    (address - range.start < range.bytes).then_some(*range)
}

/// Maps `bytes` of a file from `offset` on. The offset need not be page-aligned.
pub(crate) fn map(backing: &Backing, offset: u64, bytes: u64, ordinal: usize, life: u32, origin: Origin) -> Done<u64> {
    let before = offset % PAGE_BYTES;
    let mapped = backing.map(offset - before, before + bytes, 0, libc::PROT_READ | libc::PROT_WRITE);
    let start = mapped.ok_or(CUresult::MAP_FAILED)? + before;
    ranges().insert(start, Imported { start, bytes, ordinal, life, origin, opened: 1 });
    Ok(start)
}

/// Counts another opening of a range.
pub(crate) fn open_again(start: u64) -> bool {
    ranges().get_mut(&start).map(|range| range.opened += 1).is_some()
}

/// Counts one open less; the last close ends the mapping. Returns false if no range of this origin begins there.
pub(crate) fn close(start: u64, origin: Origin) -> bool {
    let mut ranges = ranges();
    let Some(range) = ranges.get_mut(&start).filter(|range| range.origin == origin) else { return false };
    range.opened -= 1;
    if range.opened == 0 {
        let range = *range;
        ranges.remove(&start);
        end(&range);
    }
    true
}

/// Ends the ranges of a context at its end.
pub(crate) fn release_context(life: u32) {
    ranges().retain(|_, range| {
        if range.life == life {
            end(range);
        }
        range.life != life
    });
}

fn end(range: &Imported) {
    let before = range.start % PAGE_BYTES;
    // SAFETY: the pages were mapped by `map` for this range, which is no longer in the list.
    unsafe { unmap(range.start - before, before + range.bytes) };
}

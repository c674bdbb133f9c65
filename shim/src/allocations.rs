//! The charge of each address and handle of this process, so that a free gives back exactly the bytes that were
//! charged.

use crate::radix::Radix;
use crate::{pools, vmm};
use aliquot_abi::ledger::BYTES_MASK;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Device addresses. The driver aligns allocations to 256 bytes at least.
static ADDRESSES: Radix<8, 14, 3> = Radix::new();
/// Bytes of address space that one leaf of that table covers.
const ADDRESSES_LEAF_BYTES: u64 = 1 << (8 + 14);
/// Handles of arrays. They are not addresses and have no alignment.
static HANDLES: Radix<0, 12, 4> = Radix::new();
/// Page-locked host memory. A range that the host registers can begin at any address.
static HOST: Radix<0, 12, 4> = Radix::new();

/// A charge: a number of bytes of one of the region's accounts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charge {
    /// Number of the account in the region.
    pub(crate) account: usize,
    /// The number of bytes.
    pub(crate) bytes: u64,
}

/// The kind of an entry, in bits 60 to 63 of its word.
const CHARGE: u64 = 1 << 60;
const MAPPING: u64 = 2 << 60;
/// A mapping that `cuMemUnmap` is about to remove.
const UNMAPPING: u64 = 3 << 60;
/// Memory of a pool. The pool is charged as a whole.
const POOLED: u64 = 4 << 60;
const KIND: u64 = 0xf << 60;

impl Charge {
    /// Bits 55 to 59: the account; bits 48 to 54: see [`Ending`]; bits 0 to 47: the bytes.
    fn to_word(self) -> u64 {
        CHARGE | (self.account as u64 & 0x1f) << 55 | self.bytes & BYTES_MASK
    }

    fn from_word(word: u64) -> Option<Charge> {
        (word & KIND == CHARGE).then_some(Charge { account: (word >> 55 & 0x1f) as usize, bytes: word & BYTES_MASK })
    }
}

/// Which table a number belongs to.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// An address of device memory.
    Address(u64),
    /// A handle of an array.
    Handle(u64),
    /// An address of the host.
    Host(u64),
}

impl Key {
    #[inline]
    fn entry(self) -> Option<&'static AtomicU64> {
        match self {
            Key::Address(number) => ADDRESSES.entry(number),
            Key::Handle(number) => HANDLES.entry(number),
            Key::Host(number) => HOST.entry(number),
        }
    }

    #[inline]
    fn existing(self) -> Option<&'static AtomicU64> {
        match self {
            Key::Address(number) => ADDRESSES.existing(number),
            Key::Handle(number) => HANDLES.existing(number),
            Key::Host(number) => HOST.existing(number),
        }
    }
}

/// Remembers that `key` was charged `charge`. Returns `false` if it cannot be remembered: then no later free can give
/// the charge back, and the caller must do so now.
#[inline]
#[must_use]
pub(crate) fn remember(key: Key, charge: Charge) -> bool {
    let Some(entry) = key.entry() else { return false };
    set(entry, charge.to_word());
    true
}

#[inline]
fn set(entry: &AtomicU64, word: u64) {
    // The driver gave this number again, so the former entry's memory is gone although no call freed it: it was in a
    // context that another thread has ended meanwhile.
    if entry.load(Ordering::Relaxed) != 0 {
        displace(entry);
    }
    entry.store(word, Ordering::Relaxed);
}

#[cold]
fn displace(entry: &AtomicU64) {
    let word = entry.swap(0, Ordering::Relaxed);
    if let Some(charge) = Charge::from_word(word) {
        charge.freed();
    } else if let Some(mapping) = Mapping::from_word(word) {
        vmm::unmapped(mapping);
    } else if let Some(pooled) = Pooled::from_word(word) {
        pools::gone(pooled);
    }
}

/// Removes and returns the charge of `key`. If several threads try, only one of them gets it.
#[inline]
pub(crate) fn forget(key: Key) -> Option<Charge> {
    take(key.existing()?)
}

#[inline]
fn take(entry: &AtomicU64) -> Option<Charge> {
    let mut word = entry.load(Ordering::Relaxed);
    loop {
        let charge = Charge::from_word(word)?;
        match entry.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(charge),
            // Marked by an ending context meanwhile, or removed by another thread.
            Err(now) => word = now,
        }
    }
}

/// An allocation from a pool.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pooled {
    /// Number of the pool: see [`pools`].
    pub(crate) pool: u16,
    /// Bytes that were requested.
    pub(crate) bytes: u64,
}

impl Pooled {
    /// Bits 48 to 59: the pool; bits 0 to 47: the bytes.
    fn to_word(self) -> u64 {
        POOLED | (u64::from(self.pool) & 0xfff) << 48 | self.bytes & BYTES_MASK
    }

    fn from_word(word: u64) -> Option<Pooled> {
        (word & KIND == POOLED).then_some(Pooled { pool: (word >> 48) as u16 & 0xfff, bytes: word & BYTES_MASK })
    }

    /// Remembers that the memory at `address` belongs to the pool.
    #[must_use]
    pub(crate) fn remember(self, address: u64) -> bool {
        let Some(entry) = ADDRESSES.entry(address) else { return false };
        set(entry, self.to_word());
        true
    }

    /// Removes and returns the entry at `address`.
    pub(crate) fn forget(address: u64) -> Option<Pooled> {
        let entry = ADDRESSES.existing(address)?;
        let word = entry.load(Ordering::Relaxed);
        let pooled = Pooled::from_word(word)?;
        entry.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        Some(pooled)
    }
}

/// A piece of physical memory that is mapped at an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Index of the record of the physical memory: see [`vmm`].
    pub(crate) record: u32,
    /// Length in units of [`Mapping::UNIT_BYTES`].
    pub(crate) units: u32,
}

impl Mapping {
    /// A page of the host: no driver maps at a finer granularity.
    pub(crate) const UNIT_BYTES: u64 = 1 << 12;

    /// Bits 32 to 59: the record; bits 0 to 31: the length.
    fn to_word(self) -> u64 {
        MAPPING | u64::from(self.record) << 32 | u64::from(self.units)
    }

    fn from_word(word: u64) -> Option<Mapping> {
        matches!(word & KIND, MAPPING | UNMAPPING)
            .then_some(Mapping { record: (word >> 32) as u32 & 0xfff_ffff, units: word as u32 })
    }

    /// Remembers the mapping at `address`.
    #[must_use]
    pub(crate) fn remember(self, address: u64) -> bool {
        let Some(entry) = ADDRESSES.entry(address) else { return false };
        set(entry, self.to_word());
        true
    }

    /// The mapping that begins at `address`, if there is one.
    pub(crate) fn at(address: u64) -> Option<Mapping> {
        Mapping::from_word(ADDRESSES.existing(address)?.load(Ordering::Relaxed))
    }

    /// Marks every mapping that begins in the range as about to be removed.
    pub(crate) fn begin_unmapping(address: u64, bytes: u64) {
        Self::walk(address, bytes, |entry| {
            let word = entry.load(Ordering::Relaxed);
            if word & KIND != MAPPING {
                return Self::UNIT_BYTES;
            }
            let noted = word & !KIND | UNMAPPING;
            let _ = entry.compare_exchange(word, noted, Ordering::Relaxed, Ordering::Relaxed);
            Self::length_bytes(word)
        });
    }

    /// Ends what [`begin_unmapping`](Self::begin_unmapping) began. If the mappings `were_unmapped`, it removes the
    /// marked ones and passes them to `gone`; otherwise it removes the marks. A mapping that was made at the same place
    /// meanwhile has no mark and is left alone.
    pub(crate) fn finish_unmapping(address: u64, bytes: u64, were_unmapped: bool, mut gone: impl FnMut(Mapping)) {
        Self::walk(address, bytes, |entry| {
            let word = entry.load(Ordering::Relaxed);
            if word & KIND != UNMAPPING {
                return Self::UNIT_BYTES;
            }
            let after = if were_unmapped { 0 } else { word & !KIND | MAPPING };
            let changed = entry.compare_exchange(word, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if let (true, true, Some(mapping)) = (changed, were_unmapped, Mapping::from_word(word)) {
                gone(mapping);
            }
            Self::length_bytes(word)
        });
    }

    fn length_bytes(word: u64) -> u64 {
        u64::from(word as u32).max(1) * Self::UNIT_BYTES
    }

    /// Calls `step` with each entry in the range where a mapping can begin. `step` returns the distance to the next one
    /// in bytes.
    fn walk(address: u64, bytes: u64, mut step: impl FnMut(&'static AtomicU64) -> u64) {
        // There are no addresses beyond this. For a range that covers all of them the driver returns the error, and the
        // program must not wait here.
        let end = address.saturating_add(bytes).min(1 << 49);
        let mut place = address & !(Self::UNIT_BYTES - 1);
        while place < end {
            place = match ADDRESSES.existing(place) {
                Some(entry) => place.saturating_add(step(entry)),
                // Nothing is known in this part of the address space, for example of an imported allocation.
                None => (place | (ADDRESSES_LEAF_BYTES - 1)).saturating_add(1),
            };
        }
    }
}

/// The end of a context, from before the call that ends it until its memory is refunded. The number of the end is
/// written into the words of the charges that it concerns. So it leaves alone charges that another thread's end has
/// marked, or that were made meanwhile.
pub(crate) struct Ending {
    /// The number, shifted to its place in a charge's word.
    number: u64,
}

impl Ending {
    const NUMBERS: u64 = 0x7f << 48;

    pub(crate) fn new() -> Ending {
        static ENDS: AtomicU32 = AtomicU32::new(0);
        Ending { number: u64::from(ENDS.fetch_add(1, Ordering::Relaxed) % 127 + 1) << 48 }
    }

    /// Marks every charge that `concerns` this end.
    pub(crate) fn note(&self, mut concerns: impl FnMut(u64, Charge) -> bool) {
        each_charge(|address, entry| {
            let word = entry.load(Ordering::Relaxed);
            if Charge::from_word(word).is_some_and(|charge| concerns(address, charge)) {
                // If the exchange fails, the charge was freed meanwhile.
                let noted = word & !Self::NUMBERS | self.number;
                let _ = entry.compare_exchange(word, noted, Ordering::Relaxed, Ordering::Relaxed);
            }
        });
    }

    /// Refunds the marked charges whose memory `is_gone`, and removes the marks of the others.
    pub(crate) fn finish(&self, mut is_gone: impl FnMut(u64) -> bool) {
        each_charge(|address, entry| {
            let word = entry.load(Ordering::Relaxed);
            if word & (KIND | Self::NUMBERS) != CHARGE | self.number {
                return;
            }
            let gone = is_gone(address);
            let after = if gone { 0 } else { word & !Self::NUMBERS };
            let changed = entry.compare_exchange(word, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if let (true, true, Some(charge)) = (changed, gone, Charge::from_word(word)) {
                charge.freed();
            }
        });
    }
}

fn each_charge(mut visit: impl FnMut(u64, &AtomicU64)) {
    ADDRESSES.for_each(&mut visit);
    HOST.for_each(&mut visit);
}

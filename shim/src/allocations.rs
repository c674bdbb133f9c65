//! What this process was charged for each address and each handle, so that a free gives back exactly that.

use crate::radix::Radix;
use core::sync::atomic::{AtomicU64, Ordering};

/// Device addresses. The driver aligns allocations to 256 bytes at least.
static ADDRESSES: Radix<8, 14, 3> = Radix::new();
/// Handles of arrays, which are not addresses and have no alignment.
static HANDLES: Radix<0, 12, 4> = Radix::new();

/// A charge: so many bytes of one of the region's accounts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Charge {
    /// Number of the account in the region.
    pub(crate) account: usize,
    /// Bytes.
    pub(crate) bytes: u64,
}

/// What an entry stands for; bits 60 to 63 of the word.
const CHARGE: u64 = 1 << 60;
/// A charge whose context may be about to end.
const ENDING: u64 = 3 << 60;
const MAPPING: u64 = 2 << 60;
const KIND: u64 = 0xf << 60;

impl Charge {
    /// Bits 55 to 59: the account; bits 0 to 54: the bytes.
    fn to_word(self) -> u64 {
        CHARGE | (self.account as u64 & 0x1f) << 55 | self.bytes & ((1 << 55) - 1)
    }

    fn from_word(word: u64) -> Option<Charge> {
        matches!(word & KIND, CHARGE | ENDING)
            .then_some(Charge { account: (word >> 55 & 0x1f) as usize, bytes: word & ((1 << 55) - 1) })
    }
}

/// Which table a number belongs to.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// A device address.
    Address(u64),
    /// A handle.
    Handle(u64),
}

impl Key {
    #[inline]
    fn entry(self) -> Option<&'static AtomicU64> {
        match self {
            Key::Address(number) => ADDRESSES.entry(number),
            Key::Handle(number) => HANDLES.entry(number),
        }
    }

    #[inline]
    fn existing(self) -> Option<&'static AtomicU64> {
        match self {
            Key::Address(number) => ADDRESSES.existing(number),
            Key::Handle(number) => HANDLES.existing(number),
        }
    }
}

/// Remembers that `key` was charged `charge`. `false` if it cannot be remembered: then nobody can give it back, and the caller
/// must do so now.
#[inline]
#[must_use]
pub(crate) fn remember(key: Key, charge: Charge) -> bool {
    let Some(entry) = key.entry() else { return false };
    entry.store(charge.to_word(), Ordering::Relaxed);
    true
}

/// Takes out what `key` was charged. One caller gets it, however many try.
#[inline]
pub(crate) fn forget(key: Key) -> Option<Charge> {
    take(key.existing()?)
}

#[inline]
fn take(entry: &AtomicU64) -> Option<Charge> {
    let word = entry.load(Ordering::Relaxed);
    let charge = Charge::from_word(word)?;
    entry.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed).ok()?;
    Some(charge)
}

/// A piece of physical memory that is mapped at an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Index of the piece's record: see `vmm`.
    pub(crate) record: u32,
    /// Length in units of [`Mapping::UNIT_BYTES`].
    pub(crate) units: u32,
}

impl Mapping {
    /// The smallest granularity that a driver maps at.
    pub(crate) const UNIT_BYTES: u64 = 1 << 16;

    /// Bits 32 to 59: the record; bits 0 to 31: the length.
    fn to_word(self) -> u64 {
        MAPPING | u64::from(self.record) << 32 | u64::from(self.units)
    }

    fn from_word(word: u64) -> Option<Mapping> {
        (word & KIND == MAPPING).then_some(Mapping { record: (word >> 32) as u32 & 0xfff_ffff, units: word as u32 })
    }

    /// Remembers the mapping at `address`.
    #[must_use]
    pub(crate) fn remember(self, address: u64) -> bool {
        let Some(entry) = ADDRESSES.entry(address) else { return false };
        entry.store(self.to_word(), Ordering::Relaxed);
        true
    }

    /// The mapping that begins at `address`.
    pub(crate) fn at(address: u64) -> Option<Mapping> {
        Mapping::from_word(ADDRESSES.existing(address)?.load(Ordering::Relaxed))
    }

    /// Takes out the mapping that begins at `address`.
    pub(crate) fn forget(address: u64) -> Option<Mapping> {
        let entry = ADDRESSES.existing(address)?;
        let mapping = Mapping::from_word(entry.load(Ordering::Relaxed))?;
        entry.compare_exchange(mapping.to_word(), 0, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        Some(mapping)
    }
}

/// Notes of every charged address for which `belongs` says so that its context may be about to end.
pub(crate) fn begin_ending(mut belongs: impl FnMut(u64) -> bool) {
    ADDRESSES.for_each(&mut |address, entry| {
        let word = entry.load(Ordering::Relaxed);
        if word & KIND == CHARGE && belongs(address) {
            // One that is freed meanwhile is not ours to note.
            let ending = word & !KIND | ENDING;
            let _ = entry.compare_exchange(word, ending, Ordering::Relaxed, Ordering::Relaxed);
        }
    });
}

/// What became of the addresses that [`begin_ending`] noted: taken out, and given to `refund`, if their context `has_ended`;
/// otherwise as they were.
pub(crate) fn finish_ending(has_ended: bool, mut refund: impl FnMut(Charge)) {
    ADDRESSES.for_each(&mut |_, entry| {
        let word = entry.load(Ordering::Relaxed);
        if word & KIND != ENDING {
            return;
        }
        if !has_ended {
            let _ = entry.compare_exchange(word, word & !KIND | CHARGE, Ordering::Relaxed, Ordering::Relaxed);
        } else if let Some(charge) = take(entry) {
            refund(charge);
        }
    });
}

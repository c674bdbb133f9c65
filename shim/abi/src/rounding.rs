//! The memory that the driver takes of a device beyond the requests, because it gives out whole blocks.
//!
//! The ledger counts the requested bytes: a driver may round less than assumed here, and then all of a slice's limit
//! can be used. The bytes that the driver really took are known only when the manager looks at the device. Until then,
//! an upper bound is known:
//!
//! ```text
//! unseen = rounding_bytes now - rounding_bytes when the last look began
//! room   = limit - overhead by the last look - unseen - used
//! ```
//!
//! What the driver takes otherwise and tells only afterwards, as for the stacks of kernels, is unseen in the same way:
//! [`note_overhead`].
//!
//! [`Account::rounding_bytes`] grows when the driver has given memory, and falls when the driver has it back and the
//! ledger has released it. So if a look finds an allocation in it, the driver had given all of that allocation before
//! the look asked.
//!
//! A look computes the overhead as the driver's figure minus the ledger's. Some bytes are in the ledger but not with
//! the driver, because the driver has not given them yet or has them back already. They hide the same number of bytes
//! of overhead. These are the look's *doubt*: bytes by which the ledger changed during the look, and bytes that
//! processes mark as moving ([`SlotDevice::moving_bytes`]). They stay unseen. If memory is freed while the same amount
//! is allocated during a look, overhead can stay hidden until the next one.

use crate::atomic::Ordering;
use crate::ledger::{BYTES_MASK, BYTES_MAX};
use crate::region::{Account, SlotDevice};

/// The size of the blocks in which drivers give out device memory.
const BLOCK_BYTES: u64 = 2 << 20;
/// A process marks bytes as moving if there are at least this many. For fewer it would cost more than it is worth; they
/// may hide overhead until the next look.
pub const MOVING_BYTES_MIN: u64 = 16 << 20;

/// Blocks full of equal allocations of at most this size have less than a hundredth of their bytes to spare. Such
/// allocations count as taking nothing extra.
const NEGLIGIBLE_BYTES: u64 = 16 << 10;

/// The most that the driver may take of a device beyond an allocation of `bytes`: the rest of the last block.
/// Allocations of up to half a block share blocks; blocks full of equal allocations have at most half of their bytes to
/// spare.
#[inline]
#[must_use]
pub const fn rounding_bytes(bytes: u64) -> u64 {
    if bytes <= NEGLIGIBLE_BYTES {
        0
    } else if bytes <= BLOCK_BYTES / 2 {
        bytes / 2
    } else {
        bytes.wrapping_neg() % BLOCK_BYTES
    }
}

/// Notes that the driver has given `bytes`.
#[inline]
pub fn note_given(account: &Account, bytes: u64) {
    let rounding = rounding_bytes(bytes);
    if rounding != 0 {
        // Release: a look that reads the new value here also finds the memory in the driver's figure.
        account.rounding_bytes.fetch_add(rounding, Ordering::Release);
    }
}

/// Notes that the driver has back `bytes` that [`note_given`] has noted. To be called after the ledger has released
/// them.
#[inline]
pub fn note_taken_back(account: &Account, bytes: u64) {
    let rounding = rounding_bytes(bytes);
    if rounding != 0 {
        account.rounding_bytes.fetch_sub(rounding, Ordering::Release);
    }
}

/// Notes that the driver may have taken `bytes` more that are not in the ledger. They are unseen until a look that
/// begins later.
pub fn note_overhead(account: &Account, bytes: u64) {
    account.rounding_bytes.fetch_add(bytes, Ordering::Release);
}

/// A look at a device's memory. It begins before the driver is asked.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    rounding_bytes: u64,
    /// [`Account::used`] when the look began.
    used: u64,
    moving_bytes: u64,
}

/// The ledger's side of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looked {
    /// Memory used according to the ledger: the greater of the values before and after the driver was asked, so that an
    /// allocation between the two does not count as overhead.
    pub used_bytes: u64,
    /// The value to store in [`DeviceLimits::rounding_seen`](crate::region::DeviceLimits::rounding_seen).
    pub seen: u64,
}

impl Look {
    /// Begins a look at the memory of `account`. `parts` belong to the processes that use it.
    pub fn begin<'a>(account: &Account, parts: impl Iterator<Item = &'a SlotDevice>) -> Look {
        // Acquire: the driver is asked afterwards. A process marks bytes as moving before it reserves them.
        let rounding_bytes = account.rounding_bytes.load(Ordering::Acquire);
        let used = account.used.load(Ordering::Acquire);
        Look { rounding_bytes, used, moving_bytes: moving_bytes(parts) }
    }

    /// Ends the look, after the driver has answered. `parts` belong to the processes that use the account now.
    pub fn end<'a>(self, account: &Account, parts: impl Iterator<Item = &'a SlotDevice>) -> Looked {
        // The order matters: a process removes its mark from moving bytes only after it has released them.
        let moving_bytes = moving_bytes(parts);
        let after = account.used.load(Ordering::Acquire);
        let (before_bytes, after_bytes) = (self.used & BYTES_MASK, after & BYTES_MASK);
        // If as much was freed as was allocated, the driver may have been asked in between.
        let changed_bytes = before_bytes.abs_diff(after_bytes).max(u64::from(self.used != after));
        // Other bytes may move at the end than at the beginning.
        let doubt_bytes = changed_bytes.wrapping_add(self.moving_bytes).wrapping_add(moving_bytes);
        Looked { used_bytes: before_bytes.max(after_bytes), seen: seen(self.rounding_bytes, doubt_bytes) }
    }
}

fn moving_bytes<'a>(parts: impl Iterator<Item = &'a SlotDevice>) -> u64 {
    parts.map(|part| part.moving_bytes.load(Ordering::Acquire)).fold(0, u64::wrapping_add)
}

/// The value that a look writes if it began when [`Account::rounding_bytes`] was `rounding_bytes`. Never 0.
const fn seen(rounding_bytes: u64, doubt_bytes: u64) -> u64 {
    rounding_bytes.wrapping_sub(doubt_bytes).saturating_add(1)
}

/// The bytes that the last look has not seen, if it has written `seen`.
#[derive(Clone, Copy)]
pub struct Unseen {
    /// Growth of [`Account::rounding_bytes`] since the look began, plus the doubt.
    growth_bytes: u64,
}

impl Unseen {
    /// The state without looks: nothing counts as unseen.
    pub const NOTHING: Unseen = Unseen { growth_bytes: 0 };

    /// The state of `account` if the last look has written `seen`. 0 means that no manager looks, and then nothing
    /// counts as unseen.
    #[inline]
    #[must_use]
    pub fn of(account: &Account, seen: u64) -> Unseen {
        let rounding_bytes = account.rounding_bytes.load(Ordering::Relaxed);
        Unseen { growth_bytes: if seen == 0 { 0 } else { rounding_bytes.wrapping_sub(seen - 1) } }
    }

    /// The most that the driver may have taken beyond what the look has seen.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> u64 {
        // If the growth is negative, more was freed than allocated since the look.
        if self.growth_bytes > BYTES_MAX { 0 } else { self.growth_bytes }
    }

    /// Whether the overhead that the look has found is still exact: nothing that may have changed it was allocated or
    /// freed since.
    #[inline]
    #[must_use]
    pub const fn is_nothing(self) -> bool {
        self.growth_bytes == 0
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::region::Ledger;

    const MIB: u64 = 1 << 20;

    fn ledger() -> Box<Ledger> {
        // SAFETY: a ledger is integers and atomics of them: all bytes zero is a valid ledger.
        unsafe { Box::<Ledger>::new_zeroed().assume_init() }
    }

    fn unseen(account: &Account, seen: u64) -> (u64, bool) {
        let unseen = Unseen::of(account, seen);
        (unseen.bytes(), unseen.is_nothing())
    }

    #[test]
    fn a_driver_takes_no_more_than_the_rounding_says() {
        for (bytes, taken) in [(MIB + 1, 2 * MIB), (2 * MIB, 2 * MIB), (2 * MIB + 1, 4 * MIB), (1 << 40, 1 << 40)] {
            assert_eq!(bytes + rounding_bytes(bytes), taken);
        }
        // Equal pieces that share blocks.
        for bytes in (512..=MIB).step_by(512) {
            let pieces = 2 * MIB / bytes;
            let neglected = if bytes <= NEGLIGIBLE_BYTES { NEGLIGIBLE_BYTES } else { 1024 };
            assert!(pieces * (bytes + rounding_bytes(bytes)) >= 2 * MIB - neglected, "{bytes}");
        }
    }

    #[test]
    fn rounding_is_unseen_until_a_look() {
        let ledger = ledger();
        let account = &ledger.devices[0];
        let bytes = MIB + 1;
        let rounding = rounding_bytes(bytes);
        note_given(account, bytes);
        // Without a manager, and with one that has looked before.
        assert_eq!(unseen(account, 0), (0, true));
        assert_eq!(unseen(account, seen(0, 0)), (rounding, false));
        let looked = seen(account.rounding_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(unseen(account, looked), (0, true));
        // The memory that was freed after the look is gone, but the overhead that the look has found is no longer
        // right.
        note_given(account, 2 * bytes);
        note_taken_back(account, bytes);
        note_taken_back(account, 2 * bytes);
        assert_eq!(unseen(account, looked), (0, false));
        note_given(account, bytes);
        assert_eq!(unseen(account, looked), (0, true));
        note_given(account, bytes);
        assert_eq!(unseen(account, looked), (rounding, false));
    }

    #[test]
    fn other_overhead_is_unseen_until_a_look() {
        let ledger = ledger();
        let account = &ledger.devices[0];
        note_overhead(account, 3 * MIB);
        assert_eq!(unseen(account, seen(0, 0)), (3 * MIB, false));
        assert_eq!(unseen(account, seen(3 * MIB, 0)), (0, true));
    }

    #[test]
    fn the_doubt_of_a_look_stays_unseen() {
        let ledger = ledger();
        let account = &ledger.devices[0];
        for rounding in [0, 5, 100] {
            account.rounding_bytes.store(rounding, Ordering::Relaxed);
            for doubt in [1, 5, 7, MIB] {
                let looked = seen(rounding, doubt);
                assert_ne!(looked, 0, "{rounding}, {doubt}: it would mean that nobody looks");
                let (bytes, is_nothing) = unseen(account, looked);
                assert!((doubt..=doubt + 1).contains(&bytes) && !is_nothing, "{rounding}, {doubt}: {bytes}");
            }
        }
    }

    #[test]
    fn a_look_doubts_what_changes_or_moves_meanwhile() {
        let ledger = ledger();
        let (account, part) = (&ledger.devices[0], &ledger.slots[1].devices[0]);
        let reserve = |bytes| crate::ledger::reserve(account, &part.memory, bytes, u64::MAX).unwrap();
        reserve(10);
        let begin = || Look::begin(account, std::iter::once(part));
        let end = |look: Look| look.end(account, std::iter::once(part));
        assert_eq!(end(begin()), Looked { used_bytes: 10, seen: seen(0, 0) });
        let look = begin();
        reserve(5);
        assert_eq!(end(look), Looked { used_bytes: 15, seen: seen(0, 5) });
        let look = begin();
        crate::ledger::release(account, &part.memory, 5);
        assert_eq!(end(look), Looked { used_bytes: 15, seen: seen(0, 5) });
        let look = begin();
        reserve(5);
        crate::ledger::release(account, &part.memory, 5);
        assert_eq!(end(look), Looked { used_bytes: 10, seen: seen(0, 1) });
        let look = begin();
        part.moving_bytes.store(7, Ordering::Relaxed);
        assert_eq!(end(look), Looked { used_bytes: 10, seen: seen(0, 7) });
        let look = begin();
        part.moving_bytes.store(0, Ordering::Relaxed);
        assert_eq!(end(look), Looked { used_bytes: 10, seen: seen(0, 7) });
    }

    #[test]
    fn whole_blocks_change_nothing() {
        let ledger = ledger();
        let account = &ledger.devices[0];
        for bytes in [0, 2 * MIB, 1 << 30] {
            note_given(account, bytes);
            assert_eq!(unseen(account, seen(0, 0)), (0, true));
        }
    }
}

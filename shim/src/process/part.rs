//! One part of the slice, with this process's books and work for it.

use super::Process;
use crate::gate::Shard;
use crate::markers::Flight;
use aliquot_abi::region::{Account, AttachMessage, DeviceLimits, Slot, SlotDevice};
use aliquot_abi::rounding::Unseen;
use core::sync::atomic::{AtomicU64, Ordering};

/// One part of the slice as one process sees it.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) process: &'static Process,
    pub(crate) index: usize,
    pub(crate) limits: &'static DeviceLimits,
}

impl Part {
    /// The container's account for this device's memory, and this process's word for it.
    #[inline]
    pub(crate) fn books(&self) -> Option<(&'static Account, &'static AtomicU64)> {
        self.process.books(self.index)
    }

    /// The slot of the region that this process holds.
    #[inline]
    pub(crate) fn slot(&self) -> &'static Slot {
        self.process.slot()
    }

    /// This process's counters for this device.
    #[inline]
    pub(crate) fn work(&self) -> Option<&'static SlotDevice> {
        self.slot().devices.get(self.index)
    }

    /// The cells into which this device writes this process's markers.
    #[inline]
    pub(crate) fn row(&self) -> Option<&'static [AtomicU64]> {
        self.slot().row(self.index)
    }

    /// This process's work in flight on this device.
    #[inline]
    pub(crate) fn flight(&self) -> Option<&'static Flight> {
        self.process.flights.get(self.index)
    }

    /// Shard number `number` of this process's launches on this device.
    #[inline]
    pub(crate) fn shard(&self, number: usize) -> Option<&'static Shard> {
        self.process.shards.get(self.index)?.get(number)
    }

    /// All shards of this process's launches on this device.
    pub(crate) fn shards(&self) -> &'static [Shard] {
        self.process.shards.get(self.index).map_or(&[], |shards| shards)
    }

    /// Tells the manager that a thread waits at this device's gate. `false` if it cannot be told.
    pub(crate) fn ring(&self) -> bool {
        self.process.send(AttachMessage::RING, self.index)
    }

    /// The bytes that the ledger may reserve of this device's memory: the limit minus the overhead.
    #[inline]
    pub(crate) fn memory_limit_bytes(&self) -> u64 {
        let overhead = self.limits.memory_overhead_bytes.load(Ordering::Relaxed);
        self.limits.memory_limit_bytes.load(Ordering::Relaxed).saturating_sub(overhead)
    }

    /// The bytes of them that may be reserved before the manager looks again. The rest may be overhead already.
    #[inline]
    pub(crate) fn memory_limit_bytes_until_look(&self) -> u64 {
        // In this order: the manager stores the overhead first, so nothing is missing from both.
        let unseen_bytes = self.unseen().bytes();
        self.memory_limit_bytes().saturating_sub(unseen_bytes)
    }

    /// The device's memory that the manager's last look has not seen.
    #[inline]
    pub(crate) fn unseen(&self) -> Unseen {
        let seen = self.limits.rounding_seen.load(Ordering::Acquire);
        self.process.ledger().devices.get(self.index).map_or(Unseen::NOTHING, |account| Unseen::of(account, seen))
    }
}

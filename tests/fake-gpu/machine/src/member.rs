//! A process that has joined the machine: its record and its memory.

use core::sync::atomic::Ordering;

use crate::layout::{Device, Share};
use crate::{Config, Machine, Mode};

/// This process's record, held for the life of the process.
pub struct Member {
    pub(crate) machine: &'static Machine,
    pub(crate) index: usize,
}

impl Member {
    pub(crate) fn new(machine: &'static Machine, index: usize) -> Member {
        Member { machine, index }
    }

    /// The configuration of the machine.
    #[must_use]
    pub fn config(&self) -> &'static Config {
        self.machine.config()
    }

    /// Whether device `device` has stopped answering.
    #[must_use]
    #[inline]
    pub fn is_lost(&self, device: usize) -> bool {
        self.machine.is_lost(device)
    }

    pub(crate) fn device(&self, device: usize) -> &'static Device {
        &self.machine.state.devices[device]
    }

    pub(crate) fn share(&self, device: usize) -> &'static Share {
        &self.machine.state.records[self.index].devices[device]
    }

    /// Reserves `bytes` of a device's memory. Returns false if all processes together would then hold more than the
    /// device has.
    #[must_use]
    pub fn reserve_memory(&self, device: usize, bytes: u64) -> bool {
        if self.try_reserve(device, bytes) {
            return true;
        }
        self.machine.reap();
        self.try_reserve(device, bytes)
    }

    fn try_reserve(&self, device: usize, bytes: u64) -> bool {
        let total = self.config().devices[device].memory_bytes;
        let _memory = self.device(device).memory.lock(self.machine);
        let used = self.recorded_memory_bytes(device);
        let fits = used.checked_add(bytes).is_some_and(|sum| sum <= total);
        if fits {
            // One atomic step, because `release_memory` does not take the lock. Reserving does take it, so the sum
            // above can only have shrunk since.
            self.share(device).memory_bytes.fetch_add(bytes, Ordering::Relaxed);
            let peak = &self.device(device).memory_peak_bytes;
            peak.store(peak.load(Ordering::Relaxed).max(used + bytes), Ordering::Relaxed);
        }
        fits
    }

    /// Releases `bytes` of a device's memory that were reserved before.
    pub fn release_memory(&self, device: usize, bytes: u64) {
        self.share(device).memory_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Free bytes of a device's memory. In instant mode the memory of a dead process may still count as used; it is
    /// freed when it is needed.
    #[must_use]
    pub fn free_memory_bytes(&self, device: usize) -> u64 {
        if self.config().mode == Mode::Timed {
            self.machine.reap();
        }
        self.config().devices[device].memory_bytes.saturating_sub(self.recorded_memory_bytes(device))
    }

    fn recorded_memory_bytes(&self, device: usize) -> u64 {
        let shares = self.machine.records().map(|(_, record)| &record.devices[device]);
        shares.map(|share| share.memory_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Counts a new context on a device. Its memory must have been reserved before.
    pub fn add_context(&self, device: usize) {
        let share = self.share(device);
        share.unlisted_bytes.fetch_add(self.config().context_memory_unlisted_bytes, Ordering::Relaxed);
        share.contexts.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one context less on a device. Its memory is released afterwards.
    pub fn remove_context(&self, device: usize) {
        let share = self.share(device);
        share.contexts.fetch_sub(1, Ordering::Relaxed);
        share.unlisted_bytes.fetch_sub(self.config().context_memory_unlisted_bytes, Ordering::Relaxed);
    }
}

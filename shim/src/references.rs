//! References to a device's primary context that this process is known to hold.
//!
//! Libraries take and give up a reference around each operation. Only the release of the last reference ends the
//! context, and the other releases must not pay the cost of an end. So references are counted, and the count is never
//! too high. References of green contexts, and those from before this process's attachment, are not counted.

use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The counted references to one primary context. All zero: none.
#[repr(C)]
pub(crate) struct References {
    /// Bits 0 to 31: number of references; bits 32 to 63: the epoch, which each reset advances.
    word: AtomicU64,
    /// Number of releases under way that are known not to be the last one.
    harmless: AtomicU32,
    /// Number of threads that have charged the context, and for which the driver is making it.
    beginning: AtomicU32,
}

/// The epoch in [`References::word`]: a reference that was taken before a reset is not counted after it.
#[derive(Clone, Copy)]
pub(crate) struct Epoch(u64);

/// A release whose driver call is about to be made.
pub(crate) struct Release<'a> {
    references: &'a References,
    epoch: Epoch,
    /// Number of counted references that it gives up.
    taken: u64,
    /// Whether a reference is certainly left, so that the release does not end the context.
    pub(crate) is_harmless: bool,
}

const COUNT: u64 = u32::MAX as u64;

fn epoch_of(word: u64) -> u64 {
    word & !COUNT
}

impl References {
    /// To be called before a reference is taken.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(epoch_of(self.word.load(Ordering::Acquire)))
    }

    /// To be called when the context has been charged, before the driver is asked for it.
    pub(crate) fn begins(&self) {
        self.beginning.fetch_add(1, Ordering::AcqRel);
    }

    /// To be called when the driver has answered.
    pub(crate) fn has_begun(&self) {
        self.beginning.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether the context has been charged, and the driver is making it.
    pub(crate) fn is_beginning(&self) -> bool {
        self.beginning.load(Ordering::Acquire) != 0
    }

    /// Whether a counted reference exists.
    pub(crate) fn is_held(&self) -> bool {
        self.word.load(Ordering::Acquire) & COUNT != 0
    }

    /// Counts a reference that was taken after `epoch` was read.
    pub(crate) fn taken_since(&self, epoch: Epoch) {
        self.add(epoch, 1);
    }

    fn add(&self, Epoch(epoch): Epoch, count: u64) {
        let more = |word: u64| (epoch_of(word) == epoch && word & COUNT < COUNT).then(|| word.wrapping_add(count));
        // Has no effect if a reset came in between.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }

    /// To be called before and after a reset, which makes all references void.
    pub(crate) fn void(&self) {
        let void = |word: u64| Some(epoch_of(word).wrapping_add(COUNT + 1));
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, void);
    }

    /// To be called before a reference is given up. `taken` is 1 if it is a counted one, otherwise 0.
    ///
    /// Counted references leave the count before the driver's call. So while a harmless release is under way, at least
    /// one reference is still counted. Only a release that is not harmless can take that one, and it waits here until
    /// the harmless ones are done. So the last release to reach the driver is never a harmless one.
    pub(crate) fn release(&self, taken: u64) -> Release<'_> {
        // Before the count decreases, so that a thread that then finds it too low waits for this release.
        self.harmless.fetch_add(1, Ordering::AcqRel);
        let mut word = self.word.load(Ordering::Acquire);
        let (taken, is_harmless) = loop {
            let is_harmless = word & COUNT > taken;
            let taken = taken.min(word & COUNT);
            match self.word.compare_exchange_weak(word, word - taken, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break (taken, is_harmless),
                Err(now) => word = now,
            }
        };
        if !is_harmless {
            self.harmless.fetch_sub(1, Ordering::AcqRel);
            self.wait_for_harmless();
        }
        Release { references: self, epoch: Epoch(epoch_of(word)), taken, is_harmless }
    }

    fn wait_for_harmless(&self) {
        /// Many times the length of such a call. A thread that was cancelled in one never comes back from it.
        const YIELDS_MAX: u32 = 10_000;
        for _ in 0..YIELDS_MAX {
            if self.harmless.load(Ordering::Acquire) == 0 {
                return;
            }
            sys::yield_now();
        }
    }
}

impl Release<'_> {
    /// To be called when the driver has answered. If the reference was not given up, it counts again.
    pub(crate) fn finish(self, given_up: bool) {
        if !given_up {
            self.references.add(self.epoch, self.taken);
        }
        if self.is_harmless {
            self.references.harmless.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

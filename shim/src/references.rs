//! References to a device's primary context that this process is known to hold.
//!
//! Libraries take and give up a reference around each operation. Only the last one's release ends the context, and what
//! an end costs must not be paid at the others: so the references are counted, never too many of them. Those that green
//! contexts hold, and those from before this process's attachment, are not counted.

use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The known references to one primary context. All zero: none.
#[repr(C)]
pub(crate) struct References {
    /// Bits 0 to 31: how many; bits 32 to 63: how often a reset has made them void.
    word: AtomicU64,
    /// Releases under way of which it is known that they are not the last.
    harmless: AtomicU32,
}

/// What [`References::word`] was: a reference that was taken before a reset is not counted after it.
#[derive(Clone, Copy)]
pub(crate) struct Epoch(u64);

/// A release that is about to be made.
pub(crate) struct Release<'a> {
    references: &'a References,
    epoch: Epoch,
    /// Counted references that it gives up.
    taken: u64,
    /// Whether a reference is left for certain: the release does not end the context.
    pub(crate) is_harmless: bool,
}

const COUNT: u64 = u32::MAX as u64;

fn epoch_of(word: u64) -> u64 {
    word & !COUNT
}

impl References {
    /// Call before a reference is taken.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(epoch_of(self.word.load(Ordering::Acquire)))
    }

    /// Whether a reference is known.
    pub(crate) fn is_held(&self) -> bool {
        self.word.load(Ordering::Acquire) & COUNT != 0
    }

    /// A reference was taken since `epoch`.
    pub(crate) fn taken_since(&self, epoch: Epoch) {
        self.add(epoch, 1);
    }

    fn add(&self, Epoch(epoch): Epoch, count: u64) {
        let more = |word: u64| (epoch_of(word) == epoch && word & COUNT < COUNT).then(|| word.wrapping_add(count));
        // Fails when a reset came between.
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }

    /// Call before and after a reset: after it nobody holds a reference.
    pub(crate) fn void(&self) {
        let void = |word: u64| Some(epoch_of(word).wrapping_add(COUNT + 1));
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, void);
    }

    /// Call before `taken` (0 or 1) of the counted references are given up; 0 where an uncounted one is.
    ///
    /// They leave the count before the call. So beside a harmless release one reference is counted at least, which only
    /// a release that is not harmless can take; and that waits here until the harmless ones are through. The last to
    /// reach the driver is never harmless.
    pub(crate) fn release(&self, taken: u64) -> Release<'_> {
        // Before the count is taken down, for whoever then finds it too low.
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
        /// Many times what such a call takes: a thread that was cancelled in one never comes back from it.
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
    /// The driver has answered. What was not given up counts again.
    pub(crate) fn finish(self, given_up: bool) {
        if !given_up {
            self.references.add(self.epoch, self.taken);
        }
        if self.is_harmless {
            self.references.harmless.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

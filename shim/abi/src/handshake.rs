//! The handshake at a device's gate: nobody waits at a closed gate unseen, and the manager may sleep.
//!
//! Whoever waits counts itself in, and then looks whether the manager watches. A manager that goes to sleep first says
//! that it does not watch any more, and then looks once more who waits. Each changes one word and reads the other's;
//! the fences make sure that not both of them read the word as it was before the change. So the one rings, or the other
//! sees it.

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::region::gate;

/// Counts the calling thread in among those who wait at the gate `word`. Returns the gate's word: it may have been
/// opened meanwhile, and if it is closed, [`must_ring`] says whether the manager may be asleep.
#[inline]
#[must_use]
pub fn count_in(waiting: &AtomicU32, word: &AtomicU32) -> u32 {
    waiting.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    // Pairs with the store in `set`: whoever sees the gate open sees what was written before it was opened.
    word.load(Ordering::Acquire)
}

/// Whether somebody who waits at a closed gate with this word must ring.
#[inline]
#[must_use]
pub fn must_ring(word: u32) -> bool {
    word & (gate::OPEN | gate::WATCHED) == 0
}

/// Gives the gate `word` the flags `flags` and a new count. Only the manager calls this, one thread for each gate.
/// Returns the word as it was before. Whoever is not seen waiting by the calling thread from now on sees the new word.
pub fn set(word: &AtomicU32, flags: u32) -> u32 {
    let flag_mask = gate::TICK - 1;
    let before = word.load(Ordering::Relaxed);
    let count = (before & !flag_mask).wrapping_add(gate::TICK);
    word.store(count | (flags & flag_mask), Ordering::Release);
    fence(Ordering::SeqCst);
    before
}

//! The handshake at a device's gate: no thread waits at a closed gate unnoticed, and the manager may sleep.
//!
//! A waiting thread first counts itself in and then reads whether the manager watches the gate. A manager that is about
//! to sleep first stores that it no longer watches, and then reads the count of waiting threads once more. Each side
//! writes one word and then reads the other's. The fences between the two steps ensure that at least one side sees the
//! other's write: either the thread rings, or the manager sees it waiting.

use crate::atomic::{AtomicU32, Ordering, fence};
use crate::region::gate;

/// Adds the calling thread to the count of threads that wait at the gate `word`, and returns that word. The gate may
/// have been opened meanwhile. If it is closed, [`must_ring`] tells whether the manager may be asleep.
#[inline]
#[must_use]
pub fn count_in(waiting: &AtomicU32, word: &AtomicU32) -> u32 {
    waiting.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    // Pairs with the store in `set`: a thread that sees the gate open also sees what was written before it was opened.
    word.load(Ordering::Acquire)
}

/// Whether a thread that waits at a gate with this word must ring, because the gate is closed and may be unwatched.
#[inline]
#[must_use]
pub fn must_ring(word: u32) -> bool {
    word & (gate::OPEN | gate::WATCHED) == 0
}

/// Gives the gate `word` the flags `flags` and a new count, and returns the word as it was before. Only the manager
/// calls this, from one thread per gate. A thread that the manager does not see waiting after this call sees the new
/// word.
pub fn set(word: &AtomicU32, flags: u32) -> u32 {
    let flag_mask = gate::TICK - 1;
    let before = word.load(Ordering::Relaxed);
    let count = (before & !flag_mask).wrapping_add(gate::TICK);
    word.store(count | (flags & flag_mask), Ordering::Release);
    fence(Ordering::SeqCst);
    before
}

//! Memory for the shim's own tables, taken from the kernel in large pieces and never given back.
//!
//! The host's heap is not used: a hook may run inside the host's allocator, and a child may inherit the heap locked.

use crate::sys;
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are taken from the kernel at once. Only touched pages use memory.
const PIECE_BYTES: usize = 16 << 20;

/// A supply of zeroed memory.
pub(crate) struct Arena {
    /// The next free address.
    next: AtomicUsize,
}

impl Arena {
    pub(crate) const fn new() -> Arena {
        Arena { next: AtomicUsize::new(0) }
    }

    /// `bytes` of zeroed memory, aligned to `bytes`; null if the kernel has none. `bytes` must be a power of two and at
    /// most half a piece.
    pub(crate) fn take(&self, bytes: usize) -> *mut c_void {
        loop {
            let next = self.next.load(Ordering::Relaxed);
            // `refill` aligns pieces to their size, so an address shows where its piece ends.
            let start = (next + (bytes - 1)) & !(bytes - 1);
            let piece_is_spent = next.is_multiple_of(PIECE_BYTES) || start / PIECE_BYTES != next / PIECE_BYTES;
            let end = start.wrapping_add(bytes);
            let piece_is_overrun = end.wrapping_sub(1) / PIECE_BYTES != next / PIECE_BYTES;
            if piece_is_spent || piece_is_overrun {
                if !self.refill(next) {
                    return core::ptr::null_mut();
                }
                continue;
            }
            if self.next.compare_exchange_weak(next, end, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return core::ptr::with_exposed_provenance_mut(start);
            }
        }
    }

    fn refill(&self, spent: usize) -> bool {
        let Ok(mapping) = sys::map_anonymous(2 * PIECE_BYTES) else { return false };
        // SAFETY: mapped just now.
        unsafe { sys::avoid_huge_pages(mapping, 2 * PIECE_BYTES) };
        let start = (mapping.expose_provenance() + PIECE_BYTES) & !(PIECE_BYTES - 1);
        // The first 64 bytes stay unused: an address at the very start of a piece means that the piece before is used
        // up.
        if self.next.compare_exchange(spent, start + 64, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // SAFETY: another thread refilled first; no other code knows this mapping.
            unsafe { sys::unmap(mapping, 2 * PIECE_BYTES) };
        }
        true
    }
}

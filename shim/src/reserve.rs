//! What the driver keeps in reserve: the memory of a pool, charged as a whole.
//!
//! A pool takes physical memory from the device in pieces of its own choice, keeps what is freed for a while, and gives
//! it back when it sees fit; so no request's size says what it costs. The charge follows the driver's own figure: a
//! request that may make the pool grow is charged ahead, by what it can take at most of what is not there yet; after
//! it, and whenever the pool may have shrunk, the charge is [settled](Reserve::settle): made equal to what the driver
//! says.
//!
//! Threads do this at once without a lock. Beside the charge stands a count of changes, so that a figure that was asked
//! for before another thread's request never replaces one that was asked for after it; and while another thread's
//! request is under way a charge only grows, since the driver may not have taken yet what was charged ahead. The last
//! request to end settles the rest.

use crate::allocations::Charge;
use crate::process::Process;
use aliquot_abi::ledger::{self, BYTES_MASK};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The charge for one reserve; all zero: nothing.
#[repr(C)]
pub(crate) struct Reserve {
    /// Bytes that are charged, in the low 48 bits; above them a count of changes, which wraps.
    charged: AtomicU64,
    /// Requests under way that can make it grow.
    requests: AtomicU32,
}

const CHANGE: u64 = 1 << 48;

/// Who settles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settler {
    /// A request under way, after the driver's call. Growth is charged if the limit allows.
    Request,
    /// Anybody else. Growth is left to the requests under way; where there is none, the memory is taken, and the books
    /// must say so.
    Observer,
}

/// What became of settling.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The charge is what the driver says.
    Exactly,
    /// It may be more, for the requests under way.
    ForOthers,
    /// The reserve has grown by more than the limit allows.
    OverLimit,
}

impl Reserve {
    /// Bytes that are charged.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charged.load(Ordering::Relaxed) & BYTES_MASK
    }

    /// Charges `ahead_bytes` for a request that is about to be made. `false` if the limit forbids it; otherwise the
    /// request is under way until [`Reserve::end_request`].
    #[inline(never)]
    pub(crate) fn begin_request(
        &self,
        process: &'static Process,
        account: usize,
        ahead_bytes: u64,
        limit_bytes: u64,
    ) -> bool {
        let Some((books, part)) = process.books(account) else { return false };
        if ahead_bytes > 0 && ledger::reserve(books, part, ahead_bytes, limit_bytes).is_err() {
            return false;
        }
        // Counted before the charge is: who settles reads them in the other order.
        self.requests.fetch_add(1, Ordering::AcqRel);
        self.charged.fetch_add(CHANGE + ahead_bytes, Ordering::AcqRel);
        true
    }

    /// The request is over, whatever came of it.
    pub(crate) fn end_request(&self) {
        self.charged.fetch_add(CHANGE, Ordering::AcqRel);
        self.requests.fetch_sub(1, Ordering::AcqRel);
    }

    /// Makes the charge what the driver says it has in reserve: `reserved_bytes`, which is asked for anew until nobody
    /// has changed the charge meanwhile; `None` leaves the charge as it is.
    #[inline(never)]
    pub(crate) fn settle(
        &self,
        process: &'static Process,
        account: usize,
        settler: Settler,
        limit_bytes: u64,
        reserved_bytes: &dyn Fn() -> Option<u64>,
    ) -> Settled {
        let Some((books, part)) = process.books(account) else { return Settled::Exactly };
        let (own, limit_bytes) = match settler {
            Settler::Request => (1, limit_bytes),
            Settler::Observer => (0, u64::MAX),
        };
        loop {
            let before = self.charged.load(Ordering::Acquire);
            let has_others = self.requests.load(Ordering::Acquire) > own;
            let Some(reserved) = reserved_bytes() else { return Settled::Exactly };
            let charged = before & BYTES_MASK;
            let after = (before & !BYTES_MASK).wrapping_add(CHANGE) | reserved & BYTES_MASK;
            let replace = || self.charged.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            let settled = if has_others { Settled::ForOthers } else { Settled::Exactly };
            if reserved == charged || has_others && (reserved < charged || settler == Settler::Observer) {
                return settled;
            }
            if reserved > charged {
                // A request that made it grow after the charge was read has charged that itself, before it did: with it
                // the same bytes would stand in the books twice, until the exchange below failed.
                if self.charged.load(Ordering::Acquire) != before {
                    continue;
                }
                let more = reserved - charged;
                if ledger::reserve(books, part, more, limit_bytes).is_err() {
                    return Settled::OverLimit;
                }
                if replace() {
                    return settled;
                }
                ledger::release(books, part, more);
            } else if replace() {
                Charge { account, bytes: charged - reserved }.refund();
                return settled;
            }
        }
    }
}

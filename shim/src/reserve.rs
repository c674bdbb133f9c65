//! Memory that the driver keeps in reserve: a pool, charged as a whole.
//!
//! A pool takes physical memory from the device in pieces whose size it chooses, keeps freed memory for a while, and
//! gives it back when it sees fit. So the size of a request does not tell its cost, and the charge follows the driver's
//! own figure. A request that may make the pool grow is charged ahead, by the most that it can take beyond the reserve.
//! After the request, and whenever the pool may have shrunk, the charge is [settled](Reserve::settle): set to the
//! driver's figure.
//!
//! Threads do this concurrently, without a lock. A count of changes stands beside the charge: a figure that was read
//! before another thread's request never replaces one that was read after it. While another thread's request is under
//! way, a charge only grows, because the driver may not have taken the memory yet that was charged ahead. The last
//! request to end settles the rest.

use crate::allocations::Charge;
use crate::call::Call;
use crate::process::Process;
use aliquot_abi::ledger::{self, BYTES_MASK};
use aliquot_abi::region::Account;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The charge for one reserve. All zero: nothing is charged.
#[repr(C)]
pub(crate) struct Reserve {
    /// Bytes that are charged, in the low 48 bits; above them a count of changes, which wraps.
    charged: AtomicU64,
    /// Number of requests under way that can make the reserve grow.
    requests: AtomicU32,
    /// Bytes of the requests whose memory the driver's figures may not show yet.
    expected_bytes: AtomicU64,
}

/// The bytes of a request whose memory the driver's figures may not show yet.
pub(crate) struct Expected<'a> {
    reserve: &'a Reserve,
    bytes: u64,
    /// The bytes of the requests before it.
    earlier_bytes: u64,
}

impl Expected<'_> {
    /// The most that earlier requests may still take of what the reserve has and does not use: what is there for one
    /// request is not there for another. To be read before the driver's figures, so that memory which arrives
    /// meanwhile counts twice, and not never.
    #[inline(never)]
    pub(crate) fn taken_by_others(&self) -> u64 {
        self.earlier_bytes.min(self.others_bytes())
    }

    /// The bytes of all other requests whose memory the driver's figures may not show yet.
    pub(crate) fn others_bytes(&self) -> u64 {
        self.reserve.expected_bytes.load(Ordering::Acquire).saturating_sub(self.bytes)
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.reserve.has_arrived(self.bytes);
    }
}

const CHANGE: u64 = 1 << 48;

/// The caller of [`Reserve::settle`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settler {
    /// A request under way, after the driver's call. Growth is charged if this limit allows it.
    Request { limit_bytes: u64 },
    /// Any other caller. Growth is left to the requests under way. If there are none, the memory has been taken, and is
    /// charged even beyond the limit.
    Observer,
}

/// The result of [`Reserve::settle`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The charge is the driver's figure.
    Exactly,
    /// The charge may be greater than the driver's figure, because other requests are under way.
    ForOthers,
    /// The reserve has grown by more than the limit allows.
    OverLimit,
}

impl Reserve {
    /// Bytes that are charged.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charged.load(Ordering::Relaxed) & BYTES_MASK
    }

    /// Announces a request for `bytes`, before it looks at the driver's figures.
    pub(crate) fn expect(&self, bytes: u64) -> Expected<'_> {
        let earlier_bytes = self.expected_bytes.fetch_add(bytes, Ordering::AcqRel);
        Expected { reserve: self, bytes, earlier_bytes }
    }

    /// To be called for an [expected](Self::expect) request when the driver's figures show its memory, or it gets none.
    pub(crate) fn has_arrived(&self, bytes: u64) {
        self.expected_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Charges what `ahead_bytes` says for a request whose driver call follows. `false` if the limit forbids it;
    /// otherwise the request is under way until [`Reserve::end_request`]. `ahead_bytes` reads the driver's figures. It is
    /// called again if another thread has changed the charge meanwhile: then the figures may be of before.
    #[inline(never)]
    pub(crate) fn begin_request(
        &self,
        process: &'static Process,
        account: usize,
        ahead_bytes: &dyn Fn() -> u64,
        limit_bytes: u64,
    ) -> bool {
        let Some((books, part)) = process.books(account) else { return false };
        loop {
            let before = self.charged.load(Ordering::Acquire);
            let ahead_bytes = ahead_bytes();
            // What is there already may be used even beyond the limit.
            if ahead_bytes > 0 && !reserve(books, part, ahead_bytes, limit_bytes) {
                return false;
            }
            // Counted before the charge grows: `settle` reads the two in the opposite order.
            self.requests.fetch_add(1, Ordering::AcqRel);
            let after = before.wrapping_add(CHANGE + ahead_bytes);
            if self.charged.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return true;
            }
            self.requests.fetch_sub(1, Ordering::AcqRel);
            Charge { account, bytes: ahead_bytes }.refund();
        }
    }

    /// To be called when the request is over, whether it succeeded or not.
    #[inline(never)]
    pub(crate) fn end_request(&self) {
        self.charged.fetch_add(CHANGE, Ordering::AcqRel);
        self.requests.fetch_sub(1, Ordering::AcqRel);
    }

    /// Sets the charge to the driver's figure `reserved_bytes`. The figure is read again if another thread has changed
    /// the charge meanwhile. If it is `None`, the charge stays as it is.
    #[inline(never)]
    pub(crate) fn settle(
        &self,
        process: &'static Process,
        account: usize,
        settler: Settler,
        reserved_bytes: &dyn Call<Option<u64>>,
    ) -> Settled {
        let Some((books, part)) = process.books(account) else { return Settled::Exactly };
        let (own, limit_bytes) = match settler {
            Settler::Request { limit_bytes } => (1, limit_bytes),
            Settler::Observer => (0, u64::MAX),
        };
        loop {
            let before = self.charged.load(Ordering::Acquire);
            let has_others = self.requests.load(Ordering::Acquire) > own;
            let Some(reserved) = reserved_bytes.make() else { return Settled::Exactly };
            let charged = before & BYTES_MASK;
            let after = (before & !BYTES_MASK).wrapping_add(CHANGE) | reserved & BYTES_MASK;
            let replace = || self.charged.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            let settled = if has_others { Settled::ForOthers } else { Settled::Exactly };
            if reserved == charged || has_others && (reserved < charged || settler == Settler::Observer) {
                return settled;
            }
            if reserved > charged {
                // If another request changed the charge after it was read, the growth may belong to that request, and
                // be charged already. Then the same bytes would be charged twice until the exchange below failed.
                if self.charged.load(Ordering::Acquire) != before {
                    continue;
                }
                let more = reserved - charged;
                if !reserve(books, part, more, limit_bytes) {
                    return Settled::OverLimit;
                }
                if replace() {
                    return settled;
                }
                Charge { account, bytes: more }.refund();
            } else if replace() {
                Charge { account, bytes: charged - reserved }.refund();
                return settled;
            }
        }
    }
}

/// As [`ledger::reserve`], but not inlined: here the time of a call does not matter.
#[inline(never)]
fn reserve(books: &Account, part: &AtomicU64, bytes: u64, limit_bytes: u64) -> bool {
    ledger::reserve(books, part, bytes, limit_bytes).is_ok()
}

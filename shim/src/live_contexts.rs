//! The contexts of this process: those that live, and the charge of each from its beginning.
//!
//! A context takes hundreds of megabytes of its device, and the manager sees them only when it looks. So they are
//! reserved before the driver makes the context, by the size that contexts of the device were last seen to have, and
//! stay reserved while the context lives. Nothing is counted twice: the manager's overhead is the driver's figure minus
//! the ledger's, so it includes only the part of a context beyond its charge. A charge is never moved to the overhead,
//! so no such move can be interrupted.
//!
//! The calls that begin and end contexts tell whether a context lives. The driver is not asked, because it must not be
//! given a stale handle.

use crate::allocations::Charge;
use crate::process::{Part, Process};
use crate::radix::Radix;
use aliquot_abi::cuda::CUcontext;
use aliquot_abi::ledger::BYTES_MASK;
use core::sync::atomic::{AtomicU64, Ordering};

/// A word for each handle; 0 means that the handle is not known.
///
/// Bits 0 to 47: the bytes that were charged. Bits 48 to 52: the account. Bits 53 to 60: number of attachments beyond
/// the first. Bits 61 to 63: kind and state. The word of a green context is the handle of its primary context, with
/// [`PRIMARY`] and no state.
static CONTEXTS: Radix<0, 12, 4> = Radix::new();

const ACCOUNT_SHIFT: u32 = 48;
const ATTACHMENT: u64 = 1 << 53;
const ATTACHMENTS: u64 = 0xff << 53;
/// A device's primary context.
const PRIMARY: u64 = 1 << 61;
const LIVE: u64 = 1 << 62;
const ENDED: u64 = 1 << 63;
/// A call that can end the context is under way.
const ENDING: u64 = LIVE | ENDED;

/// A context's kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Made by `cuCtxCreate`.
    Own,
    /// A device's primary context.
    Primary,
}

/// Records that `context` of `part` has begun, and was charged `charge`.
pub(crate) fn begun(part: &Part, context: CUcontext, kind: Kind, charge: Charge) {
    let Some(entry) = entry(context) else { return charge.refund() };
    let primary = if kind == Kind::Primary { PRIMARY } else { 0 };
    let word = LIVE | primary | (charge.account as u64 & 0x1f) << ACCOUNT_SHIFT | charge.bytes & BYTES_MASK;
    let mut before = entry.load(Ordering::Acquire);
    loop {
        if kind == Kind::Primary && is_live(before) {
            // Another thread recorded it first. Both threads have charged it.
            return charge.refund();
        }
        match entry.compare_exchange_weak(before, word, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(now) => before = now,
        }
    }
    if let Some(work) = part.work() {
        work.context_bytes.fetch_add(charge.bytes, Ordering::Relaxed);
        // After the driver has made the context: the manager computes from this number what contexts take.
        work.contexts.fetch_add(1, Ordering::Release);
    }
    if is_live(before) {
        // The driver gave this handle again, so the context that had it before is gone.
        gone(before);
    }
}

/// Records that `context`, the handle of a green context on `primary`, has begun.
pub(crate) fn known(context: CUcontext, primary: CUcontext) {
    let word = PRIMARY | primary.0.addr() as u64 & BYTES_MASK;
    if let Some(entry) = entry(context).filter(|entry| !is_live(entry.load(Ordering::Relaxed))) {
        entry.store(word, Ordering::Release);
    }
}

/// The primary context that `context` is a green context on; `context` itself if it is none.
#[inline(never)]
pub(crate) fn primary_of(context: CUcontext) -> CUcontext {
    match existing(context).map_or(0, |entry| entry.load(Ordering::Acquire)) {
        word if word & (ENDING | PRIMARY) == PRIMARY => {
            CUcontext(core::ptr::with_exposed_provenance_mut((word & BYTES_MASK) as usize))
        }
        _ => context,
    }
}

/// Records that `context`, the handle of a green context, has ended.
pub(crate) fn forgotten(context: CUcontext) {
    if let Some(entry) = entry(context).filter(|entry| !is_live(entry.load(Ordering::Relaxed))) {
        entry.store(ENDED, Ordering::Release);
    }
}

/// Whether `context` lives, as far as this process's calls have shown.
pub(crate) fn is_alive(context: CUcontext) -> bool {
    existing(context).is_none_or(|entry| entry.load(Ordering::Acquire) != ENDED)
}

/// Counts one more attachment to `context`.
pub(crate) fn attached(context: CUcontext) {
    let more = |word: u64| (word & ATTACHMENTS != ATTACHMENTS).then(|| word + ATTACHMENT);
    if let Some(entry) = entry(context) {
        let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more);
    }
}

/// Counts one attachment to `context` less. Returns whether it was the last one.
pub(crate) fn detached(context: CUcontext) -> bool {
    let less = |word: u64| (word & ATTACHMENTS != 0).then(|| word - ATTACHMENT);
    existing(context).is_none_or(|entry| entry.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less).is_err())
}

/// A context during a call that can end it.
///
/// Its charge is removed from the table before the call. So if another thread makes the primary context again as soon
/// as this call has ended it, the new context is charged separately.
pub(crate) struct MayEnd {
    context: CUcontext,
    /// The word in the table, if the context lived by it.
    word: Option<u64>,
}

impl MayEnd {
    pub(crate) fn new(context: CUcontext) -> MayEnd {
        let take = |word: u64| is_live(word).then_some(ENDING | word & ATTACHMENTS);
        let taken = |entry: &AtomicU64| entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok();
        MayEnd { context, word: existing(context).and_then(taken) }
    }

    /// The context lives on.
    pub(crate) fn lives(self) {
        let Some(word) = self.word else { return };
        // Attachments may have changed meanwhile, so they are taken from the table.
        let back = |now: u64| (now & ENDING == ENDING).then_some(word & !ATTACHMENTS | now & ATTACHMENTS);
        let put_back = existing(self.context)
            .is_some_and(|entry| entry.fetch_update(Ordering::AcqRel, Ordering::Relaxed, back).is_ok());
        if !put_back {
            gone(word);
        }
    }

    /// The context has ended: refunds its charge.
    pub(crate) fn ended(self) {
        let Some(entry) = entry(self.context) else { return };
        match self.word {
            Some(word) => {
                let end = |now: u64| (now & ENDING == ENDING).then_some(ENDED);
                let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Relaxed, end);
                gone(word);
            }
            None => {
                let _ = entry.compare_exchange(0, ENDED, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }
}

/// The primary context that is charged to `account`, if it lives as far as this process's calls have shown.
pub(crate) fn primary(account: usize) -> Option<CUcontext> {
    let mut found = None;
    CONTEXTS.for_each(&mut |handle, entry| {
        let word = entry.load(Ordering::Acquire);
        if is_live(word) && word & PRIMARY != 0 && account_of(word) == account {
            found = Some(CUcontext(core::ptr::with_exposed_provenance_mut(handle as usize)));
        }
    });
    found
}

fn is_live(word: u64) -> bool {
    word & ENDING == LIVE
}

fn account_of(word: u64) -> usize {
    (word >> ACCOUNT_SHIFT & 0x1f) as usize
}

/// Refunds the charge of a context that has ended and whose word was `word`, and asks the manager for a look.
fn gone(word: u64) {
    let charge = Charge { account: account_of(word), bytes: word & BYTES_MASK };
    charge.refund();
    let part = Process::attached().and_then(|process| process.part_of_account(charge.account));
    let Some(part) = part else { return };
    if let Some(work) = part.work() {
        work.contexts.fetch_sub(1, Ordering::Relaxed);
        work.context_bytes.fetch_sub(charge.bytes, Ordering::Relaxed);
    }
    part.ask_for_look();
}

#[inline(never)]
fn entry(context: CUcontext) -> Option<&'static AtomicU64> {
    if context.is_null() { None } else { CONTEXTS.entry(context.0.addr() as u64) }
}

#[inline(never)]
fn existing(context: CUcontext) -> Option<&'static AtomicU64> {
    if context.is_null() { None } else { CONTEXTS.existing(context.0.addr() as u64) }
}

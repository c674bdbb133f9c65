//! The gate to a device: launches go on while the manager has given the container a lease.
//!
//! The fast path is two loads and a store that no other thread shares: the gate's word, and this thread's shard, which says
//! that the thread has seen this very word and how many launches it has left before its next progress marker.

use crate::clock;
use crate::hooks::real;
use crate::markers;
use crate::process::{Part, Process, SHARDS};
use crate::sys;
use aliquot_abi::cuda::{CU_STREAM_CAPTURE_STATUS_NONE, CUstream};
use aliquot_abi::handshake;
use aliquot_abi::region::{HEARTBEAT_STALE_NS, MARKERS_MAX, gate};
use core::num::NonZeroU32;
use core::sync::atomic::{AtomicU32, Ordering};

/// A thread's launches into one stream. Threads and streams are spread over the shards; two that meet in one share its
/// count, which makes markers a little more frequent.
#[repr(C, align(64))]
pub(crate) struct Shard {
    /// The gate's word that was seen last.
    gate: AtomicU32,
    /// Launches left before the next marker.
    left: AtomicU32,
    /// Launches that were given with the last marker.
    given: AtomicU32,
}

/// What a launch must do besides.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Nothing.
    Free,
    /// Put a marker behind itself, which stands for so many launches.
    Mark(u32),
    /// Fail: the slice was taken away, and no gate will open again.
    Refused,
}

/// A process without a manager launches in the first part of each such period, as long as its limit says.
const PACE_PERIOD_NS: u64 = 100_000_000;
/// Markers in flight without a manager: what is in flight when the period's part ends runs on, and nobody makes up for it, so it must
/// be little however wrong the estimate of a launch's time is.
const PACED_MARKERS_MAX: usize = 2;
/// A waiting thread looks at the heartbeat, and rings again, this often.
const RING_INTERVAL_NS: u64 = 50_000_000;
/// After so many rings that could not be sent, one after the other, a thread paces itself as if there were no manager: it may be
/// in a root directory from which the socket is not seen.
const UNHEARD_MAX: u32 = 20;

/// Whether the calling thread may launch at once, and has taken note of it: `false` says only that [`pass`] must be asked.
#[inline]
pub(crate) fn passes_at_once(stream: CUstream, heavy: bool) -> bool {
    let Some((process, limits)) = Process::with_one_device() else { return false };
    // Pairs with the manager's store: what it wrote before opening the gate is seen.
    let word = limits.gate.load(Ordering::Acquire);
    is_free(word) || (!heavy && process.only_shard(shard_of(stream)).is_some_and(|shard| shard.takes_one(word)))
}

/// Whether the device is not shared in time for now.
#[inline]
pub(crate) fn is_free(word: u32) -> bool {
    word & (gate::OPEN | gate::FREE) == gate::OPEN | gate::FREE
}

impl Shard {
    /// Takes one launch, if the thread has seen the gate's `word` and has one left.
    #[inline]
    fn takes_one(&self, word: u32) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        let takes = left > 0 && word & gate::OPEN != 0 && self.gate.load(Ordering::Relaxed) == word;
        if takes {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        takes
    }

    /// Launches since the last marker; a marker will stand for them.
    fn take_unmarked(&self) -> u32 {
        let left = self.left.swap(0, Ordering::Relaxed);
        self.given.swap(0, Ordering::Relaxed).saturating_sub(left)
    }
}

/// Waits until a launch into `stream` may go on. `heavy`: the launch may stand for many kernels and always gets a marker.
pub(crate) fn pass(part: &Part, stream: CUstream, heavy: bool) -> Pass {
    let word = part.limits.gate.load(Ordering::Acquire);
    if is_free(word) {
        return Pass::Free;
    }
    let Some(shard) = part.shard(shard_of(stream)) else { return Pass::Free };
    if !heavy && shard.takes_one(word) {
        return Pass::Free;
    }
    if part.process.is_disabled() || is_capturing(stream) {
        return Pass::Free;
    }
    let mut unheard = 0;
    let word = loop {
        let now_ns = clock::now_ns();
        let word = part.limits.gate.load(Ordering::Acquire);
        if is_free(word) {
            return Pass::Free;
        }
        if part.limits.core_limit_percent.load(Ordering::Relaxed) == 0 {
            return Pass::Refused;
        }
        let is_stale = now_ns.saturating_sub(part.process.heartbeat_ns()) > HEARTBEAT_STALE_NS;
        let is_paced = is_stale || unheard >= UNHEARD_MAX;
        if is_paced {
            pace(part, now_ns);
        } else if word & gate::OPEN == 0 {
            // Whoever has the next lease must not be let in while launches that no marker stands for are still under way.
            if let Some(unmarked) = NonZeroU32::new(shard.take_unmarked()) {
                markers::put(part, stream, unmarked.get());
            }
            unheard = if wait(part, now_ns) { 0 } else { unheard + 1 };
            continue;
        }
        let markers_max = if is_paced { PACED_MARKERS_MAX } else { MARKERS_MAX };
        // The wait for room can outlast the container's part of the period.
        if markers::has_room(part, word, markers_max) && (!is_paced || is_in_part(part, clock::now_ns())) {
            break word;
        }
    };
    let launches = 1 + shard.take_unmarked();
    let given = markers::launches_per_marker(part) - 1;
    shard.given.store(given, Ordering::Relaxed);
    shard.left.store(given, Ordering::Relaxed);
    shard.gate.store(word, Ordering::Relaxed);
    Pass::Mark(launches)
}

/// Waits at the closed gate until its word changes, or it is time to look at the heartbeat. Whether the manager knows of it.
fn wait(part: &Part, since_ns: u64) -> bool {
    let Some(slot) = part.work() else { return false };
    let now = handshake::count_in(&slot.waiting, &part.limits.gate);
    let mut known = true;
    if now & gate::OPEN == 0 {
        known = !handshake::must_ring(now) || part.ring();
        sys::futex_wait(&part.limits.gate, now, RING_INTERVAL_NS);
    }
    slot.waiting.fetch_sub(1, Ordering::Relaxed);
    slot.throttled_ns.fetch_add(clock::now_ns().saturating_sub(since_ns), Ordering::Relaxed);
    known
}

/// Without a manager: waits for the container's part of the period. All processes of the container see the same clock and
/// so share one part.
fn pace(part: &Part, mut now_ns: u64) {
    let since_ns = now_ns;
    while !is_in_part(part, now_ns) {
        sys::sleep_ns(PACE_PERIOD_NS - now_ns % PACE_PERIOD_NS);
        now_ns = clock::now_ns();
        if now_ns.saturating_sub(part.process.heartbeat_ns()) <= HEARTBEAT_STALE_NS {
            break;
        }
    }
    if let Some(slot) = part.work() {
        slot.throttled_ns.fetch_add(now_ns.saturating_sub(since_ns), Ordering::Relaxed);
    }
}

/// Whether a period's part that is the container's lasts at `now_ns`.
fn is_in_part(part: &Part, now_ns: u64) -> bool {
    let percent = u64::from(part.limits.core_limit_percent.load(Ordering::Relaxed).min(100));
    now_ns % PACE_PERIOD_NS < PACE_PERIOD_NS / 100 * percent
}

/// Whether a launch into `stream` is recorded rather than run, or the driver does not say: then nothing may be put into the
/// stream, and nothing runs that would have to be bounded.
pub(crate) fn is_capturing(stream: CUstream) -> bool {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    let Some(is_capturing) = real!(cuStreamIsCapturing) else { return false };
    // SAFETY: the pointer is valid; the driver checks the stream.
    !unsafe { is_capturing(stream, &raw mut status) }.is_ok() || status != CU_STREAM_CAPTURE_STATUS_NONE
}

/// The shard of the calling thread, which its thread pointer names, and the stream: a marker stands for the launches of its own
/// stream.
#[inline]
fn shard_of(stream: CUstream) -> usize {
    let pointer = sys::thread_pointer();
    // Control blocks lie a stack apart, so no two in one page: the golden ratio spreads the pages' numbers. With smaller units
    // the usual distance, 8 MiB and a guard page, times the golden ratio comes so near to a half that every second thread
    // would meet in one shard.
    let key = (pointer >> 12) ^ (stream.0.addr() >> 4);
    (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (64 - SHARDS.ilog2())
}

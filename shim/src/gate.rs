//! The gate to a device: launches go on while the manager has given the container a lease.
//!
//! The fast path is two loads, and one store to a word that other threads rarely use. It loads the gate's word and the
//! thread's shard. The shard tells whether the thread has seen this very word, and how many launches it has left before
//! its next progress marker.

use crate::clock;
use crate::hooks::real;
use crate::markers::{self, Admission, Launches};
use crate::pacing::{self, Pacing};
use crate::process::{Part, Process};
use crate::sys;
use aliquot_abi::cuda::{CU_STREAM_CAPTURE_STATUS_NONE, CUstream};
use aliquot_abi::handshake;
use aliquot_abi::region::gate;
use core::sync::atomic::Ordering;

mod shard;

use shard::shard_of;
pub(crate) use shard::{Shard, forget_all_streams, forget_stream};
pub(crate) use shard::{about_to_block, about_to_wait, about_to_wait_inline, mark_all, unmarked_of_thread};

/// Whether a launch may be made, and what it must do besides.
#[derive(Clone, Copy)]
pub(crate) enum Pass {
    /// The launch goes on unmarked.
    Free,
    /// Put a marker behind itself.
    Mark(Marked),
    /// Fail: the slice was taken away, so that no gate will open again, or the process has no slot.
    Refused,
}

/// A launch that needs a marker behind it.
#[derive(Clone, Copy)]
pub(crate) struct Marked {
    /// The launches that the marker stands for: this one, and those before it without a marker.
    pub(crate) launches: Launches,
    /// This launch alone.
    pub(crate) last: Launches,
    /// Device time that the launch holds until its marker is in the stream: see [`pacing`].
    pub(crate) held_ns: u64,
    pub(crate) admission: Admission,
    /// What [`announce`](markers::announce) has returned, if the launch was announced.
    pub(crate) announced: Option<u64>,
}

/// A waiting thread reads the heartbeat, and may ring again, at this interval.
const RING_INTERVAL_NS: u64 = 50_000_000;
/// After this many intervals a waiting thread rings even if the manager is awake. So whatever the state of the ledger,
/// the manager learns of a waiting thread within some seconds.
const WAITS_PER_RING: u32 = 64;
/// The interval at which a waiting thread queries events, while its own work is marked by events.
const EVENT_INTERVAL_NS: u64 = 200_000;
/// After this many rings in a row that could not be sent, a thread paces itself as if there were no manager: it may be
/// in a root directory from which the socket cannot be reached.
const UNHEARD_MAX: u32 = 20;

/// Whether the calling thread may launch at once; then the launch has been counted. `false` means only that [`pass`]
/// must be called.
#[inline]
pub(crate) fn passes_at_once(stream: CUstream, heavy: bool) -> bool {
    let Some((process, limits)) = Process::with_one_device() else { return false };
    // Pairs with the manager's store: everything that the manager wrote before it opened the gate is seen.
    let word = limits.gate.load(Ordering::Acquire);
    is_free(word) || (!heavy && process.only_shard(shard_of(stream)).is_some_and(|shard| shard.takes_one(word)))
}

/// Whether the device is currently not shared in time.
#[inline]
pub(crate) fn is_free(word: u32) -> bool {
    word & (gate::OPEN | gate::FREE) == gate::OPEN | gate::FREE
}

/// Waits until a launch into `stream` may go on. `heavy`: the launch may stand for many kernels, so it shares a marker
/// only with as few others as their estimated time allows.
pub(crate) fn pass(part: &Part, stream: CUstream, heavy: bool) -> Pass {
    if !part.process.has_slot() {
        return Pass::Refused;
    }
    let word = part.limits.gate.load(Ordering::Acquire);
    if is_free(word) {
        return Pass::Free;
    }
    let Some(shard) = part.shard(shard_of(stream)) else { return Pass::Free };
    if if heavy { shard.takes_graph(word) } else { shard.takes_one(word) } {
        return Pass::Free;
    }
    if is_capturing(stream) {
        return Pass::Free;
    }
    let Some(admitted) = wait_for_admission(part, stream, shard) else { return Pass::Refused };
    // Another thread may have begun a capture while this one waited: the marker would become part of the graph.
    if is_capturing(stream) {
        pacing::give_back(part, admitted.held_ns);
        return Pass::Free;
    }
    let last = Launches::one(heavy);
    let launches = shard.take_unmarked() + last;
    // While the container paces itself, each launch is marked: no other process sees what it uses.
    // So it is if the driver returns only when a kernel has ended: a kernel without a marker would not be seen.
    let marks_each =
        admitted.is_paced || part.process.launches_block() || !shard::may_be_marked_later(part.process, stream);
    let to_give = |is_graph| if marks_each { 0 } else { markers::launches_per_marker(part, is_graph) - 1 };
    let (kernels, graphs) = (to_give(false), to_give(true));
    shard.give(kernels, graphs, admitted.word, stream);
    if kernels + graphs > 0 {
        part.process.note_unmarked();
    }
    let admission = Admission { at_ns: clock::now_ns(), is_paced: admitted.is_paced };
    Pass::Mark(Marked { launches, last, held_ns: admitted.held_ns, admission, announced: None })
}

/// Whether the slice was taken away: then its processes get neither device time nor contexts.
pub(crate) fn is_taken_away(part: &Part) -> bool {
    part.limits.core_limit_percent.load(Ordering::Relaxed) == 0
}

/// The permission to launch.
struct Granted {
    /// The gate's word at the time.
    word: u32,
    /// Whether the container granted it to itself, because no manager did.
    is_paced: bool,
    held_ns: u64,
}

/// Waits until a launch may be made. `None`: it never may, because the slice was taken away.
fn wait_for_admission(part: &Part, stream: CUstream, shard: &Shard) -> Option<Granted> {
    let unheard = part.process.unheard();
    let (mut marked_all, mut waits) = (false, 0_u32);
    // Since when the launch has waited for room, across ticks of the gate.
    let mut room_since_ns = None;
    loop {
        let now_ns = clock::now_ns();
        let word = part.limits.gate.load(Ordering::Acquire);
        if is_taken_away(part) {
            return None;
        }
        let is_paced = !is_free(word)
            && (unheard.load(Ordering::Relaxed) >= UNHEARD_MAX || pacing::is_unwatched(part, word, now_ns));
        if !is_paced && word & gate::OPEN == 0 {
            // The next holder of a lease must not be let in while launches without a marker are still running.
            markers::put_for(part, stream, shard.take_unmarked());
            if !marked_all {
                mark_all(part.process);
                marked_all = true;
            }
            waits = waits.wrapping_add(1);
            if wait(part, now_ns, waits % WAITS_PER_RING == 0) {
                unheard.store(0, Ordering::Relaxed);
            } else {
                unheard.fetch_add(1, Ordering::Relaxed);
            }
            room_since_ns = None;
            continue;
        }
        if !is_free(word) && !markers::has_room(part, stream, word, *room_since_ns.get_or_insert(now_ns)) {
            continue;
        }
        room_since_ns = None;
        let held_ns = match Pacing::of(part, now_ns).filter(|_| is_paced) {
            Some(pacing) => pacing.admit(),
            None => Some(0),
        };
        if let Some(held_ns) = held_ns {
            return Some(Granted { word, is_paced, held_ns });
        }
    }
}

/// Waits at the closed gate until its word changes or [`RING_INTERVAL_NS`] is over. Rings if `rings` is set or the
/// manager may be asleep. Returns whether the manager knows that the thread waits.
fn wait(part: &Part, since_ns: u64, rings: bool) -> bool {
    let Some(slot) = part.work() else { return false };
    let now = handshake::count_in(&slot.waiting, &part.limits.gate);
    let mut known = true;
    if now & gate::OPEN == 0 {
        let must_ring = rings || handshake::must_ring(now) || part.process.unheard().load(Ordering::Relaxed) > 0;
        known = !must_ring || part.ring();
        let until_ns = clock::now_ns().saturating_add(RING_INTERVAL_NS);
        // If the device writes no markers, only this process can tell the manager that its work is done.
        while markers::is_told_by_events(part)
            && part.limits.gate.load(Ordering::Acquire) == now
            && clock::now_ns() < until_ns
        {
            sys::futex_wait(&part.limits.gate, now, EVENT_INTERVAL_NS);
        }
        let left_ns = until_ns.saturating_sub(clock::now_ns());
        if left_ns > 0 {
            sys::futex_wait(&part.limits.gate, now, left_ns);
        }
    }
    slot.waiting.fetch_sub(1, Ordering::Relaxed);
    slot.throttled_ns.fetch_add(clock::now_ns().saturating_sub(since_ns), Ordering::Relaxed);
    known
}

/// Whether a launch into `stream` is recorded in a graph rather than run, or the driver gives no answer. In both cases
/// no marker may be put into the stream, and nothing runs that would have to be bounded.
pub(crate) fn is_capturing(stream: CUstream) -> bool {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    let Some(is_capturing) = real!(cuStreamIsCapturing) else { return false };
    // SAFETY: the pointer is valid; the driver checks the stream.
    !unsafe { is_capturing(stream, &raw mut status) }.is_ok() || status != CU_STREAM_CAPTURE_STATUS_NONE
}

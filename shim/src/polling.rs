//! Programs that query again and again whether work is done, in place of a wait.
//!
//! A thread that does nothing but query is waiting. Then its launches need a marker, and if events take the place of
//! markers, only this process can see that they are done. But most queries are not of this kind. PyTorch's allocator,
//! for example, queries events at each allocation, between launches; a marker at each query would cost more than the
//! launches. So a thread counts as waiting if it has repeated the same query for a while without a launch in between.
//! At a closed gate one query is enough to mark its launches, because the manager must see what is still running.

use crate::clock;
use crate::gate;
use crate::markers;
use crate::process::Process;
use crate::sys;
use aliquot_abi::region;
use core::sync::atomic::{AtomicU64, Ordering};

/// Number of records over which threads are spread. If two threads that query in turns share one record, each query
/// looks like a new one.
const POLLS: usize = 32;
/// A thread counts as waiting after this time. Less than the arbiter's idle grace: otherwise the manager would take the
/// lease's work for finished.
const WAITS_NS: u64 = 100_000;
/// As [`WAITS_NS`], at a closed gate: another container waits for the device.
const WAITS_AT_CLOSED_GATE_NS: u64 = 20_000;

/// The last query of a thread. All zero: none.
#[repr(C)]
struct Poll {
    /// A hash of the thread, the handle, and the number of the thread's launches without markers.
    question: AtomicU64,
    /// When this query was first made, or when the thread was last found waiting.
    since_ns: AtomicU64,
}

/// The last queries of all threads. All zero: none.
#[repr(C)]
pub(crate) struct Polls([Poll; POLLS]);

/// To be called before the calling thread queries whether the work that `handle` stands for is done.
#[inline]
pub(crate) fn about_to_ask(handle: usize) {
    if let Some(process) = Process::if_attached()
        && !process.has_free_gates()
    {
        ask(process, handle);
    }
}

#[inline(never)]
fn ask(process: &'static Process, handle: usize) {
    let unmarked = gate::unmarked_of_thread(process);
    let is_closed = process.all_parts().any(|part| part.limits.gate.load(Ordering::Relaxed) & region::gate::OPEN == 0);
    if is_closed && unmarked > 0 {
        return gate::mark_all(process);
    }
    let thread = mixed(sys::thread_pointer() as u64);
    let Some(poll) = process.polls().0.get(thread as usize % POLLS) else { return };
    let question = mixed(thread ^ handle as u64) ^ u64::from(unmarked);
    let now_ns = clock::now_ns();
    if poll.question.swap(question, Ordering::Relaxed) != question {
        return poll.since_ns.store(now_ns, Ordering::Relaxed);
    }
    let limit_ns = if is_closed { WAITS_AT_CLOSED_GATE_NS } else { WAITS_NS };
    if now_ns.saturating_sub(poll.since_ns.load(Ordering::Relaxed)) >= limit_ns {
        poll.since_ns.store(now_ns, Ordering::Relaxed);
        markers::look_at_all(process);
        gate::mark_all(process);
    }
}

/// A number whose lowest bits depend on all bits of `number`.
fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

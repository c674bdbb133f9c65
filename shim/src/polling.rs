//! Programs that ask again and again whether work is done, rather than wait for it.
//!
//! A thread that does nothing else waits: what it has launched must have a marker, and where events stand for markers
//! nobody but this process sees that they are done. But most queries are none of that. PyTorch's allocator, for one, asks
//! for events at each allocation, between launches, and a marker at each would cost more than the launches. So a thread is
//! taken for one that waits when it has asked for the same for a while and launched nothing meanwhile; and a closed gate
//! is reason enough, as what runs on must be seen then.

use crate::clock;
use crate::gate;
use crate::markers;
use crate::process::Process;
use crate::sys;
use aliquot_abi::region;
use core::sync::atomic::{AtomicU64, Ordering};

/// Threads are spread over so many notes. Where two meet that ask in turns, each looks like one that asks for something
/// new.
const POLLS: usize = 32;
/// A thread that has asked for the same for so long waits. Less than what the manager takes for the end of a lease's work.
const WAITS_NS: u64 = 100_000;
/// At a closed gate somebody else waits for the device.
const WAITS_AT_CLOSED_GATE_NS: u64 = 20_000;

/// What a thread has asked for last. All zero: nothing.
#[repr(C)]
struct Poll {
    /// The thread, what it asked for, and its launches without markers, in one number.
    question: AtomicU64,
    /// Since when it asks that, or has been seen to wait.
    since_ns: AtomicU64,
}

/// What threads have asked for last. All zero: nothing.
#[repr(C)]
pub(crate) struct Polls([Poll; POLLS]);

/// The calling thread is about to ask whether the work is done that a handle stands for.
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

/// A number whose lowest bits depend on all of `number`.
fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

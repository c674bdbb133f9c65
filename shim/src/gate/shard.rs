//! Launches that no marker stands for yet.
//!
//! Normally the marker of the next launch into their stream also stands for them. A thread that is about to wait, at a
//! gate or for the device, makes no next launch. So its unmarked launches, in all streams and on all devices, are
//! marked before the wait: otherwise they would run unseen and free of charge meanwhile.
//!
//! A marker in a legacy default stream is a barrier: it waits for the work in all blocking streams, and their later work
//! waits for it. Directly behind a launch, which is such a barrier itself, it changes nothing. Later it would order work
//! that the program has not ordered, and could wait for ever, if other work waits for the host. So once there are
//! blocking streams, each launch into a legacy default stream gets its marker at once.

use super::is_capturing;
use crate::clock;
use crate::context;
use crate::markers::{self, Launches};
use crate::process::{Part, Process, SHARDS};
use crate::sys;
use aliquot_abi::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUstream, c_void};
use aliquot_abi::region::gate;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

/// A thread's launches into one stream. Threads and streams are spread over the shards. Two that meet in one shard
/// share its count, which makes markers a little more frequent.
#[repr(C, align(64))]
pub(crate) struct Shard {
    /// The gate's word as the thread last saw it.
    gate: AtomicU32,
    /// Kernels that may still be launched before the next marker.
    left: AtomicU32,
    /// Kernels that were granted with the last marker.
    given: AtomicU32,
    /// Graphs that may still be launched before the next marker.
    graphs_left: AtomicU32,
    /// Graphs that were granted with the last marker.
    graphs_given: AtomicU32,
    /// The thread that put the last marker, by its thread pointer.
    thread: AtomicUsize,
    /// The stream of that marker. Null: it may be gone, or a thread has taken the handle to use it.
    stream: AtomicPtr<c_void>,
    /// The context of that stream if it is a default stream; otherwise null.
    context: AtomicPtr<c_void>,
}

/// The end of a stream waits at most this long for threads that are putting markers.
const MARKING_NS_MAX: u64 = 100_000_000;

impl Shard {
    /// Takes one kernel from those that are left, if the thread has seen the gate's `word`.
    #[inline]
    pub(super) fn takes_one(&self, word: u32) -> bool {
        self.takes_one_of(&self.left, word)
    }

    /// As [`takes_one`](Self::takes_one), for a graph.
    pub(super) fn takes_graph(&self, word: u32) -> bool {
        self.takes_one_of(&self.graphs_left, word)
    }

    #[inline]
    fn takes_one_of(&self, kind: &AtomicU32, word: u32) -> bool {
        let left = kind.load(Ordering::Relaxed);
        let takes = left > 0 && word & gate::OPEN != 0 && self.gate.load(Ordering::Relaxed) == word;
        if takes {
            kind.store(left - 1, Ordering::Relaxed);
        }
        takes
    }

    /// Returns the launches since the last marker, for which the caller puts a marker, and takes the rest of the grant
    /// back.
    pub(super) fn take_unmarked(&self) -> Launches {
        let take = |left: &AtomicU32, given: &AtomicU32| {
            let left = left.swap(0, Ordering::Relaxed);
            given.swap(0, Ordering::Relaxed).saturating_sub(left)
        };
        Launches::new(take(&self.left, &self.given), take(&self.graphs_left, &self.graphs_given))
    }

    /// Grants `kernels` and `graphs` until the next marker to the calling thread, which is about to put a marker into
    /// `stream`.
    pub(super) fn give(&self, kernels: u32, graphs: u32, word: u32, stream: CUstream) {
        let will_be_left = if kernels + graphs > 0 { stream } else { CUstream::NULL };
        if !will_be_left.is_null() {
            self.thread.store(sys::thread_pointer(), Ordering::Relaxed);
            let is_default = [CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].contains(&stream);
            let context = if is_default { markers::context_of(stream) } else { CUcontext::NULL };
            self.context.store(context.0, Ordering::Relaxed);
        }
        self.stream.store(will_be_left.0, Ordering::Release);
        self.given.store(kernels, Ordering::Relaxed);
        self.left.store(kernels, Ordering::Relaxed);
        self.graphs_given.store(graphs, Ordering::Relaxed);
        self.graphs_left.store(graphs, Ordering::Relaxed);
        self.gate.store(word, Ordering::Relaxed);
    }

    /// Whether a grant has not been taken back: some of its launches may have been made, others may still come.
    fn has_given(&self) -> bool {
        self.given.load(Ordering::Relaxed) > 0 || self.graphs_given.load(Ordering::Relaxed) > 0
    }

    /// Number of launches since the last marker.
    fn unmarked(&self) -> u32 {
        let made = |given: &AtomicU32, left: &AtomicU32| {
            given.load(Ordering::Relaxed).saturating_sub(left.load(Ordering::Relaxed))
        };
        made(&self.given, &self.left).saturating_add(made(&self.graphs_given, &self.graphs_left))
    }

    fn has_unmarked(&self) -> bool {
        self.unmarked() > 0
    }

    /// Marks the shard's launches in `stream`, which lives.
    fn mark(&self, part: &Part, stream: CUstream) {
        // Launches from before the first blocking stream. The next launch marks them.
        if stream == CU_STREAM_LEGACY && part.process.has_blocking_streams() {
            return;
        }
        // Each context has its own default stream, and an event is created in the current context.
        let known = CUcontext(self.context.load(Ordering::Relaxed));
        let context = if known.is_null() { markers::context_of(stream) } else { known };
        let _ = context::with_current(context, || {
            // While the stream is being captured, the launches wait for a later marker.
            if !is_capturing(stream) {
                markers::put_for(part, stream, self.take_unmarked());
            }
            Some(())
        });
    }
}

/// To be called before a call that implicitly waits for the device: a free, for example, waits for all running work.
/// Costs a few loads if every launch has a marker.
#[inline(never)]
pub(crate) fn about_to_wait() {
    about_to_wait_inline();
}

/// As [`about_to_wait`], inlined for the most frequent of these calls.
#[inline]
pub(crate) fn about_to_wait_inline() {
    if let Some(process) = Process::if_attached() {
        mark_all(process);
    }
}

/// Marks all launches of the calling thread, in all streams and on all devices. Launches of other threads are left
/// alone: their streams may begin to be captured at any moment, and a marker in a legacy stream would be a barrier that
/// the program has not asked for.
#[inline]
pub(crate) fn mark_all(process: &'static Process) {
    if process.may_have_unmarked() {
        mark_in_all_shards(process);
    }
}

/// To be called before there is a stream for which the legacy default stream is a barrier.
pub(crate) fn about_to_block(process: &'static Process) {
    if !process.has_blocking_streams() {
        mark_all(process);
        process.note_blocking_stream();
    }
}

/// Whether launches into `stream` may be marked later.
pub(super) fn may_be_marked_later(process: &'static Process, stream: CUstream) -> bool {
    if stream == CU_STREAM_PER_THREAD {
        // A blocking stream that is not created by a call.
        about_to_block(process);
    }
    stream != CU_STREAM_LEGACY || !process.has_blocking_streams()
}

/// Number of launches of the calling thread without a marker.
pub(crate) fn unmarked_of_thread(process: &'static Process) -> u32 {
    if !process.may_have_unmarked() {
        return 0;
    }
    let thread = sys::thread_pointer();
    let shards = launched_parts(process).flat_map(|part| part.shards());
    let own = shards.filter(|shard| shard.has_unmarked() && shard.thread.load(Ordering::Relaxed) == thread);
    own.fold(0, |sum, shard| sum.wrapping_add(shard.unmarked()))
}

#[cold]
#[inline(never)]
fn mark_in_all_shards(process: &'static Process) {
    let thread = sys::thread_pointer();
    process.forget_unmarked();
    for part in launched_parts(process) {
        for shard in part.shards().iter().filter(|shard| shard.has_given()) {
            if shard.thread.load(Ordering::Relaxed) != thread {
                process.note_unmarked();
                continue;
            }
            if !shard.has_unmarked() {
                // The grant is taken back, because nothing notes when it is used.
                shard.take_unmarked();
                continue;
            }
            // A thread that ends the stream finds it in the shard, or waits: see `forget_stream`.
            process.marking().fetch_add(1, Ordering::SeqCst);
            let stream = CUstream(shard.stream.swap(core::ptr::null_mut(), Ordering::SeqCst));
            if !stream.is_null() {
                shard.mark(&part, stream);
            }
            process.marking().fetch_sub(1, Ordering::Release);
        }
    }
}

/// To be called before `stream` is destroyed. Work in it still runs, so its launches are marked first.
pub(crate) fn forget_stream(process: &'static Process, stream: CUstream) {
    for part in launched_parts(process) {
        for shard in part.shards() {
            let taken =
                || shard.stream.compare_exchange(stream.0, core::ptr::null_mut(), Ordering::SeqCst, Ordering::SeqCst);
            if shard.stream.load(Ordering::SeqCst) == stream.0 && taken().is_ok() && shard.has_unmarked() {
                shard.mark(&part, stream);
            }
        }
    }
    wait_for_marking(process);
}

/// To be called before a context ends, and with it its streams.
pub(crate) fn forget_all_streams(process: &'static Process) {
    for part in launched_parts(process) {
        for shard in part.shards() {
            shard.stream.swap(core::ptr::null_mut(), Ordering::SeqCst);
        }
    }
    wait_for_marking(process);
}

/// The parts on which this process has ever launched through a gate.
fn launched_parts(process: &'static Process) -> impl Iterator<Item = Part> {
    process.all_parts().filter(markers::has_launched)
}

/// Waits until no thread is putting a marker into a stream that it has taken from a shard.
fn wait_for_marking(process: &Process) {
    let start_ns = clock::now_ns();
    while process.marking().load(Ordering::SeqCst) != 0 && clock::now_ns().saturating_sub(start_ns) < MARKING_NS_MAX {
        sys::yield_now();
    }
}

/// The shard of the calling thread, identified by its thread pointer, and of `stream`: a marker stands for launches of
/// its own stream only.
#[inline]
pub(super) fn shard_of(stream: CUstream) -> usize {
    let pointer = sys::thread_pointer();
    // Thread control blocks are a stack apart, so no two are in one page. Multiplying by the golden ratio spreads the
    // page numbers. With a smaller unit than pages, the usual distance of 8 MiB and a guard page, times the golden
    // ratio, would be so close to one half that every second thread would meet in one shard.
    let key = (pointer >> 12) ^ (stream.0.addr() >> 4);
    (key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> (64 - SHARDS.ilog2())
}

//! Streams that wait for the host, so that queued work begins only on release, however long the queueing takes.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};

/// A held stream. It waits until it is [released](Held::release).
pub(crate) struct Held {
    /// Page-locked memory from the driver, never freed. The stream waits until it contains 1.
    word: *mut AtomicU64,
}

impl Driver {
    /// Makes `stream` wait after the work queued so far.
    pub(crate) fn hold(&self, stream: CUstream) -> Held {
        let mut memory = ptr::null_mut();
        self.cuMemHostAlloc(&mut memory, size_of::<AtomicU64>(), 1).ok();
        let held = Held { word: memory.cast() };
        held.set(0);
        self.cuStreamWaitValue64_v2(stream, memory.addr() as CUdeviceptr, 1, 0).ok();
        held
    }
}

impl Held {
    /// Lets the stream go on.
    pub(crate) fn release(self) {
        self.set(1);
    }

    fn set(&self, value: u64) {
        // SAFETY: the memory has the word's size and alignment, lives as long as the process, and is only accessed
        // atomically.
        unsafe { &*self.word }.store(value, Ordering::Release);
    }
}

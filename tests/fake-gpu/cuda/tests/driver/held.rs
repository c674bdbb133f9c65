//! Streams that wait for the host: what is queued behind begins when they are let go, however long it takes to queue
//! it.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};

/// A stream that is held. It stays so until it is [released](Held::release).
pub(crate) struct Held {
    /// Page-locked memory of the driver's, never freed. The stream waits until it holds a 1.
    word: *mut AtomicU64,
}

impl Driver {
    /// Holds `stream` where it is now.
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
        // SAFETY: memory of the size and alignment of the word, which lives as long as the process, and which all use
        // as an atomic.
        unsafe { &*self.word }.store(value, Ordering::Release);
    }
}

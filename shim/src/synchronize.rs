//! Synchronisations: the host has waited for the device, so what it waited for has just been done.
//!
//! Some calls wait for the device without saying so, such as the end of a module: what the calling thread has launched
//! is marked before.
//!
//! That is the one moment at which the end of work is known exactly without asking, and at which pools may have shrunk.
//! Where the device is not shared in time and no pool is used, a synchronisation costs a few loads more.

use crate::clock;
use crate::gate;
use crate::hooks::types;
use crate::markers::{self, Look};
use crate::polling;
use crate::pools;
use crate::process::Process;
use aliquot_abi::cuda::{CUcontext, CUevent, CUlibrary, CUmodule, CUresult, CUstream, NullStream};

/// Calls what waits for all that a stream, or more, holds.
#[inline]
fn synchronize(call: impl FnOnce() -> CUresult) -> CUresult {
    look_at_work();
    let result = call();
    markers::note_failure(result);
    note_progress(Look::AfterWait);
    if let Some(process) = Process::if_attached() {
        pools::settle_synchronized(process);
    }
    result
}

/// A copy of so many bytes takes next to no time: the host has waited for what came before it.
const QUICK_COPY_BYTES: u64 = 256 << 10;

/// The host waits for the device, for a copy at least.
pub(crate) struct Wait {
    start_ns: u64,
}

impl Wait {
    /// Out of line, as many hooks begin to wait.
    #[inline(never)]
    pub(crate) fn begin() -> Wait {
        look_at_work();
        Wait { start_ns: clock::now_ns() }
    }

    /// The end of the wait for a copy of so many bytes. Returns how long it was, in nanoseconds.
    pub(crate) fn end(self, bytes: u64) -> u64 {
        note_progress(if bytes <= QUICK_COPY_BYTES { Look::AfterWait } else { Look::Anytime });
        clock::now_ns().saturating_sub(self.start_ns)
    }
}

/// Before a wait: what is done by now was so before, and what is left behind must be seen while the thread does not
/// launch.
#[inline]
fn look_at_work() {
    if let Some(process) = Process::if_attached()
        && !process.has_free_gates()
    {
        markers::look_at_all(process);
        gate::mark_all(process);
    }
}

/// After a wait.
#[inline]
fn note_progress(when: Look) {
    if let Some(process) = Process::if_attached()
        && !process.has_free_gates()
    {
        markers::note_progress(process, when);
    }
}

/// `cuStreamSynchronize`.
pub(crate) unsafe fn stream(_: NullStream, real: types::cuStreamSynchronize, stream: CUstream) -> CUresult {
    // SAFETY: the host's call.
    synchronize(|| unsafe { real(stream) })
}

/// `cuEventSynchronize`.
pub(crate) unsafe fn event(_: NullStream, real: types::cuEventSynchronize, event: CUevent) -> CUresult {
    // SAFETY: the host's call.
    synchronize(|| unsafe { real(event) })
}

/// `cuStreamQuery`.
pub(crate) unsafe fn query_stream(null: NullStream, real: types::cuStreamQuery, stream: CUstream) -> CUresult {
    polling::about_to_ask(null.explicit(stream).0.addr());
    // SAFETY: the host's call.
    unsafe { real(stream) }
}

/// `cuEventQuery`.
pub(crate) unsafe fn query_event(_: NullStream, real: types::cuEventQuery, event: CUevent) -> CUresult {
    polling::about_to_ask(event.0.addr());
    // SAFETY: the host's call.
    unsafe { real(event) }
}

/// `cuCtxSynchronize`.
pub(crate) unsafe fn context(_: NullStream, real: types::cuCtxSynchronize) -> CUresult {
    // SAFETY: the host's call.
    synchronize(|| unsafe { real() })
}

/// `cuCtxSynchronize` of CUDA 13, which names the context.
pub(crate) unsafe fn named_context(_: NullStream, real: types::cuCtxSynchronize_v2, context: CUcontext) -> CUresult {
    // SAFETY: the host's call.
    synchronize(|| unsafe { real(context) })
}

/// `cuModuleUnload`: waits for all that runs.
pub(crate) unsafe fn unload_module(_: NullStream, real: types::cuModuleUnload, module: CUmodule) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call.
    unsafe { real(module) }
}

/// `cuLibraryUnload`, likewise.
pub(crate) unsafe fn unload_library(_: NullStream, real: types::cuLibraryUnload, library: CUlibrary) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call.
    unsafe { real(library) }
}

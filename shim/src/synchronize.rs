//! Synchronisations: the program has waited for the device, so the work for which it waited has just been done.
//!
//! Only then is the end of work known exactly without a query. Pools may also have shrunk. If the device is not shared
//! in time and no pool is used, a synchronisation costs a few more loads.
//!
//! Some calls wait for the device implicitly, such as the unloading of a module. Before them, the calling thread's
//! launches are marked.

use crate::clock;
use crate::gate;
use crate::hooks::types;
use crate::markers::{self, Look};
use crate::polling;
use crate::pools;
use crate::process::Process;
use aliquot_abi::cuda::{CUcontext, CUevent, CUlibrary, CUmodule, CUresult, CUstream, NullStream};

/// Makes a call that waits for the work of a stream or a context, or up to an event.
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

/// A copy of at most this size takes almost no time: the program has waited for the work before it.
const QUICK_COPY_BYTES: u64 = 256 << 10;

/// A wait of the program for the device, at least for a copy.
pub(crate) struct Wait {
    start_ns: u64,
}

impl Wait {
    /// Not inlined, because many hooks use it.
    #[inline(never)]
    pub(crate) fn begin() -> Wait {
        look_at_work();
        Wait { start_ns: clock::now_ns() }
    }

    /// Ends the wait for a copy of `bytes`. Returns its length in nanoseconds.
    pub(crate) fn end(self, bytes: u64) -> u64 {
        note_progress(if bytes <= QUICK_COPY_BYTES { Look::AfterWait } else { Look::Anytime });
        clock::now_ns().saturating_sub(self.start_ns)
    }
}

/// To be called before a wait. Work that is done now was done before the wait. The thread's launches are marked, so
/// that they are seen while it waits.
#[inline]
fn look_at_work() {
    if let Some(process) = Process::if_attached()
        && !process.has_free_gates()
    {
        markers::look_at_all(process);
        gate::mark_all(process);
    }
}

/// To be called after a wait.
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

/// Returns the answer to a query, which can tell of a fault.
#[inline]
fn told(result: CUresult) -> CUresult {
    markers::note_failure(result);
    result
}

/// `cuStreamQuery`.
pub(crate) unsafe fn query_stream(null: NullStream, real: types::cuStreamQuery, stream: CUstream) -> CUresult {
    polling::about_to_ask(null.explicit(stream).0.addr());
    // SAFETY: the host's call.
    told(unsafe { real(stream) })
}

/// `cuEventQuery`.
pub(crate) unsafe fn query_event(_: NullStream, real: types::cuEventQuery, event: CUevent) -> CUresult {
    polling::about_to_ask(event.0.addr());
    // SAFETY: the host's call.
    told(unsafe { real(event) })
}

/// `cuCtxSynchronize`.
pub(crate) unsafe fn context(_: NullStream, real: types::cuCtxSynchronize) -> CUresult {
    // SAFETY: the host's call.
    synchronize(|| unsafe { real() })
}

/// `cuCtxSynchronize_v2` of CUDA 13, which takes the context.
pub(crate) unsafe fn named_context(_: NullStream, real: types::cuCtxSynchronize_v2, context: CUcontext) -> CUresult {
    // SAFETY: the host's call.
    synchronize(|| unsafe { real(context) })
}

/// `cuModuleUnload`: waits for all running work.
pub(crate) unsafe fn unload_module(_: NullStream, real: types::cuModuleUnload, module: CUmodule) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call.
    unsafe { real(module) }
}

/// `cuLibraryUnload`: waits for all running work.
pub(crate) unsafe fn unload_library(_: NullStream, real: types::cuLibraryUnload, library: CUlibrary) -> CUresult {
    gate::about_to_wait();
    // SAFETY: the host's call.
    unsafe { real(library) }
}

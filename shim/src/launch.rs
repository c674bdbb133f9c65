//! Launches: pass the gate, call the driver, leave a progress marker.
//!
//! The gate is that of the device that the stream belongs to, which need not be the calling thread's: a library's
//! kernel and a graph run on the device of their stream. Host functions and callbacks pass no gate: they use no device
//! time, and work that waits for them must not wait for a lease. The host cannot hold back kernels that kernels launch,
//! or graphs that the device launches. Their time is included in the time until the marker behind the launch that
//! started them.

use crate::gate::{self, Marked, Pass};
use crate::graph_memory;
use crate::hooks::types;
use crate::markers;
use crate::pacing;
use crate::process::{self, Part, Process};
use crate::region::Unattached;
use aliquot_abi::cuda::{
    CUDA_LAUNCH_PARAMS, CUfunction, CUgraphExec, CUlaunchConfig, CUresult, CUstream, NullStream, c_int, c_uint, c_void,
};
use aliquot_abi::region::DEVICES_MAX;

/// Makes the launch `$call` into `$stream` when the gate lets it. `$heavy`: the launch may stand for many kernels (see
/// [`gate::pass`]).
///
/// The usual case is decided without a function call, and the rest is out of line. This is a macro because a closure
/// for both paths would have to be built, from a dozen arguments, before it is known which path is taken.
macro_rules! gated {
    ($stream:expr, $heavy:expr, $call:expr) => {{
        let stream = $stream;
        if gate::passes_at_once(stream, $heavy) { $call } else { gated_slowly(stream, $heavy, move || $call) }
    }};
}

#[cold]
#[inline(never)]
fn gated_slowly(stream: CUstream, heavy: bool, call: impl FnOnce() -> CUresult) -> CUresult {
    let process = match Process::for_call() {
        Ok(process) => process,
        Err(Unattached::Free) => return call(),
        Err(Unattached::Refused) => return CUresult::NOT_PERMITTED,
    };
    // If a process has several devices and none of them is shared, the driver need not be asked for the stream's
    // device.
    if process.has_free_gates() {
        return call();
    }
    match Entry::of(process, stream, heavy) {
        Entry::Free => call(),
        Entry::Refused => CUresult::NOT_PERMITTED,
        Entry::Marked(part, marked) => {
            let result = call();
            leave_marker(&part, stream, &marked, result);
            result
        }
    }
}

/// How a launch into a stream proceeds.
#[derive(Clone, Copy)]
enum Entry {
    /// It goes to the driver unchanged.
    Free,
    /// It is refused and does not reach the driver.
    Refused,
    /// It goes to the driver, and a marker is put behind it.
    Marked(Part, Marked),
}

impl Entry {
    /// Waits at the gate of the device that `stream` belongs to, and prepares the marker.
    #[inline(never)]
    fn of(process: &'static Process, stream: CUstream, heavy: bool) -> Entry {
        let mut entry = Entry::admitted(process, stream, heavy);
        entry.prepare(stream);
        entry
    }

    /// Waits at the gate of the device that `stream` belongs to.
    #[inline(never)]
    fn admitted(process: &'static Process, stream: CUstream, heavy: bool) -> Entry {
        // Without a context or with an invalid stream, the driver returns its own error.
        let Ok(ordinal) = process::ordinal_of_stream(process, stream) else { return Entry::Free };
        let Some(part) = process.part(ordinal) else { return Entry::Refused };
        match gate::pass(&part, stream, heavy) {
            Pass::Free => Entry::Free,
            Pass::Refused => Entry::Refused,
            Pass::Mark(marked) => Entry::Marked(part, marked),
        }
    }

    /// To be called before the launch is made. If the driver returns only when the kernel has ended, the launch counts
    /// as work in flight from now on. Otherwise it does from the call's end on: the driver may have to load the kernel
    /// first, which takes it long and uses no device time.
    #[inline(never)]
    fn prepare(&mut self, stream: CUstream) {
        if let Entry::Marked(part, marked) = self {
            part.process.marker_page().prepare(part.process);
            if part.process.launches_block() {
                marked.announced = Some(announce(part, stream, marked));
            }
        }
    }
}

#[inline(never)]
fn announce(part: &Part, stream: CUstream, marked: &Marked) -> u64 {
    markers::announce(part, stream, marked.launches, marked.last, Some(marked.admission))
}

/// Puts the marker behind a launch that returned `result`.
#[inline(never)]
fn leave_marker(part: &Part, stream: CUstream, marked: &Marked, result: CUresult) {
    markers::note_failure(result);
    // A launch that failed uses no device time, but earlier ones may wait for their marker.
    if result.is_ok() || marked.launches.count() > 1 {
        let marker = marked.announced.unwrap_or_else(|| announce(part, stream, marked));
        markers::put_announced(part, stream, marked.launches, marker);
    } else if let Some(marker) = marked.announced {
        markers::withdraw(part, marked.launches, marker);
    }
    pacing::give_back(part, marked.held_ns);
}

/// `cuLaunchKernel`.
#[inline]
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn kernel(
    null: NullStream,
    real: types::cuLaunchKernel,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the host's call.
    gated!(null.explicit(stream), false, unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments, extra)
    })
}

/// `cuLaunchKernelEx`.
///
/// With programmatic stream serialisation a kernel may begin before the one before it has ended. A marker between the
/// two costs this overlap, a few microseconds. That is accepted: a marker stands for about a millisecond of work, so
/// the loss is less than 1 %, and a launch without a marker would not be seen at the end of the lease.
pub(crate) unsafe fn kernel_ex(
    null: NullStream,
    real: types::cuLaunchKernelEx,
    config: *const CUlaunchConfig,
    function: CUfunction,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CUresult {
    // SAFETY: a pointer that is not null is the host's structure.
    let stream = unsafe { config.as_ref() }.map_or(CUstream::NULL, |config| config.stream);
    // SAFETY: the host's call.
    gated!(null.explicit(stream), false, unsafe { real(config, function, arguments, extra) })
}

/// `cuLaunchCooperativeKernel`.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn cooperative(
    null: NullStream,
    real: types::cuLaunchCooperativeKernel,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    arguments: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the host's call.
    gated!(null.explicit(stream), false, unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments)
    })
}

/// `cuLaunchCooperativeKernelMultiDevice`: gated and marked on each device of the list. No lease is kept while the next
/// device is waited for: if a lease ends meanwhile, one kernel outlasts it. The leases of one container come together.
pub(crate) unsafe fn cooperative_multi(
    _: NullStream,
    real: types::cuLaunchCooperativeKernelMultiDevice,
    launches: *mut CUDA_LAUNCH_PARAMS,
    devices: c_uint,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(launches, devices, flags) };
    let process = match Process::for_call() {
        Ok(process) if !launches.is_null() => process,
        Err(Unattached::Refused) => return CUresult::NOT_PERMITTED,
        _ => return call(),
    };
    // The driver accepts each device at most once.
    let mut entries = [(Entry::Free, CUstream::NULL); DEVICES_MAX];
    for (number, (entry, stream)) in entries.iter_mut().enumerate().take(devices as usize) {
        // SAFETY: within the host's list, which has `devices` elements.
        *stream = unsafe { (*launches.wrapping_add(number)).stream };
        *entry = Entry::admitted(process, *stream, true);
        if let Entry::Refused = entry {
            break;
        }
    }
    let is_refused = entries.iter().any(|(entry, _)| matches!(entry, Entry::Refused));
    // Not before: a device would count as busy while the gate of the next one is waited for.
    entries.iter_mut().for_each(|(entry, stream)| entry.prepare(*stream));
    let result = if is_refused { CUresult::NOT_PERMITTED } else { call() };
    for (entry, stream) in &entries {
        if let Entry::Marked(part, marked) = entry {
            leave_marker(part, *stream, marked, result);
        }
    }
    result
}

/// `cuLaunch`, of CUDA before 4.0.
pub(crate) unsafe fn legacy(null: NullStream, real: types::cuLaunch, function: CUfunction) -> CUresult {
    // SAFETY: the host's call.
    gated!(null.explicit(CUstream::NULL), false, unsafe { real(function) })
}

/// `cuLaunchGrid`, of CUDA before 4.0.
pub(crate) unsafe fn legacy_grid(
    null: NullStream,
    real: types::cuLaunchGrid,
    function: CUfunction,
    width: c_int,
    height: c_int,
) -> CUresult {
    // SAFETY: the host's call.
    gated!(null.explicit(CUstream::NULL), false, unsafe { real(function, width, height) })
}

/// `cuLaunchGridAsync`, of CUDA before 4.0.
pub(crate) unsafe fn legacy_grid_async(
    null: NullStream,
    real: types::cuLaunchGridAsync,
    function: CUfunction,
    width: c_int,
    height: c_int,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    gated!(null.explicit(stream), false, unsafe { real(function, width, height, stream) })
}

/// `cuGraphLaunch`: one call, any number of kernels, and the memory of its allocation nodes.
pub(crate) unsafe fn graph(
    null: NullStream,
    real: types::cuGraphLaunch,
    graph: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    gated!(null.explicit(stream), true, graph_memory::launched(graph, || unsafe { real(graph, stream) }))
}

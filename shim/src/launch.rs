//! Launches: pass the gate, call the driver, leave a progress marker.

use crate::gate::{self, Pass};
use crate::hooks::types;
use crate::markers;
use crate::process::Process;
use aliquot_abi::cuda::{
    CUDA_LAUNCH_PARAMS, CUfunction, CUgraphExec, CUlaunchConfig, CUresult, CUstream, NullStream, c_int, c_uint, c_void,
};

/// Makes a launch into `stream` when the gate of the calling thread's device lets it. `heavy`: the launch may stand for many
/// kernels, and always gets a marker when there are markers at all.
#[inline]
fn gated(stream: CUstream, heavy: bool, call: impl FnOnce() -> CUresult) -> CUresult {
    // The usual case is decided without a call; everything else is kept out of the way of it.
    if gate::passes_at_once(stream, heavy) { call() } else { gated_slowly(stream, heavy, call) }
}

#[cold]
#[inline(never)]
fn gated_slowly(stream: CUstream, heavy: bool, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(process) = Process::attached() else { return call() };
    // Without a context the driver has its own answer.
    let Ok(ordinal) = process.current_ordinal() else { return call() };
    let Some(part) = process.part(ordinal) else {
        return if process.is_disabled() { call() } else { CUresult::NOT_PERMITTED };
    };
    match gate::pass(&part, stream, heavy) {
        Pass::Free => call(),
        Pass::Refused => CUresult::NOT_PERMITTED,
        Pass::Mark(launches) => {
            let result = call();
            // One that fails takes nothing of the device, but earlier ones may wait for their marker.
            if result.is_ok() || launches > 1 {
                markers::put(&part, stream, launches);
            }
            result
        }
    }
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
    gated(null.explicit(stream), false, move || unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments, extra)
    })
}

/// `cuLaunchKernelEx`.
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
    gated(null.explicit(stream), false, move || unsafe { real(config, function, arguments, extra) })
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
    gated(null.explicit(stream), false, move || unsafe {
        real(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, arguments)
    })
}

/// `cuLaunchCooperativeKernelMultiDevice`: gated by the calling thread's device, marked in the first launch's stream.
pub(crate) unsafe fn cooperative_multi(
    null: NullStream,
    real: types::cuLaunchCooperativeKernelMultiDevice,
    launches: *mut CUDA_LAUNCH_PARAMS,
    devices: c_uint,
    flags: c_uint,
) -> CUresult {
    // SAFETY: a pointer that is not null is the host's list, which has at least one element if it has any device.
    let first = if devices == 0 { None } else { unsafe { launches.as_ref() } };
    let stream = first.map_or(CUstream::NULL, |launch| launch.stream);
    // SAFETY: the host's call.
    gated(null.explicit(stream), true, move || unsafe { real(launches, devices, flags) })
}

/// `cuLaunch`, of CUDA before 4.0.
pub(crate) unsafe fn legacy(null: NullStream, real: types::cuLaunch, function: CUfunction) -> CUresult {
    // SAFETY: the host's call.
    gated(null.explicit(CUstream::NULL), false, move || unsafe { real(function) })
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
    gated(null.explicit(CUstream::NULL), false, move || unsafe { real(function, width, height) })
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
    gated(null.explicit(stream), false, move || unsafe { real(function, width, height, stream) })
}

/// `cuGraphLaunch`: one call, any number of kernels.
pub(crate) unsafe fn graph(
    null: NullStream,
    real: types::cuGraphLaunch,
    graph: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    gated(null.explicit(stream), true, move || unsafe { real(graph, stream) })
}

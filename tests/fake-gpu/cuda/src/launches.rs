//! Launches of kernels and host functions.

use core::ffi::{c_uint, c_void};

use aliquot_abi::cuda::{
    CUDA_HOST_NODE_PARAMS, CUDA_LAUNCH_PARAMS, CUfunction, CUhostFn, CUlaunchConfig, CUresult, CUstream, NullStream,
};
use aliquot_fake_machine::kernel_duration_ns;

use crate::Done;
use crate::caller::{get, get_all};
use crate::capture::{self, Issue};
use crate::graph_nodes::NodeKind;
use crate::kernels::{Function, THREADS_PER_BLOCK_MAX, function, known_function};
use crate::meetings::Meeting;
use crate::process::{initialised, keep_processor};
use crate::queue::{self, Work};
use crate::streams::{Stream, stream};

const GRID_YZ_MAX: c_uint = 65535;
const BLOCK_Z_MAX: c_uint = 64;
/// Keys of the list that passes arguments in one buffer.
const EXTRA_END: usize = 0;
const EXTRA_POINTER: usize = 1;
const EXTRA_BYTES: usize = 2;

/// A kernel's shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
}

impl Shape {
    /// Refuses a shape that no device can run.
    #[inline]
    pub(crate) fn check(&self, function: &Function) -> Done {
        let Shape { grid: [_, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes } = *self;
        let threads = u64::from(block_x) * u64::from(block_y) * u64::from(block_z);
        let possible = !self.grid.contains(&0)
            && threads > 0
            && block_x <= THREADS_PER_BLOCK_MAX as c_uint
            && block_y <= THREADS_PER_BLOCK_MAX as c_uint
            && block_z <= BLOCK_Z_MAX
            && threads <= THREADS_PER_BLOCK_MAX as u64
            && grid_y <= GRID_YZ_MAX
            && grid_z <= GRID_YZ_MAX
            && shared_bytes <= function.settings.max_dynamic_shared_bytes();
        if possible { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.grid.iter().fold(1, |product, &extent| product.saturating_mul(u64::from(extent)))
    }

    fn threads_per_block(&self) -> u64 {
        self.block.iter().map(|&extent| u64::from(extent)).product()
    }
}

/// A launch's arguments as the caller passes them.
#[derive(Clone, Copy)]
pub(crate) struct Arguments {
    pub(crate) parameters: *mut *mut c_void,
    pub(crate) extra: *mut *mut c_void,
}

impl Arguments {
    #[inline]
    pub(crate) fn check(&self) -> Done {
        if self.parameters.is_null() || self.extra.is_null() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// The buffer of [`Arguments::extra`], and its size.
    pub(crate) fn buffer(&self) -> Done<(*const u8, usize)> {
        let (mut start, mut bytes) = (core::ptr::null(), 0);
        for pair in (0..8).map(|pair| pair * 2) {
            let key = get(self.extra.wrapping_add(pair))?.addr();
            if key == EXTRA_END {
                break;
            }
            let value = get(self.extra.wrapping_add(pair + 1))?;
            match key {
                EXTRA_POINTER => start = value.cast_const().cast(),
                EXTRA_BYTES => bytes = get(value.cast_const().cast::<usize>())?,
                _ => return Err(CUresult::INVALID_VALUE),
            }
        }
        Ok((start, bytes))
    }

    /// The first `N` arguments, all of 64 bits, if they are passed one by one.
    pub(crate) fn words<const N: usize>(&self) -> Done<[u64; N]> {
        if self.parameters.is_null() {
            return Err(CUresult::INVALID_VALUE);
        }
        let mut words = [0; N];
        for (index, word) in words.iter_mut().enumerate() {
            *word = get(get(self.parameters.wrapping_add(index))?.cast_const().cast())?;
        }
        Ok(words)
    }

    /// The first argument, which is a spin kernel's duration.
    fn spin_ns(&self) -> Done<u64> {
        if !self.parameters.is_null() {
            return get(get(self.parameters)?.cast_const().cast());
        }
        if self.extra.is_null() {
            return Err(CUresult::INVALID_VALUE);
        }
        match self.buffer()? {
            (start, bytes) if bytes >= 8 => get(start.cast()),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

/// The duration of a kernel, by the rules in the documentation of [`aliquot_fake_machine`].
pub(crate) fn duration_ns(function: &Function, shape: &Shape, arguments: &Arguments) -> Done<u64> {
    if function.spins {
        return arguments.spin_ns();
    }
    Ok(kernel_duration_ns(function.module.owner.device().config, shape.blocks(), shape.threads_per_block()))
}

#[inline(always)]
fn launch(stream: &'static Stream, handle: CUfunction, shape: Shape, arguments: Arguments) -> Done {
    let function = known_function(handle)?;
    shape.check(function)?;
    arguments.check()?;
    if !core::ptr::eq(function.module.owner.context, stream.owner.context) {
        return Err(CUresult::INVALID_HANDLE);
    }
    let process = initialised();
    if queue::runs_at_once(process) && !capture::any_active() {
        keep_processor(process.config.launch_ns);
        return Ok(());
    }
    let kernel = || NodeKind::kernel(handle, function, shape, arguments);
    if let Issue::Captured = capture::issue_with(stream, kernel)? {
        return Ok(());
    }
    let work = match () {
        () if process.instant => Work::Task { duration_ns: 0, effect: None },
        () if function.meets => Work::Meeting(Meeting::of(&arguments)?),
        () => Work::Task { duration_ns: duration_ns(function, &shape, &arguments)?, effect: None },
    };
    keep_processor(process.config.launch_ns);
    queue::submit(stream, work, true);
    if process.launches_block {
        queue::wait_for_stream(stream);
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
// Inlined, because passing the arguments on through memory would cost more than the rest of the call.
#[inline(always)]
pub(crate) fn cuLaunchKernel(
    null: NullStream,
    handle: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream_handle: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    let stream = stream(null, stream_handle)?;
    let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
    launch(stream, handle, shape, Arguments { parameters, extra })
}

pub(crate) fn cuLaunchKernelEx(
    null: NullStream,
    config: *const CUlaunchConfig,
    handle: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Done {
    crate::process::process()?;
    let config = get(config)?;
    if config.num_attrs > 0 && config.attrs.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let shape = Shape { grid: config.grid_dim, block: config.block_dim, shared_bytes: config.shared_mem_bytes };
    launch(stream(null, config.stream)?, handle, shape, Arguments { parameters, extra })
}

/// Refuses a cooperative grid that does not fit on the device at once.
fn check_cooperative(handle: CUfunction, shape: &Shape) -> Done {
    let function = function(handle)?;
    shape.check(function)?;
    let resident_per_sm = (2048 / shape.threads_per_block()).clamp(1, 32);
    let sm_count = u64::from(function.module.owner.device().config.sm_count);
    if shape.blocks() > sm_count * resident_per_sm { Err(CUresult::COOPERATIVE_LAUNCH_TOO_LARGE) } else { Ok(()) }
}

#[expect(clippy::too_many_arguments, reason = "the driver API's signature")]
pub(crate) fn cuLaunchCooperativeKernel(
    null: NullStream,
    handle: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream_handle: CUstream,
    parameters: *mut *mut c_void,
) -> Done {
    let stream = stream(null, stream_handle)?;
    let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared_bytes };
    check_cooperative(handle, &shape)?;
    launch(stream, handle, shape, Arguments { parameters, extra: core::ptr::null_mut() })
}

pub(crate) fn cuLaunchCooperativeKernelMultiDevice(
    list: *mut CUDA_LAUNCH_PARAMS,
    count: c_uint,
    flags: c_uint,
) -> Done {
    crate::process::process()?;
    let launches = get_all(list, count as usize)?;
    if count == 0 || count as usize > initialised().devices.len() || flags > 3 {
        return Err(CUresult::INVALID_VALUE);
    }
    // All launches or none: every one is checked before the first is issued.
    let mut checked = Vec::new();
    for launch in launches {
        let shape = Shape { grid: launch.grid_dim, block: launch.block_dim, shared_bytes: launch.shared_mem_bytes };
        // The default streams cannot be used here.
        if launch.stream.is_null() {
            return Err(CUresult::INVALID_VALUE);
        }
        let stream = stream(NullStream::Legacy, launch.stream)?;
        check_cooperative(launch.function, &shape)?;
        capture::refuse_in_capture(stream)?;
        let arguments = Arguments { parameters: launch.kernel_params, extra: core::ptr::null_mut() };
        checked.push((stream, launch.function, shape, arguments));
    }
    checked.into_iter().try_for_each(|(stream, handle, shape, arguments)| launch(stream, handle, shape, arguments))
}

/// A host function with its argument.
#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    function: unsafe extern "C" fn(*mut c_void),
    user_data: usize,
}

impl HostCall {
    pub(crate) fn new(function: CUhostFn, user_data: *mut c_void) -> Done<HostCall> {
        let function = function.ok_or(CUresult::INVALID_VALUE)?;
        Ok(HostCall { function, user_data: user_data.expose_provenance() })
    }

    pub(crate) fn call(self) {
        // SAFETY: by the API's contract the caller keeps function and argument until the call is made.
        unsafe { (self.function)(core::ptr::with_exposed_provenance_mut(self.user_data)) }
    }

    pub(crate) fn work(self) -> Work {
        Work::Host(Box::new(move || self.call()))
    }

    pub(crate) fn parameters(self) -> CUDA_HOST_NODE_PARAMS {
        let user_data = core::ptr::with_exposed_provenance_mut(self.user_data);
        CUDA_HOST_NODE_PARAMS { callback: Some(self.function), user_data }
    }
}

pub(crate) fn cuLaunchHostFunc(null: NullStream, handle: CUstream, function: CUhostFn, user_data: *mut c_void) -> Done {
    let stream = stream(null, handle)?;
    let call = HostCall::new(function, user_data)?;
    if let Issue::Captured = capture::issue(stream, || NodeKind::Host(call))? {
        return Ok(());
    }
    queue::submit(stream, call.work(), false);
    Ok(())
}

pub(crate) fn cuLaunchHostFunc_v2(
    null: NullStream,
    handle: CUstream,
    function: CUhostFn,
    user_data: *mut c_void,
    sync_mode: c_uint,
) -> Done {
    if sync_mode > 1 {
        return Err(CUresult::INVALID_VALUE);
    }
    cuLaunchHostFunc(null, handle, function, user_data)
}

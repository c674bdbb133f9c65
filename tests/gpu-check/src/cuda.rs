//! A device with its primary context: the part of the driver API that the check uses, with `Result`s instead of codes.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::{error, fmt, ptr};

use aliquot_abi::cuda::{
    CUDA_KERNEL_NODE_PARAMS_V1, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec,
    CUgraphNode, CUlaunchConfig, CUmodule, CUresult, CUstream, CUuuid,
};

use crate::driver::Driver;

const KERNELS: &CStr = match CStr::from_bytes_with_nul(concat!(include_str!("kernels.ptx"), "\0").as_bytes()) {
    Ok(text) => text,
    Err(_) => panic!("the PTX text holds a NUL"),
};
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_BLOCKING_SYNC: c_uint = 1;

/// The attribute for the device's `CUcomputemode`.
pub(crate) const COMPUTE_MODE: c_uint = 20;
/// The attribute whether the device has cooperative launches.
pub(crate) const COOPERATIVE_LAUNCH: c_uint = 95;

/// A driver call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CudaError {
    /// The function.
    pub(crate) call: &'static str,
    /// Its result code.
    pub(crate) result: CUresult,
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answers {}", self.call, result_name(self.result))
    }
}

impl error::Error for CudaError {}

/// The result of a driver call.
pub(crate) type Done<T = ()> = Result<T, CudaError>;

/// The driver's name of a result.
pub(crate) fn result_name(result: CUresult) -> String {
    let name = result.name_with_nul().map(|name| name.trim_end_matches('\0').to_owned());
    name.unwrap_or_else(|| format!("CUDA error {}", result.0))
}

/// Converts a function's code to a `Result`.
pub(crate) fn check(call: &'static str, result: CUresult) -> Done {
    if result.is_ok() { Ok(()) } else { Err(CudaError { call, result }) }
}

/// Calls a function of the driver. If the driver lacks it, the result is `CUDA_ERROR_NOT_FOUND`. Must be used in an
/// unsafe block.
macro_rules! call {
    ($cuda:expr, $function:ident($($argument:expr),* $(,)?)) => {
        $crate::cuda::check(
            stringify!($function),
            $cuda.driver.$function.map_or(aliquot_abi::cuda::CUresult::NOT_FOUND, |function| function($($argument),*)),
        )
    };
}
pub(crate) use call;

/// The first device that this process sees. Its primary context is current on the thread that opened it.
pub(crate) struct Cuda {
    pub(crate) driver: Driver,
    pub(crate) device: CUdevice,
    pub(crate) context: CUcontext,
    module: CUmodule,
}

/// A kernel with one parameter, a `u64`.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(pub(crate) CUfunction);

/// Blocks and threads of a launch.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Blocks.
    pub(crate) blocks: u32,
    /// Threads of each block.
    pub(crate) threads: u32,
}

impl Shape {
    /// One thread.
    pub(crate) const ONE: Shape = Shape { blocks: 1, threads: 1 };
}

/// The configuration for a launch of one thread in `stream`.
pub(crate) fn one_thread(stream: CUstream) -> CUlaunchConfig {
    CUlaunchConfig {
        grid_dim: [1; 3],
        block_dim: [1; 3],
        shared_mem_bytes: 0,
        stream,
        attrs: ptr::null_mut(),
        num_attrs: 0,
    }
}

impl Cuda {
    /// Loads the driver, opens the first device, makes its primary context current and loads the kernels.
    pub(crate) fn open() -> anyhow::Result<Cuda> {
        Ok(Cuda::start(Driver::load()?)?.with_kernels()?)
    }

    /// Loads the kernels.
    pub(crate) fn with_kernels(mut self) -> Done<Cuda> {
        // SAFETY: a context is current; the text ends with a NUL; the output is a live field.
        unsafe { call!(self, cuModuleLoadData(&mut self.module, KERNELS.as_ptr().cast()))? };
        Ok(self)
    }

    /// Initialises `driver` and makes the first device's primary context current.
    pub(crate) fn start(driver: Driver) -> Done<Cuda> {
        let mut cuda = Cuda { driver, device: 0, context: CUcontext::NULL, module: CUmodule::NULL };
        // SAFETY: the calls come in the order that the driver requires, and each output is a live field of its type.
        unsafe {
            call!(cuda, cuInit(0))?;
            call!(cuda, cuDeviceGet(&mut cuda.device, 0))?;
            call!(cuda, cuDevicePrimaryCtxRetain(&mut cuda.context, cuda.device))?;
        }
        cuda.bind()?;
        Ok(cuda)
    }

    /// Makes the device's primary context current on the calling thread.
    pub(crate) fn bind(&self) -> Done {
        // SAFETY: the context is retained for as long as this process lives.
        unsafe { call!(self, cuCtxSetCurrent(self.context)) }
    }

    /// The kernel `name`.
    pub(crate) fn kernel(&self, name: &CStr) -> Done<Kernel> {
        let mut function = CUfunction::NULL;
        // SAFETY: the module is loaded; the output is a live local.
        unsafe { call!(self, cuModuleGetFunction(&mut function, self.module, name.as_ptr()))? };
        Ok(Kernel(function))
    }

    /// A stream that does not wait for the default stream.
    pub(crate) fn stream(&self) -> Done<CUstream> {
        let mut stream = CUstream::NULL;
        // SAFETY: a context is current; the output is a live local.
        unsafe { call!(self, cuStreamCreate(&mut stream, STREAM_NON_BLOCKING))? };
        Ok(stream)
    }

    /// An event on which a thread sleeps rather than spins.
    pub(crate) fn event(&self) -> Done<CUevent> {
        let mut event = CUevent(ptr::null_mut());
        // SAFETY: a context is current; the output is a live local.
        unsafe { call!(self, cuEventCreate(&mut event, EVENT_BLOCKING_SYNC))? };
        Ok(event)
    }

    /// Launches `kernel` without waiting for it.
    pub(crate) fn launch(&self, kernel: Kernel, shape: Shape, stream: CUstream, mut parameter: u64) -> Done {
        let mut parameters: [*mut c_void; 1] = [(&raw mut parameter).cast()];
        let Shape { blocks, threads } = shape;
        let none = ptr::null_mut();
        // SAFETY: the kernel has one parameter of eight bytes, which the driver copies before it returns.
        unsafe {
            let parameters = parameters.as_mut_ptr();
            call!(self, cuLaunchKernel(kernel.0, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, none))
        }
    }

    /// Makes a graph of `count` launches of `kernel`, one after the other.
    pub(crate) fn graph(&self, kernel: Kernel, shape: Shape, mut parameter: u64, count: u32) -> Done<CUgraphExec> {
        let (mut graph, mut executable) = (CUgraph::NULL, CUgraphExec::NULL);
        let mut parameters: [*mut c_void; 1] = [(&raw mut parameter).cast()];
        let node = CUDA_KERNEL_NODE_PARAMS_V1 {
            func: kernel.0,
            grid_dim: [shape.blocks, 1, 1],
            block_dim: [shape.threads, 1, 1],
            shared_mem_bytes: 0,
            kernel_params: parameters.as_mut_ptr(),
            extra: ptr::null_mut(),
        };
        // SAFETY: outputs are live locals; the driver copies the node's parameters, one of eight bytes, in each call.
        unsafe {
            call!(self, cuGraphCreate(&mut graph, 0))?;
            let mut before = CUgraphNode::NULL;
            for index in 0..count {
                let mut added = CUgraphNode::NULL;
                call!(self, cuGraphAddKernelNode(&mut added, graph, &before, usize::from(index > 0), &node))?;
                before = added;
            }
            call!(self, cuGraphInstantiateWithFlags(&mut executable, graph, 0))?;
        }
        Ok(executable)
    }

    /// Launches a graph that is never destroyed.
    pub(crate) fn launch_graph(&self, graph: CUgraphExec, stream: CUstream) -> Done {
        // SAFETY: the graph was instantiated and is never destroyed; the driver checks the stream.
        unsafe { call!(self, cuGraphLaunch(graph, stream)) }
    }

    /// Records `event` in `stream`.
    pub(crate) fn record(&self, event: CUevent, stream: CUstream) -> Done {
        // SAFETY: the driver checks both handles.
        unsafe { call!(self, cuEventRecord(event, stream)) }
    }

    /// Waits until all work before `event` is done.
    pub(crate) fn wait(&self, event: CUevent) -> Done {
        // SAFETY: the driver checks the handle.
        unsafe { call!(self, cuEventSynchronize(event)) }
    }

    /// Whether all work before `event` is done.
    pub(crate) fn is_done(&self, event: CUevent) -> Done<bool> {
        // SAFETY: the driver checks the handle.
        match unsafe { call!(self, cuEventQuery(event)) } {
            Err(CudaError { result: CUresult::NOT_READY, .. }) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Copies `bytes` bytes from `from` to `to`, in `stream`.
    pub(crate) fn copy(&self, to: CUdeviceptr, from: CUdeviceptr, bytes: u64, stream: CUstream) -> Done {
        // SAFETY: the driver checks the ranges.
        unsafe { call!(self, cuMemcpyDtoDAsync_v2(to, from, bytes as usize, stream)) }
    }

    /// Waits until all work in `stream` is done.
    pub(crate) fn finish(&self, stream: CUstream) -> Done {
        // SAFETY: the driver checks the handle.
        unsafe { call!(self, cuStreamSynchronize(stream)) }
    }

    /// Allocates device memory.
    pub(crate) fn allocate(&self, bytes: u64) -> Done<CUdeviceptr> {
        let mut address = 0;
        // SAFETY: the output is a live local.
        unsafe { call!(self, cuMemAlloc_v2(&mut address, bytes as usize))? };
        Ok(address)
    }

    /// Frees device memory.
    pub(crate) fn free(&self, address: CUdeviceptr) -> Done {
        // SAFETY: the driver checks the address; no kernel of the check accesses memory.
        unsafe { call!(self, cuMemFree_v2(address)) }
    }

    /// Free and total bytes of the device, as this process sees it.
    pub(crate) fn memory(&self) -> Done<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the outputs are live locals.
        unsafe { call!(self, cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free as u64, total as u64))
    }

    /// The device's attribute `number`, a `CUdevice_attribute`.
    pub(crate) fn attribute(&self, number: c_uint) -> Done<c_int> {
        let mut value = 0;
        // SAFETY: the output is a live local.
        unsafe { call!(self, cuDeviceGetAttribute(&mut value, number, self.device))? };
        Ok(value)
    }

    /// The device's name.
    pub(crate) fn name(&self) -> Done<String> {
        let mut name = [0; 256];
        // SAFETY: the buffer has the given length.
        unsafe { call!(self, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, self.device))? };
        // SAFETY: the driver has written a string with a closing NUL.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// The device's UUID, as NVML writes it.
    pub(crate) fn uuid(&self) -> Done<String> {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: the output is a live local.
        unsafe { call!(self, cuDeviceGetUuid(&mut uuid, self.device))? };
        let hex: String = uuid.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
    }

    /// The CUDA version of the driver: 12040 is 12.4.
    pub(crate) fn version(&self) -> Done<c_int> {
        let mut version = 0;
        // SAFETY: the output is a live local.
        unsafe { call!(self, cuDriverGetVersion(&mut version))? };
        Ok(version)
    }

    /// Writes `value` into each of `bytes` bytes from `address` on, in `stream`.
    pub(crate) fn set(&self, address: CUdeviceptr, value: u8, bytes: usize, stream: CUstream) -> Done {
        // SAFETY: the driver checks the range.
        unsafe { call!(self, cuMemsetD8Async(address, value, bytes, stream)) }
    }

    /// Copies from `address` into `to`, in `stream`, and waits for it.
    pub(crate) fn read(&self, to: &mut [u8], address: CUdeviceptr, stream: CUstream) -> Done {
        // SAFETY: the buffer has the given length and lives until the stream is finished below.
        unsafe { call!(self, cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), address, to.len(), stream))? };
        self.finish(stream)
    }
}

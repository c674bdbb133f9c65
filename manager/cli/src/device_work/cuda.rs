//! The part of the CUDA driver API that is used here, loaded as in any program: with `dlopen`.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;

use aliquot_abi::cuda::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUmodule, CUresult, CUstream};
use libloading::Library;

use crate::error::with_causes;

const LIBRARY: &str = "libcuda.so.1";
const EVENT_BLOCKING_SYNC: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;

/// Why the work cannot continue.
#[derive(Debug)]
pub(crate) enum CudaError {
    /// The driver's library cannot be loaded.
    Library(libloading::Error),
    /// The driver lacks a function.
    Function(&'static str),
    /// A call of this function failed with this result.
    Call(&'static str, CUresult),
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaError::Library(error) => write!(f, "cannot load {LIBRARY}: {}", with_causes(error)),
            CudaError::Function(name) => write!(f, "{LIBRARY} has no {name}: the driver is too old"),
            CudaError::Call(name, result) => write!(f, "{name} answers {}", result_name(*result)),
        }
    }
}

/// The driver's name of a result.
pub(crate) fn result_name(result: CUresult) -> String {
    result
        .name_with_nul()
        .map_or_else(|| format!("CUDA error {}", result.0), |name| name.trim_end_matches('\0').to_owned())
}

macro_rules! driver {
    ($($name:ident: $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions of the driver's library.
        struct Driver {
            $($name: unsafe extern "C" fn($($argument),*) -> CUresult,)*
        }

        impl Driver {
            fn of(library: &Library) -> Result<Driver, CudaError> {
                Ok(Driver {
                    // SAFETY: the signatures are those in NVIDIA's documentation of exactly these symbols. The library
                    // is never unloaded, because its handle is leaked (see `Cuda::open`).
                    $($name: unsafe { *library.get($symbol.to_bytes_with_nul()).map_err(|_| CudaError::Function(stringify!($name)))? },)*
                })
            }
        }
    };
}

driver! {
    init: c"cuInit" (c_uint);
    device_get: c"cuDeviceGet" (*mut CUdevice, c_int);
    primary_ctx_retain: c"cuDevicePrimaryCtxRetain" (*mut CUcontext, CUdevice);
    ctx_set_current: c"cuCtxSetCurrent" (CUcontext);
    module_load_data: c"cuModuleLoadData" (*mut CUmodule, *const c_void);
    module_get_function: c"cuModuleGetFunction" (*mut CUfunction, CUmodule, *const std::ffi::c_char);
    stream_create: c"cuStreamCreate" (*mut CUstream, c_uint);
    event_create: c"cuEventCreate" (*mut CUevent, c_uint);
    event_record: c"cuEventRecord" (CUevent, CUstream);
    event_synchronize: c"cuEventSynchronize" (CUevent);
    launch_kernel: c"cuLaunchKernel" (CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void);
    mem_alloc: c"cuMemAlloc_v2" (*mut CUdeviceptr, usize);
    mem_free: c"cuMemFree_v2" (CUdeviceptr);
    mem_get_info: c"cuMemGetInfo_v2" (*mut usize, *mut usize);
}

fn check(name: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result.is_ok() { Ok(()) } else { Err(CudaError::Call(name, result)) }
}

/// The first device that this process sees, with its primary context current on the calling thread.
///
/// Not `Send`: a context is current on one thread.
pub(crate) struct Cuda {
    driver: Driver,
    stream: CUstream,
    not_send: std::marker::PhantomData<*const ()>,
}

/// A kernel with one parameter, a `u64`.
#[derive(Clone, Copy)]
pub(crate) struct Kernel(CUfunction);

/// A marker in the stream that can be waited for.
#[derive(Clone, Copy)]
pub(crate) struct Event(CUevent);

impl Cuda {
    /// Loads the driver and opens the first device.
    pub(crate) fn open() -> Result<Cuda, CudaError> {
        // SAFETY: the driver's initialisers are made to run in any process, and nothing else in this process depends on
        // them.
        let library = unsafe { Library::new(LIBRARY) }.map_err(CudaError::Library)?;
        let driver = Driver::of(&library)?;
        // Leaked, because the functions must outlive every use, also at exit.
        std::mem::forget(library);
        let (mut device, mut context, mut stream) = (0, CUcontext::NULL, CUstream::NULL);
        // SAFETY: each pointer refers to a live local of the type that the call writes. The calls come in the order
        // that the driver requires: initialise, device, context, make it current, then the calls that need a context.
        unsafe {
            check("cuInit", (driver.init)(0))?;
            check("cuDeviceGet", (driver.device_get)(&mut device, 0))?;
            check("cuDevicePrimaryCtxRetain", (driver.primary_ctx_retain)(&mut context, device))?;
            check("cuCtxSetCurrent", (driver.ctx_set_current)(context))?;
            check("cuStreamCreate", (driver.stream_create)(&mut stream, 0))?;
        }
        Ok(Cuda { driver, stream, not_send: std::marker::PhantomData })
    }

    /// Loads the kernel `name` from PTX.
    pub(crate) fn kernel(&self, ptx: &CStr, name: &CStr) -> Result<Kernel, CudaError> {
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        // SAFETY: a context is current; both strings end with a NUL; the outputs are live locals.
        unsafe {
            check("cuModuleLoadData", (self.driver.module_load_data)(&mut module, ptx.as_ptr().cast()))?;
            check("cuModuleGetFunction", (self.driver.module_get_function)(&mut function, module, name.as_ptr()))?;
        }
        Ok(Kernel(function))
    }

    /// Makes an event on which a waiting thread sleeps and does not spin.
    pub(crate) fn event(&self) -> Result<Event, CudaError> {
        let mut event = CUevent(ptr::null_mut());
        // SAFETY: a context is current; the output is a live local.
        check("cuEventCreate", unsafe {
            (self.driver.event_create)(&mut event, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING)
        })?;
        Ok(Event(event))
    }

    /// Launches `kernel` with one thread, without waiting for it, and records `event` behind it.
    pub(crate) fn launch(&self, kernel: Kernel, mut parameter: u64, event: Event) -> Result<(), CudaError> {
        let mut parameters: [*mut c_void; 1] = [(&raw mut parameter).cast()];
        // SAFETY: the kernel has one parameter of eight bytes, and the driver copies it before it returns; function,
        // event and stream belong to the current context.
        unsafe {
            let Driver { launch_kernel, event_record, .. } = self.driver;
            check(
                "cuLaunchKernel",
                launch_kernel(kernel.0, 1, 1, 1, 1, 1, 1, 0, self.stream, parameters.as_mut_ptr(), ptr::null_mut()),
            )?;
            check("cuEventRecord", event_record(event.0, self.stream))
        }
    }

    /// Waits until everything launched before `event` was recorded is done.
    pub(crate) fn wait(&self, event: Event) -> Result<(), CudaError> {
        // SAFETY: the event belongs to the current context.
        check("cuEventSynchronize", unsafe { (self.driver.event_synchronize)(event.0) })
    }

    /// Allocates device memory. The error is the driver's answer.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<CUdeviceptr, CUresult> {
        let mut pointer = 0;
        // SAFETY: a context is current; the output is a live local.
        match unsafe { (self.driver.mem_alloc)(&mut pointer, bytes as usize) } {
            CUresult::SUCCESS => Ok(pointer),
            refusal => Err(refusal),
        }
    }

    /// Frees memory that [`Cuda::allocate`] has allocated.
    pub(crate) fn free(&self, pointer: CUdeviceptr) -> Result<(), CudaError> {
        // SAFETY: the pointer came from `allocate`, and nothing uses the memory: the kernels here access none.
        check("cuMemFree", unsafe { (self.driver.mem_free)(pointer) })
    }

    /// Free and total bytes of the device, as this process sees it.
    pub(crate) fn memory_info(&self) -> Result<(u64, u64), CudaError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is current; the outputs are live locals.
        check("cuMemGetInfo", unsafe { (self.driver.mem_get_info)(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }
}

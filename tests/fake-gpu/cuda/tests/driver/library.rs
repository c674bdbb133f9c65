//! The driver's library, with one method for each line of the table.

use aliquot_abi::cuda::*;
use libloading::Library;

/// PTX with a kernel that takes the duration in its argument, one with several parameters, one that waits for another
/// kernel, and a variable.
pub(crate) const PTX: &[u8] =
    b".version 8.0\n.target sm_90\n.address_size 64\n.visible .global .align 4 .b8 table[64];\n\
    .visible .entry spin_ns(.param .u64 ns){ret;}\n.visible .entry plain(.param .u32 a,.param .u64 b){ret;}\n\
    .visible .entry rendezvous(.param .u64 own,.param .u64 peer,.param .u64 number,.param .u64 ns){ret;}\n\0";

/// The environment variable with the path of the library that the test has built.
pub(crate) const LIBRARY_VARIABLE: &str = "FAKE_GPU_TEST_LIBRARY";

pub(crate) struct Driver(Library);

macro_rules! methods {
    ($($class:ident $policy:ident:
        $symbol:ident $(| $per_thread:ident)? = $name:ident @ $version:literal ($($argument:ident: $kind:ty),*);)*) => {
        #[allow(non_snake_case, dead_code, clippy::too_many_arguments, reason = "the driver API's functions")]
        impl Driver {
            $(pub(crate) fn $symbol(&self, $($argument: $kind),*) -> CUresult {
                type Function = unsafe extern "C" fn($($kind),*) -> CUresult;
                // SAFETY: the symbol has the type that the table gives it, and the tests pass what the API allows or
                // what it must refuse.
                unsafe {
                    let function = self.0.get::<Function>(stringify!($symbol)).expect(stringify!($symbol));
                    function($($argument),*)
                }
            })*
        }
    };
}

aliquot_abi::cuda_api!(methods);

impl Driver {
    pub(crate) fn load() -> Driver {
        let path =
            std::env::var_os(LIBRARY_VARIABLE).expect("the test that started this process says where the library is");
        // SAFETY: loading the library runs no code of consequence.
        Driver(unsafe { Library::new(path) }.expect("the library loads"))
    }

    /// Loads the driver and makes a primary context current.
    pub(crate) fn with_context() -> Driver {
        let driver = Driver::load();
        driver.cuInit(0).ok();
        let mut context = CUcontext::NULL;
        driver.cuDevicePrimaryCtxRetain(&mut context, 0).ok();
        driver.cuCtxSetCurrent(context).ok();
        driver
    }

    /// The address that `dlsym` gives for a name.
    pub(crate) fn symbol(&self, name: &str) -> *mut c_void {
        // SAFETY: the symbol is not called here.
        unsafe { *self.0.get::<*mut c_void>(name).expect(name) }
    }

    pub(crate) fn function(&self, name: &core::ffi::CStr) -> CUfunction {
        let (mut module, mut function) = (CUmodule::NULL, CUfunction::NULL);
        self.cuModuleLoadData(&mut module, PTX.as_ptr().cast()).ok();
        self.cuModuleGetFunction(&mut function, module, name.as_ptr()).ok();
        function
    }

    /// Launches the kernel that takes `ns` nanoseconds.
    pub(crate) fn spin(&self, function: CUfunction, ns: u64, stream: CUstream) -> CUresult {
        let mut ns = ns;
        let mut parameters = [(&raw mut ns).cast::<c_void>()];
        let none = core::ptr::null_mut();
        self.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters.as_mut_ptr(), none)
    }

    pub(crate) fn stream(&self, flags: c_uint) -> CUstream {
        let mut stream = CUstream::NULL;
        self.cuStreamCreate(&mut stream, flags).ok();
        stream
    }

    pub(crate) fn event(&self) -> CUevent {
        let mut event = CUevent::NULL;
        self.cuEventCreate(&mut event, 0).ok();
        event
    }

    pub(crate) fn alloc(&self, bytes: usize) -> CUdeviceptr {
        let mut address = 0;
        self.cuMemAlloc_v2(&mut address, bytes).ok();
        address
    }

    pub(crate) fn used(&self) -> usize {
        let (mut free, mut total) = (0, 0);
        self.cuMemGetInfo_v2(&mut free, &mut total).ok();
        total - free
    }

    pub(crate) fn elapsed_ms(&self, start: CUevent, end: CUevent) -> f32 {
        let mut elapsed = 0.0;
        self.cuEventElapsedTime(&mut elapsed, start, end).ok();
        elapsed
    }
}

/// Expectations of a test about a result.
pub(crate) trait Expect {
    /// Fails the test unless the call has succeeded.
    fn ok(self);
    /// Fails the test unless the call was refused with this code.
    fn is(self, expected: CUresult);
}

impl Expect for CUresult {
    #[track_caller]
    fn ok(self) {
        self.is(CUresult::SUCCESS);
    }

    #[track_caller]
    fn is(self, expected: CUresult) {
        assert_eq!(self.name_with_nul(), expected.name_with_nul());
    }
}

//! The CUDA driver API, as far as this project touches it: types, result codes, constants.
//!
//! Names and values are those of NVIDIA's CUDA driver API documentation; layouts are checked below against the sizes
//! and offsets of `cuda.h` on 64-bit Linux.

#![allow(non_camel_case_types, non_snake_case, reason = "the names are those of the CUDA driver API")]

mod forwarded;
mod structs;
mod table;

pub use core::ffi::{c_char, c_int, c_uint, c_void};
pub use forwarded::{FORWARDED, Family};
pub use structs::*;

/// A result of the driver. Every `u32` is a valid value: a newer driver returns codes that this table does not name.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CUresult(pub u32);

macro_rules! results {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl CUresult {
            $(#[doc = $text] pub const $name: CUresult = CUresult($value);)*

            /// Every error of this table.
            pub const ERRORS: &[CUresult] = &[$(CUresult($value)),*];

            /// The code's name in the driver API with a closing NUL, or `None` for a code that is not in this table.
            #[must_use]
            pub const fn name_with_nul(self) -> Option<&'static str> {
                match self.0 {
                    0 => Some("CUDA_SUCCESS\0"),
                    $($value => Some(concat!("CUDA_ERROR_", stringify!($name), "\0")),)*
                    _ => None,
                }
            }

            /// The driver's description of the code with a closing NUL, or `None` for a code that is not in this table.
            #[must_use]
            pub const fn text_with_nul(self) -> Option<&'static str> {
                match self.0 {
                    0 => Some("no error\0"),
                    $($value => Some(concat!($text, "\0")),)*
                    _ => None,
                }
            }
        }
    };
}

impl CUresult {
    /// The call did what was asked.
    pub const SUCCESS: CUresult = CUresult(0);

    /// Errors after which a context does no work any more. For most of them the driver's documentation says that the
    /// context must be destroyed or the process must end. For three it does not, but after a hardware error, or after
    /// its end, a context does no work either. `EXTERNAL_DEVICE` is not in the list: it can also mean that a single
    /// call failed. To count running work as done is worse than a bounded wait for work that never ends.
    pub const FATAL: [CUresult; 15] = [
        CUresult::ECC_UNCORRECTABLE,
        CUresult::NVLINK_UNCORRECTABLE,
        CUresult::CONTAINED,
        CUresult::ILLEGAL_ADDRESS,
        CUresult::LAUNCH_TIMEOUT,
        CUresult::CONTEXT_IS_DESTROYED,
        CUresult::ASSERT,
        CUresult::HARDWARE_STACK_ERROR,
        CUresult::ILLEGAL_INSTRUCTION,
        CUresult::MISALIGNED_ADDRESS,
        CUresult::INVALID_ADDRESS_SPACE,
        CUresult::INVALID_PC,
        CUresult::LAUNCH_FAILED,
        CUresult::TENSOR_MEMORY_LEAK,
        CUresult::MPS_CLIENT_TERMINATED,
    ];

    /// Whether the call did what was asked.
    #[must_use]
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
}

results! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "initialization error";
    DEINITIALIZED = 4, "driver shutting down";
    STUB_LIBRARY = 34, "CUDA driver is a stub library";
    NO_DEVICE = 100, "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "invalid device ordinal";
    INVALID_IMAGE = 200, "device kernel image is invalid";
    INVALID_CONTEXT = 201, "invalid device context";
    CONTEXT_ALREADY_CURRENT = 202, "context already current";
    MAP_FAILED = 205, "mapping of buffer object failed";
    UNMAP_FAILED = 206, "unmapping of buffer object failed";
    ALREADY_MAPPED = 208, "resource already mapped";
    NO_BINARY_FOR_GPU = 209, "no kernel image is available for execution on the device";
    NOT_MAPPED = 211, "resource not mapped";
    ECC_UNCORRECTABLE = 214, "uncorrectable ECC error encountered";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    INVALID_PTX = 218, "a PTX JIT compilation failed";
    NVLINK_UNCORRECTABLE = 220, "uncorrectable NVLink error detected during the execution";
    CONTAINED = 226, "an exception on the device was contained by the device";
    FILE_NOT_FOUND = 301, "file not found";
    INVALID_HANDLE = 400, "invalid resource handle";
    ILLEGAL_STATE = 401, "the operation cannot be performed in the present state";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    ILLEGAL_ADDRESS = 700, "an illegal memory access was encountered";
    LAUNCH_OUT_OF_RESOURCES = 701, "too many resources requested for launch";
    LAUNCH_TIMEOUT = 702, "the launch timed out and was terminated";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    PRIMARY_CONTEXT_ACTIVE = 708, "cannot set while device is active in this process";
    CONTEXT_IS_DESTROYED = 709, "context is destroyed";
    ASSERT = 710, "device-side assert triggered";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, "pointer does not correspond to a registered memory region";
    HARDWARE_STACK_ERROR = 714, "hardware stack error";
    ILLEGAL_INSTRUCTION = 715, "an illegal instruction was encountered";
    MISALIGNED_ADDRESS = 716, "misaligned address";
    INVALID_ADDRESS_SPACE = 717, "operation not supported on global/shared address space";
    INVALID_PC = 718, "invalid program counter";
    LAUNCH_FAILED = 719, "unspecified launch failure";
    COOPERATIVE_LAUNCH_TOO_LARGE = 720, "too many blocks in cooperative launch";
    TENSOR_MEMORY_LEAK = 721, "tensor memory was not completely freed";
    NOT_PERMITTED = 800, "operation not permitted";
    NOT_SUPPORTED = 801, "operation not supported";
    MPS_CLIENT_TERMINATED = 810, "the MPS client was terminated by the server";
    STREAM_CAPTURE_UNSUPPORTED = 900, "operation not permitted when stream is capturing";
    STREAM_CAPTURE_INVALIDATED = 901, "operation failed due to a previous error during capture";
    STREAM_CAPTURE_MERGE = 902, "operation would result in a merge of separate capture sequences";
    STREAM_CAPTURE_UNMATCHED = 903, "capture was not ended in the same stream as it began";
    STREAM_CAPTURE_UNJOINED = 904, "capturing stream has unjoined work";
    STREAM_CAPTURE_ISOLATION = 905, "dependency created on uncaptured work in another stream";
    STREAM_CAPTURE_IMPLICIT = 906, "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "operation not permitted on an event last recorded in a capturing stream";
    STREAM_CAPTURE_WRONG_THREAD = 908, "attempt to terminate a thread-local capture sequence from another thread";
    GRAPH_EXEC_UPDATE_FAILURE = 910, "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update";
    EXTERNAL_DEVICE = 911, "an error occurred in a device outside of the GPU";
    INVALID_RESOURCE_TYPE = 914, "invalid resource type";
    INVALID_RESOURCE_CONFIGURATION = 915, "invalid resource configuration";
    UNKNOWN = 999, "unknown error";
}

/// A device's ordinal in this process.
pub type CUdevice = c_int;
/// An address on the device.
pub type CUdeviceptr = u64;
/// An address on the device in the 32-bit interface of CUDA before 3.2.
pub type CUdeviceptrV1 = c_uint;
/// The value that a conditional node tests.
pub type CUgraphConditionalHandle = u64;
/// A texture object.
pub type CUtexObject = u64;
/// A surface object.
pub type CUsurfObject = u64;
/// A host function that is called from a stream.
pub type CUhostFn = Option<unsafe extern "C" fn(*mut c_void)>;
/// A callback that is called from a stream and gets the stream's state.
pub type CUstreamCallback = Option<unsafe extern "C" fn(CUstream, CUresult, *mut c_void)>;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// The null handle.
            pub const NULL: $name = $name(core::ptr::null_mut());

            /// Whether this is the null handle.
            #[must_use]
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: to this code the handle is an opaque number; the driver accepts it on any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above; only the driver reaches anything through it.
        unsafe impl Sync for $name {}
    )*};
}

handles! {
    /// A context: a process's state on one device.
    CUcontext;
    /// A loaded module.
    CUmodule;
    /// A function of a module.
    CUfunction;
    /// A library: a module that the driver loads into each context when it is needed there.
    CUlibrary;
    /// A function of a library.
    CUkernel;
    /// A CUDA array.
    CUarray;
    /// A CUDA array with mip levels.
    CUmipmappedArray;
    /// A stream.
    CUstream;
    /// An event.
    CUevent;
    /// A graph.
    CUgraph;
    /// A node of a graph.
    CUgraphNode;
    /// An instantiated graph.
    CUgraphExec;
    /// A pool of stream-ordered memory.
    CUmemoryPool;
    /// An object that graphs keep alive for the program.
    CUuserObject;
    /// Memory that was imported from another interface.
    CUexternalMemory;
    /// A semaphore that was imported from another interface.
    CUexternalSemaphore;
    /// A linker invocation in progress.
    CUlinkState;
    /// A green context: a context on a part of a device.
    CUgreenCtx;
    /// A description of parts of a device, from which green contexts are made.
    CUdevResourceDesc;
}

/// `CU_STREAM_LEGACY`: a handle of the legacy default stream that means the same in every function.
pub const CU_STREAM_LEGACY: CUstream = CUstream(core::ptr::without_provenance_mut(1));
/// `CU_STREAM_PER_THREAD`: the calling thread's default stream.
pub const CU_STREAM_PER_THREAD: CUstream = CUstream(core::ptr::without_provenance_mut(2));

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`: asks for the form of a function with per-thread default streams.
pub const CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM: u64 = 2;
/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM`: asks for the form of a function with the legacy default stream.
pub const CU_GET_PROC_ADDRESS_LEGACY_STREAM: u64 = 1;

/// `CU_MEMHOSTREGISTER_PORTABLE`: usable in every context of the process.
pub const CU_MEMHOSTREGISTER_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`: mapped into the device's address space.
pub const CU_MEMHOSTREGISTER_DEVICEMAP: c_uint = 2;
/// `CU_MEMHOSTREGISTER_IOMEMORY`: the range is not memory but registers of another device.
pub const CU_MEMHOSTREGISTER_IOMEMORY: c_uint = 4;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`: bytes of physical memory that a pool has reserved.
pub const CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: c_uint = 5;
/// `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`: bytes of a pool's reserved memory that are in use.
pub const CU_MEMPOOL_ATTR_USED_MEM_CURRENT: c_uint = 7;
/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT`: bytes of physical memory that graphs use on a device.
pub const CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: c_uint = 0;
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`: bytes of physical memory that are reserved for graphs on a device.
pub const CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: c_uint = 2;
/// `CU_GRAPH_NODE_TYPE_GRAPH`: a node that contains a graph.
pub const CU_GRAPH_NODE_TYPE_GRAPH: c_uint = 4;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`: a node that allocates memory.
pub const CU_GRAPH_NODE_TYPE_MEM_ALLOC: c_uint = 10;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD`: the graph is uploaded as soon as it is instantiated.
pub const CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD: u64 = 2;

/// `CU_STREAM_CAPTURE_STATUS_NONE`: the stream is not capturing.
pub const CU_STREAM_CAPTURE_STATUS_NONE: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: the calling thread may make calls that a capture elsewhere in the process would
/// forbid.
pub const CU_STREAM_CAPTURE_MODE_RELAXED: c_uint = 2;

/// `CU_MEM_LOCATION_TYPE_DEVICE`: memory on the device whose ordinal is the location's id.
pub const CU_MEM_LOCATION_TYPE_DEVICE: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_HOST`: memory of the host.
pub const CU_MEM_LOCATION_TYPE_HOST: c_uint = 2;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`: memory of the host, near the calling thread. The value between this one
/// and `CU_MEM_LOCATION_TYPE_HOST` stands for the host's NUMA node whose number is the location's id.
pub const CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: c_uint = 4;
/// `CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`: memory in one part of a device; see [`CUmemLocation::device`].
pub const CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: c_uint = 6;

/// Which default stream a null handle means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NullStream {
    /// The legacy default stream, which synchronises with all blocking streams of its context.
    Legacy,
    /// The calling thread's own default stream.
    PerThread,
}

impl NullStream {
    /// The handle of the same stream, with an explicit handle in place of null, so that it means the same in every
    /// function.
    #[must_use]
    pub fn explicit(self, stream: CUstream) -> CUstream {
        match self {
            _ if !stream.is_null() => stream,
            NullStream::Legacy => CU_STREAM_LEGACY,
            NullStream::PerThread => CU_STREAM_PER_THREAD,
        }
    }
}

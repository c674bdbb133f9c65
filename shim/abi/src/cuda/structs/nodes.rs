//! The parameters of a graph's nodes.

use super::{CUDA_MEMCPY3D, CUmemAccessDesc, CUmemPoolProps, CUstreamBatchMemOpParams};
use crate::cuda::{CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUhostFn, CUkernel, c_int, c_uint, c_void};

/// A kernel node, CUDA 10 and 11.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS_V1 {
    /// The kernel.
    pub func: CUfunction,
    /// Blocks of the grid in x, y and z.
    pub grid_dim: [c_uint; 3],
    /// Threads of a block in x, y and z.
    pub block_dim: [c_uint; 3],
    /// Dynamic shared memory per block in bytes.
    pub shared_mem_bytes: c_uint,
    /// The kernel's arguments.
    pub kernel_params: *mut *mut c_void,
    /// The kernel's arguments in one buffer.
    pub extra: *mut *mut c_void,
}

/// A kernel node, CUDA 12 and later.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_KERNEL_NODE_PARAMS {
    /// What CUDA 11 had.
    pub v1: CUDA_KERNEL_NODE_PARAMS_V1,
    /// The kernel, if `func` is null.
    pub kern: CUkernel,
    /// The context in which a library's kernel runs; null: the current one.
    pub ctx: CUcontext,
}

/// A memory set in a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMSET_NODE_PARAMS {
    /// The address.
    pub dst: CUdeviceptr,
    /// Bytes from row to row.
    pub pitch: usize,
    /// The value.
    pub value: c_uint,
    /// Size of the value in bytes: 1, 2 or 4.
    pub element_size: c_uint,
    /// Elements of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
}

/// A host function in a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_HOST_NODE_PARAMS {
    /// The function.
    pub callback: CUhostFn,
    /// Its argument.
    pub user_data: *mut c_void,
}

/// An allocation in a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEM_ALLOC_NODE_PARAMS {
    /// Where the memory shall lie.
    pub pool_props: CUmemPoolProps,
    /// Access rights beyond those of the memory's own device.
    pub access_descs: *const CUmemAccessDesc,
    /// Number of access rights.
    pub access_desc_count: usize,
    /// Bytes asked for.
    pub bytesize: usize,
    /// The address, written by the driver.
    pub dptr: CUdeviceptr,
}

/// The parameters of a graph node of any kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CUgraphNodeParams {
    /// `CUgraphNodeType`.
    pub kind: c_uint,
    /// Must be 0.
    pub reserved0: [c_uint; 3],
    /// The parameters of this kind.
    pub of_kind: CUgraphNodeKindParams,
    /// Must be 0.
    pub reserved2: u64,
}

/// The parameters of each kind of node.
#[repr(C)]
#[derive(Clone, Copy)]
pub union CUgraphNodeKindParams {
    /// All bytes.
    pub words: [u64; 29],
    /// A kernel.
    pub kernel: CUDA_KERNEL_NODE_PARAMS,
    /// A copy.
    pub memcpy: CUDA_MEMCPY_NODE_PARAMS,
    /// A set.
    pub memset: CUDA_MEMSET_NODE_PARAMS,
    /// A host function.
    pub host: CUDA_HOST_NODE_PARAMS,
    /// A graph.
    pub graph: CUDA_CHILD_GRAPH_NODE_PARAMS,
    /// The event that is waited for, or recorded.
    pub event: CUevent,
    /// An allocation.
    pub alloc: CUDA_MEM_ALLOC_NODE_PARAMS,
    /// The address that is freed.
    pub free: CUdeviceptr,
    /// Stream memory operations.
    pub mem_op: CUDA_BATCH_MEM_OP_NODE_PARAMS,
    /// Graphs that run under a condition.
    pub conditional: CUDA_CONDITIONAL_NODE_PARAMS,
}

/// A copy in a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_MEMCPY_NODE_PARAMS {
    /// Must be 0.
    pub flags: c_int,
    /// Must be 0.
    pub reserved: c_int,
    /// The context in which it runs.
    pub copy_ctx: CUcontext,
    /// The copy.
    pub copy_params: CUDA_MEMCPY3D,
}

/// A graph in a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_CHILD_GRAPH_NODE_PARAMS {
    /// The graph.
    pub graph: CUgraph,
    /// Whether the node gets a copy (0) or the graph itself (1). Before CUDA 12.9 it got a copy.
    pub ownership: c_int,
}

/// Stream memory operations in a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_BATCH_MEM_OP_NODE_PARAMS {
    /// The context in which they run.
    pub ctx: CUcontext,
    /// Number of operations.
    pub count: c_uint,
    /// The operations.
    pub param_array: *mut CUstreamBatchMemOpParams,
    /// Must be 0.
    pub flags: c_uint,
}

/// Graphs that run under a condition.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUDA_CONDITIONAL_NODE_PARAMS {
    /// The value that the condition tests.
    pub handle: u64,
    /// `CUgraphConditionalNodeType`.
    pub kind: c_uint,
    /// Number of graphs.
    pub size: c_uint,
    /// The graphs, written by the driver.
    pub graph_out: *mut CUgraph,
    /// The context in which they run.
    pub ctx: CUcontext,
}

const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<CUDA_KERNEL_NODE_PARAMS_V1>() == 56 && size_of::<CUDA_KERNEL_NODE_PARAMS>() == 72);
    assert!(size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>() == 120 && size_of::<CUDA_MEMSET_NODE_PARAMS>() == 40);
    assert!(size_of::<CUgraphNodeParams>() == 256 && offset_of!(CUgraphNodeParams, of_kind) == 16);
    assert!(size_of::<CUDA_MEMCPY_NODE_PARAMS>() == 216 && size_of::<CUDA_CONDITIONAL_NODE_PARAMS>() == 32);
    assert!(size_of::<CUDA_BATCH_MEM_OP_NODE_PARAMS>() == 32);
};

//! The kinds of graph nodes.

use core::ffi::{c_uint, c_void};
use std::sync::Arc;

use aliquot_abi::cuda::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_V1,
    CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr, CUevent, CUfunction,
    CUgraph, CUgraphNode, CUkernel, CUresult,
};

use crate::Done;
use crate::caller::{bytes, get, not_null, put};
use crate::conditionals::Conditional;
use crate::context::context;
use crate::copies::{Copy, copy_3d};
use crate::events::{Event, event};
use crate::graph_memory::GraphMemory;
use crate::graphs::{self, graph, node};
use crate::kernels::{Function, function};
use crate::launches::{Arguments, HostCall, Shape, duration_ns};
use crate::memory_operations::{MemoryOperation, Version, read_operations};
use crate::sets::Set;

/// The kind and parameters of a node.
#[derive(Clone)]
pub(crate) enum NodeKind {
    Kernel(KernelNode),
    Copy(Copy),
    Set(Set),
    Host(HostCall),
    /// A graph, owned by the node.
    Child(CUgraph),
    Empty,
    EventWait(&'static Event),
    EventRecord(&'static Event),
    MemoryAllocation(Arc<GraphMemory>),
    MemoryFree(u64),
    MemoryOperations(Vec<MemoryOperation>),
    /// Signals to external semaphores, and waits for them.
    SemaphoreSignal(Vec<MemoryOperation>),
    SemaphoreWait(Vec<MemoryOperation>),
    /// Graphs that run on a condition.
    Conditional(Conditional),
}

impl NodeKind {
    /// Its `CUgraphNodeType`.
    pub(crate) fn number(&self) -> c_uint {
        match self {
            NodeKind::Kernel(_) => 0,
            NodeKind::Copy(_) => 1,
            NodeKind::Set(_) => 2,
            NodeKind::Host(_) => 3,
            NodeKind::Child(_) => 4,
            NodeKind::Empty => 5,
            NodeKind::EventWait(_) => 6,
            NodeKind::EventRecord(_) => 7,
            NodeKind::SemaphoreSignal(_) => 8,
            NodeKind::SemaphoreWait(_) => 9,
            NodeKind::MemoryAllocation(_) => 10,
            NodeKind::MemoryFree(_) => 11,
            NodeKind::MemoryOperations(_) => 12,
            NodeKind::Conditional(_) => 13,
        }
    }

    /// The inner graphs, which the node owns.
    pub(crate) fn inner_graphs(&self) -> &[CUgraph] {
        match self {
            NodeKind::Child(child) => core::slice::from_ref(child),
            NodeKind::Conditional(conditional) => &conditional.bodies,
            _ => &[],
        }
    }

    /// Whether the node allocates or frees.
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, NodeKind::MemoryAllocation(_) | NodeKind::MemoryFree(_))
    }

    pub(crate) fn kernel(
        handle: CUfunction,
        function: &'static Function,
        shape: Shape,
        arguments: Arguments,
    ) -> Done<NodeKind> {
        shape.check(function)?;
        arguments.check()?;
        // A graph stores the duration of a kernel, which is not known for these.
        if function.meets {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let duration_ns = duration_ns(function, &shape, &arguments)?;
        let arguments = Arc::new(StoredArguments::copy(function, &arguments)?);
        Ok(NodeKind::Kernel(KernelNode { handle, shape, duration_ns, arguments }))
    }
}

/// A launch that is made later.
#[derive(Clone)]
pub(crate) struct KernelNode {
    handle: CUfunction,
    shape: Shape,
    pub(crate) duration_ns: u64,
    arguments: Arc<StoredArguments>,
}

impl KernelNode {
    pub(crate) fn name(&self) -> String {
        let name = function(self.handle).map(|function| function.name.to_string_lossy().into_owned());
        name.unwrap_or_else(|_| "KERNEL".to_owned())
    }

    pub(crate) fn parameters(&self) -> CUDA_KERNEL_NODE_PARAMS_V1 {
        CUDA_KERNEL_NODE_PARAMS_V1 {
            func: self.handle,
            grid_dim: self.shape.grid,
            block_dim: self.shape.block,
            shared_mem_bytes: self.shape.shared_bytes,
            kernel_params: StoredArguments::pointer_to(&self.arguments.parameters),
            extra: StoredArguments::pointer_to(&self.arguments.extra),
        }
    }
}

/// A copy of a launch's arguments, so that the caller need not keep them.
struct StoredArguments {
    /// The bytes to which the pointers below point.
    _values: Box<[u8]>,
    /// Pointers to the parameters; empty if there are none or their sizes are not known.
    parameters: Box<[usize]>,
    /// The list that describes one buffer with all parameters; empty if they were not passed in this way.
    extra: Box<[usize]>,
    _buffer_bytes: Box<usize>,
}

impl StoredArguments {
    fn copy(function: &Function, arguments: &Arguments) -> Done<StoredArguments> {
        let mut values = Vec::new();
        let mut offsets = Vec::new();
        if !arguments.parameters.is_null() {
            // A spin kernel's first parameter is known for any image.
            let spin = function.spins.then(|| vec![(0, 8)]);
            for (index, (_, size)) in function.parameters.clone().or(spin).unwrap_or_default().into_iter().enumerate() {
                let value = get(arguments.parameters.wrapping_add(index))?;
                values.resize(values.len().next_multiple_of(16), 0);
                offsets.push(values.len());
                values.extend_from_slice(bytes(value.cast_const().cast(), size)?);
            }
        } else if !arguments.extra.is_null() {
            let (start, count) = arguments.buffer()?;
            if count > 0 {
                values.extend_from_slice(bytes(start, count)?);
            }
        }
        let buffer_bytes = Box::new(values.len());
        let mut values = values.into_boxed_slice();
        let start = values.as_mut_ptr().expose_provenance();
        let size_at = (&raw const *buffer_bytes).expose_provenance();
        let extra = if arguments.extra.is_null() { vec![] } else { vec![1, start, 2, size_at, 0] };
        Ok(StoredArguments {
            parameters: offsets.into_iter().map(|offset| start + offset).collect(),
            extra: extra.into(),
            _values: values,
            _buffer_bytes: buffer_bytes,
        })
    }

    fn pointer_to(list: &[usize]) -> *mut *mut c_void {
        if list.is_empty() { core::ptr::null_mut() } else { list.as_ptr().cast_mut().cast() }
    }
}

/// Adds a node for the caller.
pub(crate) fn add(
    target: *mut CUgraphNode,
    handle: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    kind: impl FnOnce() -> Done<NodeKind>,
) -> Done {
    let graph = graph(handle)?;
    not_null(target)?;
    let dependencies = graphs::read_dependencies(handle, dependencies, count)?;
    put(target, graph.add(handle, kind()?, dependencies))
}

/// Reads a kernel node's parameters. The second version of the structure can name a library's kernel instead of a
/// function.
pub(crate) fn kernel_of(p: &CUDA_KERNEL_NODE_PARAMS_V1, kernel: CUkernel) -> Done<NodeKind> {
    let handle = if p.func.is_null() { CUfunction(kernel.0) } else { p.func };
    let shape = Shape { grid: p.grid_dim, block: p.block_dim, shared_bytes: p.shared_mem_bytes };
    let arguments = Arguments { parameters: p.kernel_params, extra: p.extra };
    NodeKind::kernel(handle, function(handle)?, shape, arguments)
}

pub(crate) fn cuGraphAddKernelNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_V1,
) -> Done {
    add(target, graph, dependencies, count, || kernel_of(&get(parameters)?, CUkernel::NULL))
}

pub(crate) fn cuGraphAddKernelNode_v2(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    add(target, graph, dependencies, count, || {
        let parameters = get(parameters)?;
        kernel_of(&parameters.v1, parameters.kern)
    })
}

pub(crate) fn cuGraphAddMemcpyNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_MEMCPY3D,
    context_handle: CUcontext,
) -> Done {
    add(target, graph, dependencies, count, || copy_of(&get(parameters)?, context_handle))
}

/// Reads a copy node's parameters.
pub(crate) fn copy_of(parameters: &CUDA_MEMCPY3D, context_handle: CUcontext) -> Done<NodeKind> {
    context(context_handle)?;
    copy_3d(parameters)?.map(NodeKind::Copy).ok_or(CUresult::INVALID_VALUE)
}

pub(crate) fn cuGraphAddMemsetNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_MEMSET_NODE_PARAMS,
    context_handle: CUcontext,
) -> Done {
    add(target, graph, dependencies, count, || set_of(&get(parameters)?, context_handle))
}

/// Reads a set node's parameters.
pub(crate) fn set_of(parameters: &CUDA_MEMSET_NODE_PARAMS, context_handle: CUcontext) -> Done<NodeKind> {
    context(context_handle)?;
    Ok(NodeKind::Set(Set::new(parameters)?))
}

pub(crate) fn cuGraphAddHostNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_HOST_NODE_PARAMS,
) -> Done {
    add(target, graph, dependencies, count, || host_of(&get(parameters)?))
}

/// Reads a host node's parameters.
pub(crate) fn host_of(parameters: &CUDA_HOST_NODE_PARAMS) -> Done<NodeKind> {
    Ok(NodeKind::Host(HostCall::new(parameters.callback, parameters.user_data)?))
}

pub(crate) fn cuGraphAddChildGraphNode(
    target: *mut CUgraphNode,
    parent: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    child: CUgraph,
) -> Done {
    add(target, parent, dependencies, count, || Ok(NodeKind::Child(graphs::copy(graph(child)?)?.0)))
}

pub(crate) fn cuGraphAddEmptyNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
) -> Done {
    add(target, graph, dependencies, count, || Ok(NodeKind::Empty))
}

pub(crate) fn cuGraphAddEventRecordNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    handle: CUevent,
) -> Done {
    add(target, graph, dependencies, count, || Ok(NodeKind::EventRecord(event(handle)?)))
}

pub(crate) fn cuGraphAddEventWaitNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    handle: CUevent,
) -> Done {
    add(target, graph, dependencies, count, || Ok(NodeKind::EventWait(event(handle)?)))
}

pub(crate) fn cuGraphAddMemAllocNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Done {
    add(target, graph, dependencies, count, || {
        let memory = GraphMemory::new(get(parameters)?)?;
        put(parameters, CUDA_MEM_ALLOC_NODE_PARAMS { dptr: memory.address(), ..get(parameters)? })?;
        Ok(NodeKind::MemoryAllocation(memory))
    })
}

pub(crate) fn cuGraphAddMemFreeNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    address: CUdeviceptr,
) -> Done {
    add(target, graph, dependencies, count, || free_of(address, graph))
}

/// Makes the kind of a node that frees an allocation node's memory. A graph can contain one such node for each
/// allocation.
pub(crate) fn free_of(address: CUdeviceptr, graph_handle: CUgraph) -> Done<NodeKind> {
    crate::graph_memory::at(address).ok_or(CUresult::INVALID_VALUE)?;
    let nodes = graph(graph_handle)?.nodes().clone();
    let frees = |other: &CUgraphNode| {
        node(*other).is_ok_and(|node| matches!(&*node.kind(), NodeKind::MemoryFree(known) if *known == address))
    };
    if nodes.iter().any(frees) { Err(CUresult::INVALID_VALUE) } else { Ok(NodeKind::MemoryFree(address)) }
}

pub(crate) fn cuGraphAddBatchMemOpNode(
    target: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *const CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> Done {
    add(target, graph, dependencies, count, || operations_of(&get(parameters)?))
}

/// Reads the parameters of a node with stream memory operations.
pub(crate) fn operations_of(parameters: &CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Done<NodeKind> {
    context(parameters.ctx)?;
    let operations = read_operations(Version::Two, parameters.count, parameters.param_array, parameters.flags)?;
    Ok(NodeKind::MemoryOperations(operations))
}

pub(crate) fn cuGraphNodeGetType(handle: CUgraphNode, kind: *mut c_uint) -> Done {
    put(kind, node(handle)?.kind().number())
}

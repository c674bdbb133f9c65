//! Reading and changing the parameters of nodes, and creating nodes of any kind from one structure.

use core::ffi::{c_int, c_uint, c_void};

use aliquot_abi::cuda::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_V1, CUDA_MEM_ALLOC_NODE_PARAMS,
    CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdeviceptr, CUevent, CUgraph, CUgraphNode, CUgraphNodeParams,
    CUkernel, CUresult,
};

use crate::Done;
use crate::caller::{get, not_null, put};
use crate::conditionals::{self, Conditional};
use crate::context;
use crate::copies::copy_3d;
use crate::events::{Event, event};
use crate::graph_memory::GraphMemory;
use crate::graph_nodes::{NodeKind, add, copy_of, free_of, host_of, kernel_of, operations_of, set_of};
use crate::graphs::{self, graph, node};
use crate::sets::Set;

/// A child graph node gets the graph itself, and the program may no longer change or destroy it.
const OWNERSHIP_MOVE: c_int = 1;

/// Applies `read` to a node's kind. Fails if it returns `None`, which means another kind of node.
fn read<T>(handle: CUgraphNode, read: impl FnOnce(&NodeKind) -> Option<T>) -> Done<T> {
    read(&node(handle)?.kind()).ok_or(CUresult::INVALID_VALUE)
}

/// Replaces a node's parameters by others of the same kind.
fn write(handle: CUgraphNode, kind: NodeKind) -> Done {
    let node = node(handle)?;
    let mut present = node.kind();
    if present.number() != kind.number() {
        return Err(CUresult::INVALID_VALUE);
    }
    *present = kind;
    Ok(())
}

fn kernel_parameters(handle: CUgraphNode) -> Done<CUDA_KERNEL_NODE_PARAMS_V1> {
    read(handle, |kind| match kind {
        NodeKind::Kernel(kernel) => Some(kernel.parameters()),
        _ => None,
    })
}

pub(crate) fn cuGraphKernelNodeGetParams(handle: CUgraphNode, target: *mut CUDA_KERNEL_NODE_PARAMS_V1) -> Done {
    put(target, kernel_parameters(handle)?)
}

pub(crate) fn cuGraphKernelNodeGetParams_v2(handle: CUgraphNode, target: *mut CUDA_KERNEL_NODE_PARAMS) -> Done {
    let v1 = kernel_parameters(handle)?;
    put(target, CUDA_KERNEL_NODE_PARAMS { v1, kern: CUkernel::NULL, ctx: CUcontext::NULL })
}

pub(crate) fn cuGraphKernelNodeSetParams(handle: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS_V1) -> Done {
    node(handle)?;
    write(handle, kernel_of(&get(parameters)?, CUkernel::NULL)?)
}

pub(crate) fn cuGraphKernelNodeSetParams_v2(handle: CUgraphNode, parameters: *const CUDA_KERNEL_NODE_PARAMS) -> Done {
    node(handle)?;
    let parameters = get(parameters)?;
    write(handle, kernel_of(&parameters.v1, parameters.kern)?)
}

pub(crate) fn cuGraphMemcpyNodeGetParams(handle: CUgraphNode, target: *mut CUDA_MEMCPY3D) -> Done {
    let parameters = read(handle, |kind| match kind {
        NodeKind::Copy(copy) => Some(copy.parameters()),
        _ => None,
    });
    put(target, parameters?)
}

pub(crate) fn cuGraphMemcpyNodeSetParams(handle: CUgraphNode, parameters: *const CUDA_MEMCPY3D) -> Done {
    node(handle)?;
    let copy = copy_3d(&get(parameters)?)?.ok_or(CUresult::INVALID_VALUE)?;
    write(handle, NodeKind::Copy(copy))
}

pub(crate) fn cuGraphMemsetNodeGetParams(handle: CUgraphNode, target: *mut CUDA_MEMSET_NODE_PARAMS) -> Done {
    let parameters = read(handle, |kind| match kind {
        NodeKind::Set(set) => Some(set.parameters()),
        _ => None,
    });
    put(target, parameters?)
}

pub(crate) fn cuGraphMemsetNodeSetParams(handle: CUgraphNode, parameters: *const CUDA_MEMSET_NODE_PARAMS) -> Done {
    node(handle)?;
    write(handle, NodeKind::Set(Set::new(&get(parameters)?)?))
}

pub(crate) fn cuGraphHostNodeGetParams(handle: CUgraphNode, target: *mut CUDA_HOST_NODE_PARAMS) -> Done {
    let parameters = read(handle, |kind| match kind {
        NodeKind::Host(call) => Some(call.parameters()),
        _ => None,
    });
    put(target, parameters?)
}

pub(crate) fn cuGraphHostNodeSetParams(handle: CUgraphNode, parameters: *const CUDA_HOST_NODE_PARAMS) -> Done {
    node(handle)?;
    write(handle, host_of(&get(parameters)?)?)
}

pub(crate) fn cuGraphChildGraphNodeGetGraph(handle: CUgraphNode, target: *mut CUgraph) -> Done {
    let child = read(handle, |kind| match kind {
        NodeKind::Child(child) => Some(*child),
        _ => None,
    });
    put(target, child?)
}

pub(crate) fn cuGraphEventRecordNodeGetEvent(handle: CUgraphNode, target: *mut CUevent) -> Done {
    let found = read(handle, |kind| match kind {
        NodeKind::EventRecord(event) => Some(event.handle()),
        _ => None,
    });
    put(target, found?)
}

pub(crate) fn cuGraphEventRecordNodeSetEvent(handle: CUgraphNode, event_handle: CUevent) -> Done {
    node(handle)?;
    write(handle, NodeKind::EventRecord(event(event_handle)?))
}

pub(crate) fn cuGraphEventWaitNodeGetEvent(handle: CUgraphNode, target: *mut CUevent) -> Done {
    let found = read(handle, |kind| match kind {
        NodeKind::EventWait(event) => Some(event.handle()),
        _ => None,
    });
    put(target, found?)
}

pub(crate) fn cuGraphEventWaitNodeSetEvent(handle: CUgraphNode, event_handle: CUevent) -> Done {
    node(handle)?;
    write(handle, NodeKind::EventWait(event(event_handle)?))
}

pub(crate) fn cuGraphMemAllocNodeGetParams(handle: CUgraphNode, target: *mut CUDA_MEM_ALLOC_NODE_PARAMS) -> Done {
    let parameters = read(handle, |kind| match kind {
        NodeKind::MemoryAllocation(memory) => Some(memory.parameters()),
        _ => None,
    });
    put(target, parameters?)
}

pub(crate) fn cuGraphMemFreeNodeGetParams(handle: CUgraphNode, target: *mut CUdeviceptr) -> Done {
    let address = read(handle, |kind| match kind {
        NodeKind::MemoryFree(address) => Some(*address),
        _ => None,
    });
    put(target, address?)
}

/// The context that a structure names, or the current one.
fn context_of(handle: CUcontext) -> Done<CUcontext> {
    if handle.is_null() { Ok(context::current()?.handle()) } else { Ok(handle) }
}

fn read_event(parameters: &CUgraphNodeParams) -> Done<&'static Event> {
    // SAFETY: for these kinds of node the structure holds the event.
    event(unsafe { parameters.of_kind.event })
}

/// Reads the parameters of a node of any kind whose parameters can be changed later.
pub(crate) fn changeable_kind_of(parameters: &CUgraphNodeParams) -> Done<NodeKind> {
    let of_kind = &parameters.of_kind;
    // SAFETY: the structure names its kind and by the API's contract holds the fields of that kind; any bytes are valid
    // for them, because every field is a number or a pointer.
    unsafe {
        match parameters.kind {
            0 => kernel_of(&of_kind.kernel.v1, of_kind.kernel.kern),
            1 => copy_of(&of_kind.memcpy.copy_params, context_of(of_kind.memcpy.copy_ctx)?),
            // The context comes after the fields of the older structure.
            2 => set_of(&of_kind.memset, context_of(CUcontext::NULL)?),
            3 => host_of(&of_kind.host),
            4 => Ok(NodeKind::Child(graphs::copy(graph(of_kind.graph.graph)?)?.0)),
            6 => Ok(NodeKind::EventWait(read_event(parameters)?)),
            7 => Ok(NodeKind::EventRecord(read_event(parameters)?)),
            12 => operations_of(&of_kind.mem_op),
            // Semaphores of other interfaces, and batches of copies
            8 | 9 | 14.. => Err(CUresult::NOT_SUPPORTED),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }
}

/// Makes the node that a structure describes, and writes the driver's results into the structure.
fn kind_of(target: *mut CUgraphNodeParams, graph_handle: CUgraph) -> Done<NodeKind> {
    let mut parameters = get(target)?;
    if parameters.reserved0 != [0; 3] || parameters.reserved2 != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    let of_kind = &mut parameters.of_kind;
    match parameters.kind {
        // SAFETY: as in `changeable_kind_of`.
        4 if unsafe { of_kind.graph.ownership } == OWNERSHIP_MOVE => {
            // SAFETY: as above.
            let child = unsafe { of_kind.graph.graph };
            graphs::adopt(graph_handle, child)?;
            Ok(NodeKind::Child(child))
        }
        5 => Ok(NodeKind::Empty),
        10 => {
            // SAFETY: as above.
            let memory = GraphMemory::new(unsafe { of_kind.alloc })?;
            of_kind.alloc.dptr = memory.address();
            put(target, parameters)?;
            Ok(NodeKind::MemoryAllocation(memory))
        }
        // SAFETY: as above.
        11 => free_of(unsafe { of_kind.free }, graph_handle),
        13 => {
            // SAFETY: as above.
            let wish = unsafe { &mut of_kind.conditional };
            conditionals::claim(wish.handle, graph_handle, wish.kind, wish.size)?;
            let bodies = (0..wish.size).map(|_| graphs::create()).collect::<Vec<_>>();
            // The structure points to the list as long as the node lives.
            let shown: &'static mut [CUgraph] = Box::leak(bodies.clone().into_boxed_slice());
            wish.graph_out = shown.as_mut_ptr();
            let conditional = Conditional { handle: wish.handle, kind: wish.kind, bodies };
            put(target, parameters)?;
            Ok(NodeKind::Conditional(conditional))
        }
        _ => changeable_kind_of(&parameters),
    }
}

pub(crate) fn cuGraphAddNode(
    target: *mut CUgraphNode,
    graph_handle: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> Done {
    graph(graph_handle)?;
    not_null(parameters)?;
    add(target, graph_handle, dependencies, count, || kind_of(parameters, graph_handle))
}

pub(crate) fn cuGraphAddNode_v2(
    target: *mut CUgraphNode,
    graph_handle: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const c_void,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> Done {
    graphs::check_edge_data(data, count)?;
    cuGraphAddNode(target, graph_handle, dependencies, count, parameters)
}

/// As [`cuGraphAddNode_v2`]. The kinds of node that this version adds are not simulated.
pub(crate) fn cuGraphAddNode_v3(
    target: *mut CUgraphNode,
    graph_handle: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const c_void,
    count: usize,
    parameters: *mut CUgraphNodeParams,
) -> Done {
    cuGraphAddNode_v2(target, graph_handle, dependencies, data, count, parameters)
}

pub(crate) fn cuGraphNodeSetParams(handle: CUgraphNode, parameters: *mut CUgraphNodeParams) -> Done {
    let present: c_uint = node(handle)?.kind().number();
    let parameters = get(parameters)?;
    if parameters.kind != present {
        return Err(CUresult::INVALID_VALUE);
    }
    write(handle, changeable_kind_of(&parameters)?)
}

pub(crate) fn cuGraphNodeSetParams_v2(handle: CUgraphNode, parameters: *mut CUgraphNodeParams) -> Done {
    cuGraphNodeSetParams(handle, parameters)
}

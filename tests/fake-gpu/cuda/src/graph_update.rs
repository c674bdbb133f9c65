//! Changes to executable graphs.

use core::ffi::{c_uint, c_void};

use aliquot_abi::cuda::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_V1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS,
    CUcontext, CUevent, CUgraph, CUgraphExec, CUgraphNode, CUgraphNodeParams, CUkernel, CUresult,
};

use crate::Done;
use crate::caller::{get, not_null, put, put_if_wanted};
use crate::events::event;
use crate::graph_exec::{Exec, Step, exec, steps_of};
use crate::graph_node_parameters::changeable_kind_of;
use crate::graph_nodes::{NodeKind, copy_of, host_of, kernel_of, set_of};
use crate::graphs::{Graph, graph, node};

/// `CUgraphExecUpdateResult`.
const UPDATE_SUCCESS: c_uint = 0;
const UPDATE_TOPOLOGY_CHANGED: c_uint = 2;
const UPDATE_NODE_TYPE_CHANGED: c_uint = 3;
const UPDATE_NOT_SUPPORTED: c_uint = 6;

/// The reason why a graph cannot replace another, and the node that causes it.
type Obstacle = (c_uint, CUgraphNode);

fn compare(present: &[Step], new: &[Step]) -> Result<(), Obstacle> {
    if present.len() != new.len() {
        return Err((UPDATE_TOPOLOGY_CHANGED, CUgraphNode::NULL));
    }
    for (step, new) in present.iter().zip(new) {
        if step.kind.number() != new.kind.number() {
            return Err((UPDATE_NODE_TYPE_CHANGED, new.node));
        }
        if step.dependencies != new.dependencies || step.inner.len() != new.inner.len() {
            return Err((UPDATE_TOPOLOGY_CHANGED, new.node));
        }
        if new.kind.is_memory() {
            return Err((UPDATE_NOT_SUPPORTED, new.node));
        }
        step.inner.iter().zip(&new.inner).try_for_each(|(present, new)| compare(present, new))?;
    }
    Ok(())
}

fn replace(present: &mut [Step], new: Vec<Step>) {
    for (step, new) in present.iter_mut().zip(new) {
        step.kind = new.kind;
        step.inner.iter_mut().zip(new.inner).for_each(|(present, new)| replace(present, new));
    }
}

fn update(exec: &Exec, new: &Graph) -> Done<Result<(), Obstacle>> {
    let new_steps = steps_of(new)?;
    let mut steps = exec.steps();
    let outcome = compare(&steps, &new_steps);
    if outcome.is_ok() {
        replace(&mut steps, new_steps);
    }
    Ok(outcome)
}

pub(crate) fn cuGraphExecUpdate(
    handle: CUgraphExec,
    new: CUgraph,
    error_node: *mut CUgraphNode,
    result: *mut c_uint,
) -> Done {
    let (exec, new) = (exec(handle)?, graph(new)?);
    let outcome = update(exec, new)?;
    put_if_wanted(error_node, outcome.err().map_or(CUgraphNode::NULL, |(_, node)| node));
    put_if_wanted(result, outcome.err().map_or(UPDATE_SUCCESS, |(code, _)| code));
    outcome.map_err(|_| CUresult::GRAPH_EXEC_UPDATE_FAILURE)
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
struct UpdateInformation {
    result: c_uint,
    error_node: CUgraphNode,
    error_from_node: CUgraphNode,
}

pub(crate) fn cuGraphExecUpdate_v2(handle: CUgraphExec, new: CUgraph, information: *mut c_void) -> Done {
    let (exec, new) = (exec(handle)?, graph(new)?);
    not_null(information)?;
    let outcome = update(exec, new)?;
    let (result, error_node) = outcome.err().unwrap_or((UPDATE_SUCCESS, CUgraphNode::NULL));
    put(information.cast(), UpdateInformation { result, error_node, error_from_node: CUgraphNode::NULL })?;
    outcome.map_err(|_| CUresult::GRAPH_EXEC_UPDATE_FAILURE)
}

/// The step of a node, also in inner graphs.
fn find(steps: &mut [Step], node: CUgraphNode) -> Option<&mut Step> {
    steps.iter_mut().find_map(|step| {
        if step.node == node {
            return Some(step);
        }
        step.inner.iter_mut().find_map(|inner| find(inner, node))
    })
}

/// Applies `change` to the step of a node.
fn with_step<T>(handle: CUgraphExec, node_handle: CUgraphNode, change: impl FnOnce(&mut Step) -> Done<T>) -> Done<T> {
    let exec = exec(handle)?;
    node(node_handle)?;
    let mut steps = exec.steps();
    change(find(&mut steps, node_handle).ok_or(CUresult::INVALID_VALUE)?)
}

/// Replaces the parameters of a node's step by others of the same kind.
fn set(handle: CUgraphExec, node: CUgraphNode, kind: impl FnOnce() -> Done<NodeKind>) -> Done {
    with_step(handle, node, |step| {
        let kind = kind()?;
        if step.kind.number() != kind.number() {
            return Err(CUresult::INVALID_VALUE);
        }
        step.kind = kind;
        Ok(())
    })
}

pub(crate) fn cuGraphExecKernelNodeSetParams(
    handle: CUgraphExec,
    node: CUgraphNode,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_V1,
) -> Done {
    set(handle, node, || kernel_of(&get(parameters)?, CUkernel::NULL))
}

pub(crate) fn cuGraphExecKernelNodeSetParams_v2(
    handle: CUgraphExec,
    node: CUgraphNode,
    parameters: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    set(handle, node, || {
        let parameters = get(parameters)?;
        kernel_of(&parameters.v1, parameters.kern)
    })
}

pub(crate) fn cuGraphExecMemcpyNodeSetParams(
    handle: CUgraphExec,
    node: CUgraphNode,
    parameters: *const CUDA_MEMCPY3D,
    context: CUcontext,
) -> Done {
    set(handle, node, || copy_of(&get(parameters)?, context))
}

pub(crate) fn cuGraphExecMemsetNodeSetParams(
    handle: CUgraphExec,
    node: CUgraphNode,
    parameters: *const CUDA_MEMSET_NODE_PARAMS,
    context: CUcontext,
) -> Done {
    set(handle, node, || set_of(&get(parameters)?, context))
}

pub(crate) fn cuGraphExecHostNodeSetParams(
    handle: CUgraphExec,
    node: CUgraphNode,
    parameters: *const CUDA_HOST_NODE_PARAMS,
) -> Done {
    set(handle, node, || host_of(&get(parameters)?))
}

pub(crate) fn cuGraphExecEventRecordNodeSetEvent(handle: CUgraphExec, node: CUgraphNode, new: CUevent) -> Done {
    set(handle, node, || Ok(NodeKind::EventRecord(event(new)?)))
}

pub(crate) fn cuGraphExecEventWaitNodeSetEvent(handle: CUgraphExec, node: CUgraphNode, new: CUevent) -> Done {
    set(handle, node, || Ok(NodeKind::EventWait(event(new)?)))
}

/// Replaces a child graph's contents by those of a graph of the same shape.
pub(crate) fn cuGraphExecChildGraphNodeSetParams(handle: CUgraphExec, node: CUgraphNode, child: CUgraph) -> Done {
    let new = steps_of(graph(child)?)?;
    with_step(handle, node, |step| match step.inner.as_mut_slice() {
        [present] if matches!(step.kind, NodeKind::Child(_)) => {
            compare(present, &new).map_err(|_| CUresult::INVALID_VALUE)?;
            replace(present, new);
            Ok(())
        }
        _ => Err(CUresult::INVALID_VALUE),
    })
}

pub(crate) fn cuGraphExecNodeSetParams(
    handle: CUgraphExec,
    node: CUgraphNode,
    parameters: *mut CUgraphNodeParams,
) -> Done {
    exec(handle)?;
    let parameters = get(parameters)?;
    if let NodeKind::Child(_) = &*crate::graphs::node(node)?.kind()
        && parameters.kind == 4
    {
        // SAFETY: for a child graph node the structure holds the graph.
        return cuGraphExecChildGraphNodeSetParams(handle, node, unsafe { parameters.of_kind.graph.graph });
    }
    set(handle, node, || changeable_kind_of(&parameters))
}

/// Checks that a node may be disabled for launches: only kernels, copies and sets may.
fn can_be_disabled(kind: &NodeKind) -> Done {
    match kind {
        NodeKind::Kernel(_) | NodeKind::Copy(_) | NodeKind::Set(_) => Ok(()),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

pub(crate) fn cuGraphNodeSetEnabled(handle: CUgraphExec, node: CUgraphNode, is_enabled: c_uint) -> Done {
    with_step(handle, node, |step| {
        can_be_disabled(&step.kind)?;
        step.enabled = is_enabled != 0;
        Ok(())
    })
}

pub(crate) fn cuGraphNodeGetEnabled(handle: CUgraphExec, node: CUgraphNode, is_enabled: *mut c_uint) -> Done {
    let enabled = with_step(handle, node, |step| can_be_disabled(&step.kind).map(|()| step.enabled))?;
    put(is_enabled, c_uint::from(enabled))
}

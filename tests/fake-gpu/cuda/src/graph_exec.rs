//! Graphs made ready to launch.

use core::ffi::{c_char, c_uint, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_V1, CUgraph, CUgraphExec, CUgraphNode, CUkernel, CUresult,
    CUstream, NullStream,
};

use crate::Done;
use crate::caller::{get, not_null, put, put_if_wanted};
use crate::capture;
use crate::graph_memory::{self, GraphMemory};
use crate::graph_nodes::{NodeKind, kernel_of};
use crate::graphs::{self, Graph, graph, node};
use crate::handles::{self, Kind, Object};
use crate::process::{initialised, process};
use crate::queue::{self, Work};
use crate::streams::stream;

const AUTO_FREE_ON_LAUNCH: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const USE_NODE_PRIORITY: u64 = 8;

/// What `cuGraphExecUpdate` tells besides its code.
const UPDATE_SUCCESS: c_uint = 0;
const UPDATE_TOPOLOGY_CHANGED: c_uint = 2;
const UPDATE_NODE_TYPE_CHANGED: c_uint = 3;
const UPDATE_NOT_SUPPORTED: c_uint = 6;

/// A graph made ready to launch: its nodes, one after the other.
pub(crate) struct Exec {
    graph: CUgraph,
    flags: u64,
    steps: Mutex<Vec<Step>>,
}

struct Step {
    /// The node that it was.
    node: CUgraphNode,
    kind: NodeKind,
    /// Places of the steps that it depends on.
    dependencies: Vec<usize>,
}

impl Object for Exec {
    const KIND: Kind = Kind::GraphExec;
}

impl Exec {
    fn steps(&self) -> MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn exec(handle: CUgraphExec) -> Done<&'static Exec> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_VALUE)
}

/// The steps of a graph, those of its child graphs in the place of the child nodes.
fn steps_of(graph: &Graph) -> Done<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for (handle, node) in graph.ordered().ok_or(CUresult::INVALID_VALUE)? {
        let place_of = |dependency: &CUgraphNode| steps.iter().position(|step| step.node == *dependency);
        let dependencies = node.dependencies().iter().filter_map(place_of).collect();
        let kind = node.kind().clone();
        let child = if let NodeKind::Child(child) = &kind { steps_of(graphs::graph(*child)?)? } else { Vec::new() };
        let first = steps.len();
        for mut step in child {
            step.dependencies.iter_mut().for_each(|place| *place += first);
            steps.push(step);
        }
        steps.push(Step { node: handle, kind, dependencies });
    }
    Ok(steps)
}

fn instantiate(target: *mut CUgraphExec, handle: CUgraph, flags: u64) -> Done {
    let found = graph(handle)?;
    not_null(target)?;
    if flags & !(AUTO_FREE_ON_LAUNCH | UPLOAD | DEVICE_LAUNCH | USE_NODE_PRIORITY) != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // Launching a graph from a kernel needs kernels that run.
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let steps = Mutex::new(steps_of(found)?);
    put(target, CUgraphExec(handles::register(Exec { graph: handle, flags, steps }).0))
}

pub(crate) fn cuGraphInstantiate_v2(
    target: *mut CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    log: *mut c_char,
    log_bytes: usize,
) -> Done {
    put_if_wanted(error_node, CUgraphNode::NULL);
    if log_bytes > 0 {
        put_if_wanted(log, 0);
    }
    instantiate(target, graph, 0)
}

pub(crate) fn cuGraphInstantiate(
    target: *mut CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    log: *mut c_char,
    log_bytes: usize,
) -> Done {
    cuGraphInstantiate_v2(target, graph, error_node, log, log_bytes)
}

pub(crate) fn cuGraphInstantiateWithFlags(target: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Done {
    instantiate(target, graph, flags)
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct InstantiateParameters {
    flags: u64,
    upload_stream: CUstream,
    error_node: CUgraphNode,
    result: c_uint,
}

pub(crate) fn cuGraphInstantiateWithParams(
    null: NullStream,
    target: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut c_void,
) -> Done {
    process()?;
    let parameters = parameters.cast::<InstantiateParameters>();
    let request = get(parameters)?;
    if request.flags & UPLOAD != 0 {
        stream(null, request.upload_stream)?;
    }
    let outcome = instantiate(target, graph, request.flags);
    // Success, or an error that is told by the function's own result.
    let result = c_uint::from(outcome.is_err());
    put(parameters, InstantiateParameters { error_node: CUgraphNode::NULL, result, ..request })?;
    outcome
}

pub(crate) fn cuGraphUpload(null: NullStream, handle: CUgraphExec, stream_handle: CUstream) -> Done {
    exec(handle)?;
    capture::refuse_in_capture(stream(null, stream_handle)?)
}

pub(crate) fn cuGraphExecDestroy(handle: CUgraphExec) -> Done {
    exec(handle)?;
    let exec = handles::retire::<Exec>(handle.0).ok_or(CUresult::INVALID_VALUE)?;
    // Launches that are under way have their own copies of what they need.
    exec.steps().clear();
    Ok(())
}

pub(crate) fn cuGraphLaunch(null: NullStream, handle: CUgraphExec, stream_handle: CUstream) -> Done {
    let exec = exec(handle)?;
    let stream = stream(null, stream_handle)?;
    if capture::any_active() && capture::is_capturing(stream)? {
        let (child, _) = graphs::copy(graph(exec.graph)?)?;
        capture::issue(stream, || NodeKind::Child(child))?;
        return Ok(());
    }
    let steps = exec.steps();
    begin_allocations(&steps, exec.flags & AUTO_FREE_ON_LAUNCH != 0)?;
    let works = steps.iter().flat_map(|step| works_of(&step.kind)).collect::<Vec<_>>();
    // The queue may be full, and what makes room may need this graph.
    drop(steps);
    queue::submit_all(stream, works, true);
    Ok(())
}

/// Takes the memory of all allocation nodes, or of none.
fn begin_allocations(steps: &[Step], free_first: bool) -> Done {
    let allocations = steps.iter().filter_map(|step| match &step.kind {
        NodeKind::MemoryAllocation(memory) => Some(memory),
        _ => None,
    });
    let mut begun: Vec<&Arc<GraphMemory>> = Vec::new();
    for memory in allocations {
        if free_first && memory.is_in_use() {
            memory.end();
        }
        if let Err(error) = memory.begin() {
            begun.iter().for_each(|memory| {
                memory.end();
            });
            return Err(error);
        }
        begun.push(memory);
    }
    Ok(())
}

/// What a node is as operations of a stream.
fn works_of(kind: &NodeKind) -> Vec<Work> {
    match kind {
        NodeKind::Kernel(kernel) => {
            let duration_ns = if initialised().instant { 0 } else { kernel.duration_ns };
            vec![Work::Task { duration_ns, effect: None }]
        }
        NodeKind::Copy(copy) => vec![copy.work()],
        NodeKind::Set(set) => vec![set.work()],
        NodeKind::Host(call) => vec![call.work()],
        NodeKind::EventRecord(event) => vec![Work::Record(event, event.announce())],
        NodeKind::EventWait(event) => vec![Work::Wait(event, event.last_record())],
        NodeKind::MemoryFree(address) => graph_memory::at(*address).into_iter().map(free_work).collect(),
        NodeKind::MemoryOperations(operations) => operations.iter().filter_map(|operation| operation.work()).collect(),
        // Memory was taken when the graph was launched; a child's nodes follow on their own.
        NodeKind::MemoryAllocation(_) | NodeKind::Child(_) | NodeKind::Empty => Vec::new(),
    }
}

/// Frees graph memory when the stream gets there.
pub(crate) fn free_work(memory: Arc<GraphMemory>) -> Work {
    let effect = move || {
        memory.end();
    };
    Work::Task { duration_ns: 0, effect: Some(Box::new(effect)) }
}

fn update(exec: &Exec, new: &Graph) -> Done<Result<(), (c_uint, CUgraphNode)>> {
    let new_steps = steps_of(new)?;
    let mut steps = exec.steps();
    if steps.len() != new_steps.len() {
        return Ok(Err((UPDATE_TOPOLOGY_CHANGED, CUgraphNode::NULL)));
    }
    for (step, new) in steps.iter().zip(&new_steps) {
        if step.kind.number() != new.kind.number() {
            return Ok(Err((UPDATE_NODE_TYPE_CHANGED, new.node)));
        }
        if step.dependencies != new.dependencies {
            return Ok(Err((UPDATE_TOPOLOGY_CHANGED, new.node)));
        }
        if matches!(new.kind, NodeKind::MemoryAllocation(_) | NodeKind::MemoryFree(_)) {
            return Ok(Err((UPDATE_NOT_SUPPORTED, new.node)));
        }
    }
    for (step, new) in steps.iter_mut().zip(new_steps) {
        step.kind = new.kind;
    }
    Ok(Ok(()))
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

fn set_kernel(handle: CUgraphExec, node_handle: CUgraphNode, kind: NodeKind) -> Done {
    let exec = exec(handle)?;
    node(node_handle)?;
    let mut steps = exec.steps();
    let kernel = |step: &&mut Step| step.node == node_handle && matches!(step.kind, NodeKind::Kernel(_));
    steps.iter_mut().find(kernel).ok_or(CUresult::INVALID_VALUE)?.kind = kind;
    Ok(())
}

pub(crate) fn cuGraphExecKernelNodeSetParams(
    handle: CUgraphExec,
    node: CUgraphNode,
    parameters: *const CUDA_KERNEL_NODE_PARAMS_V1,
) -> Done {
    exec(handle)?;
    set_kernel(handle, node, kernel_of(&get(parameters)?, CUkernel::NULL)?)
}

pub(crate) fn cuGraphExecKernelNodeSetParams_v2(
    handle: CUgraphExec,
    node: CUgraphNode,
    parameters: *const CUDA_KERNEL_NODE_PARAMS,
) -> Done {
    exec(handle)?;
    let parameters = get(parameters)?;
    set_kernel(handle, node, kernel_of(&parameters.v1, parameters.kern)?)
}

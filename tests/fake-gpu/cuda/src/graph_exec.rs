//! Executable graphs, which launches run.

use core::ffi::{c_char, c_uint, c_void};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUgraph, CUgraphExec, CUgraphNode, CUresult, CUstream, NullStream};

use crate::Done;
use crate::caller::{get, not_null, put, put_if_wanted};
use crate::capture;
use crate::conditionals;
use crate::graph_memory::{self, GraphMemory};
use crate::graph_nodes::NodeKind;
use crate::graphs::{self, Graph, graph};
use crate::handles::{self, Kind, Object};
use crate::process::{initialised, keep_processor, process};
use crate::queue::{self, Work};
use crate::streams::stream;

const AUTO_FREE_ON_LAUNCH: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const USE_NODE_PRIORITY: u64 = 8;

pub(crate) struct Exec {
    graph: CUgraph,
    flags: u64,
    steps: Mutex<Vec<Step>>,
}

/// A node of an executable graph. Steps are ordered so that each comes after its dependencies.
pub(crate) struct Step {
    /// The original node.
    pub(crate) node: CUgraphNode,
    pub(crate) kind: NodeKind,
    pub(crate) enabled: bool,
    /// Indices of the steps on which it depends.
    pub(crate) dependencies: Vec<usize>,
    /// The inner graphs: one for a child graph node, the bodies for a conditional node.
    pub(crate) inner: Vec<Vec<Step>>,
}

impl Object for Exec {
    const KIND: Kind = Kind::GraphExec;
    const IS_REUSED: bool = true;
}

impl Exec {
    pub(crate) fn steps(&self) -> MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn exec(handle: CUgraphExec) -> Done<&'static Exec> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_VALUE)
}

/// The steps of a graph.
pub(crate) fn steps_of(graph: &Graph) -> Done<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    for (handle, node) in graph.ordered().ok_or(CUresult::INVALID_VALUE)? {
        let place_of = |dependency: &CUgraphNode| steps.iter().position(|step| step.node == *dependency);
        let dependencies = node.dependencies().iter().filter_map(place_of).collect();
        let kind = node.kind().clone();
        let inner = kind.inner_graphs().iter().map(|inner| steps_of(graphs::graph(*inner)?)).collect::<Done<_>>()?;
        steps.push(Step { node: handle, kind, enabled: true, dependencies, inner });
    }
    Ok(steps)
}

impl Step {
    /// The inner steps in the order of a launch, each as often as a launch runs it.
    fn inner_in_order(&self) -> Vec<&Step> {
        let runs = match &self.kind {
            NodeKind::Child(_) => vec![0],
            NodeKind::Conditional(conditional) => conditionals::runs_of(conditional),
            _ => Vec::new(),
        };
        let bodies = runs.into_iter().filter_map(|place| self.inner.get(place));
        bodies.flat_map(|body| in_order(body)).collect()
    }
}

/// All steps in the order of a launch. The steps of inner graphs follow their node.
fn in_order(steps: &[Step]) -> Vec<&Step> {
    let enabled = steps.iter().filter(|step| step.enabled);
    enabled.flat_map(|step| std::iter::once(step).chain(step.inner_in_order())).collect()
}

fn instantiate(target: *mut CUgraphExec, handle: CUgraph, flags: u64) -> Done {
    let found = graph(handle)?;
    not_null(target)?;
    if flags & !(AUTO_FREE_ON_LAUNCH | UPLOAD | DEVICE_LAUNCH | USE_NODE_PRIORITY) != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    // Launching a graph from a kernel is not simulated, because kernels compute nothing.
    if flags & DEVICE_LAUNCH != 0 {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let steps = steps_of(found)?;
    let has_memory = |step: &&Step| matches!(step.kind, NodeKind::MemoryAllocation(_) | NodeKind::MemoryFree(_));
    // A graph's memory has one address, so a graph with memory can have only one executable graph at a time.
    if in_order(&steps).iter().any(has_memory) && !found.claim_memory() {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, CUgraphExec(handles::register(Exec { graph: handle, flags, steps: Mutex::new(steps) }).0))
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
    // `CUgraphInstantiateResult`: success, or an error that the function's own result describes.
    let result = c_uint::from(outcome.is_err());
    put(parameters, InstantiateParameters { error_node: CUgraphNode::NULL, result, ..request })?;
    outcome?;
    if request.flags & UPLOAD != 0 {
        return cuGraphUpload(null, get(target)?, request.upload_stream);
    }
    Ok(())
}

pub(crate) fn cuGraphExecGetFlags(handle: CUgraphExec, flags: *mut u64) -> Done {
    put(flags, exec(handle)?.flags)
}

/// Reserves the memory that the graph's launch needs.
pub(crate) fn cuGraphUpload(null: NullStream, handle: CUgraphExec, stream_handle: CUstream) -> Done {
    let exec = exec(handle)?;
    capture::refuse_in_capture(stream(null, stream_handle)?)?;
    let steps = exec.steps();
    let mut missing: BTreeMap<usize, u64> = BTreeMap::new();
    for memory in allocations_in(&in_order(&steps)) {
        *missing.entry(memory.device().ordinal).or_default() += memory.missing_bytes();
    }
    missing.into_iter().try_for_each(|(ordinal, bytes)| initialised().devices[ordinal].graph_pool.prepare(bytes))
}

pub(crate) fn cuGraphExecDestroy(handle: CUgraphExec) -> Done {
    exec(handle)?;
    let exec = handles::retire::<Exec>(handle.0).ok_or(CUresult::INVALID_VALUE)?;
    // Launches under way have their own copies of the data that they need.
    let steps = core::mem::take(&mut *exec.steps());
    allocations_in(&in_order(&steps)).into_iter().for_each(|memory| memory.let_go());
    if let Ok(graph) = graph(exec.graph) {
        graph.yield_memory();
    }
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
    let ordered = in_order(&steps);
    let mut works = begin_memory(&ordered, exec.flags & AUTO_FREE_ON_LAUNCH != 0)?;
    works.extend(ordered.iter().flat_map(|step| works_of(&step.kind)));
    for step in &ordered {
        if let NodeKind::MemoryFree(address) = &step.kind
            && let Some(memory) = graph_memory::at(*address)
        {
            memory.announce_free()?;
        }
    }
    // The queue may be full, and work that makes room may need this lock.
    drop(steps);
    keep_processor(initialised().config.launch_ns);
    queue::submit_all(stream, works, true);
    Ok(())
}

fn allocations_in<'a>(steps: &[&'a Step]) -> Vec<&'a Arc<GraphMemory>> {
    let memory = |step: &&'a Step| match &step.kind {
        NodeKind::MemoryAllocation(memory) => Some(memory),
        _ => None,
    };
    steps.iter().filter_map(memory).collect()
}

/// Takes the memory of all allocation nodes, or of none. Returns the work to be done before the graph's own.
fn begin_memory(steps: &[&Step], free_first: bool) -> Done<Vec<Work>> {
    check_memory(steps, free_first)?;
    let mut begun: Vec<(&Arc<GraphMemory>, bool)> = Vec::new();
    for memory in allocations_in(steps) {
        let left_over = memory.is_live();
        if let Err(error) = memory.begin() {
            for (memory, left_over) in begun {
                memory.end();
                if !left_over {
                    memory.announce_free()?;
                }
            }
            return Err(error);
        }
        begun.push((memory, left_over));
    }
    // Memory that an earlier launch left allocated is given back when the stream gets here.
    let left_over = begun.into_iter().filter(|(_, left_over)| *left_over);
    Ok(left_over.map(|(memory, _)| Arc::clone(memory).end_work()).collect())
}

/// Refuses to allocate memory that is allocated, and to free memory that is not.
fn check_memory(steps: &[&Step], free_first: bool) -> Done {
    let mut live: BTreeMap<u64, bool> = BTreeMap::new();
    for step in steps {
        let (address, becomes) = match &step.kind {
            NodeKind::MemoryAllocation(memory) => (memory.address(), true),
            NodeKind::MemoryFree(address) => (*address, false),
            _ => continue,
        };
        let before = live.get(&address).copied();
        let is_live = before.unwrap_or_else(|| graph_memory::at(address).is_some_and(|memory| memory.is_live()));
        let excused = becomes && free_first && before.is_none();
        if is_live == becomes && !excused {
            return Err(CUresult::INVALID_VALUE);
        }
        live.insert(address, becomes);
    }
    Ok(())
}

/// The stream operations of a node.
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
        NodeKind::MemoryFree(address) => {
            graph_memory::at(*address).into_iter().map(GraphMemory::end_in_graph_work).collect()
        }
        NodeKind::MemoryOperations(operations)
        | NodeKind::SemaphoreSignal(operations)
        | NodeKind::SemaphoreWait(operations) => operations.iter().filter_map(|operation| operation.work()).collect(),
        // Memory was taken when the graph was launched; the nodes of inner graphs follow on their own.
        NodeKind::MemoryAllocation(_) | NodeKind::Child(_) | NodeKind::Conditional(_) | NodeKind::Empty => Vec::new(),
    }
}

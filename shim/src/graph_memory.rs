//! Memory of graphs. Allocation nodes take it from a pool of the device that only graphs use. This pool grows when a
//! graph is launched or uploaded, and is charged for its reserve, used or not (see `reserve`).
//!
//! The needs of a graph are read from its nodes when it is instantiated (`graph_needs`). Before each launch the part of
//! them that the unused reserve does not cover is charged; after the launch the charge is settled. The pool keeps its
//! memory until it is trimmed.
//!
//! A program that never made an allocation node pays one load for all this.

use crate::call::Call;
use crate::graph_needs::{Needs, needs_of};
use crate::hooks::{real, types};
use crate::markers::outside_capture;
use crate::pools::{self, PIECE_BYTES, missing_bytes};
use crate::process::{Part, Process};
use crate::radix::Radix;
use crate::reserve::{Reserve, Settler};
use aliquot_abi::cuda::{
    CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
    CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD, CUDA_MEM_ALLOC_NODE_PARAMS, CUdevice, CUgraph, CUgraphExec, CUgraphNode,
    CUgraphNodeParams, CUresult, CUstream, NullStream, c_char, c_uint, c_void,
};
use aliquot_abi::ledger::BYTES_MASK;
use aliquot_abi::region::DEVICES_MAX;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The graph memory of a process; all zero: none.
#[repr(C)]
pub(crate) struct GraphMemory {
    /// Not zero: the program may have made an allocation node.
    expects_nodes: AtomicU32,
    devices: [OfDevice; DEVICES_MAX],
}

/// The graph memory of one device, by the number of its part.
#[repr(C)]
struct OfDevice {
    reserve: Reserve,
    /// How often the reserve was trimmed; see [`OfDevice::needs`].
    trims: AtomicU32,
    /// The bytes that each instantiated graph needs, by handle, in the low 48 bits. Above them stands the value of
    /// [`OfDevice::trims`] at the graph's last launch, and whether there was a launch.
    needs: Radix<0, 12, 4>,
}

/// In a word of [`OfDevice::needs`]: the graph was launched.
const LAUNCHED: u64 = 1 << 63;

impl Part {
    fn graph_memory(&self) -> Option<&'static OfDevice> {
        self.process.graph_memory.devices.get(self.index)
    }

    /// One of the driver's figures about the device's graph memory, in bytes.
    #[inline(never)]
    fn graph_attribute(&self, attribute: c_uint) -> Option<u64> {
        let (get, mut bytes) = (real!(cuDeviceGetGraphMemAttribute)?, 0_u64);
        let ordinal = self.process.ordinal_of(self.index)?;
        // SAFETY: the pointer is valid for the attribute, which is a 64-bit number.
        unsafe { get(ordinal, attribute, (&raw mut bytes).cast()) }.is_ok().then_some(bytes)
    }

    fn settle_graph_memory(&self) {
        if let Some(memory) = self.graph_memory() {
            let reserved = || self.graph_attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
            memory.reserve.settle(self.process, self.index, Settler::Observer, &reserved);
        }
    }

    /// Begins a request that needs `bytes`. `has_run`: the device has had this memory for the graph before, and may
    /// still have it in use for the same graph. `false` if the limit forbids the request.
    fn begin_graph(&self, bytes: u64, has_run: bool) -> bool {
        let Some(memory) = self.graph_memory() else { return true };
        let expected = memory.reserve.expect(bytes);
        let begin = |ahead_bytes: &dyn Fn() -> u64, limit_bytes| {
            memory.reserve.begin_request(self.process, self.index, ahead_bytes, limit_bytes)
        };
        let missing = || {
            let taken = expected.taken_by_others();
            let reserved = self.graph_attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT).unwrap_or(0);
            let used = self.graph_attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT).unwrap_or(reserved);
            missing_bytes(bytes, reserved, used.saturating_add(taken))
        };
        let begin_with_missing = |limit_bytes| begin(&missing, limit_bytes);
        let begun = begin_with_missing(self.memory_limit_bytes_until_look())
            || pools::try_again(self.process, self.index, PIECE_BYTES, &begin_with_missing)
            || (has_run && begin(&|| 0, self.memory_limit_bytes()));
        if begun {
            // It has arrived in `end_graph`.
            core::mem::forget(expected);
        } else {
            self.process.count_refusal(self.index);
        }
        begun
    }

    fn end_graph(&self, bytes: u64) {
        if let Some(memory) = self.graph_memory() {
            memory.reserve.has_arrived(bytes);
            memory.reserve.end_request();
            self.settle_graph_memory();
        }
    }
}

impl GraphMemory {
    fn expects_nodes(&self) -> bool {
        self.expects_nodes.load(Ordering::Relaxed) != 0
    }
}

/// To be called before an allocation node may be made.
pub(crate) fn expect_nodes(process: &'static Process) {
    process.graph_memory.expects_nodes.store(1, Ordering::Release);
}

/// Sets the charges to the driver's present reserves.
pub(crate) fn settle_all(process: &'static Process) {
    if process.graph_memory.expects_nodes() {
        for part in process.all_parts() {
            part.settle_graph_memory();
        }
    }
}

/// Whether the process is charged for graph memory in account number `account`.
pub(crate) fn is_charged(process: &'static Process, account: usize) -> bool {
    process.graph_memory.devices.get(account).is_some_and(|memory| memory.reserve.charged_bytes() > 0)
}

/// Makes the device of account number `account` give back its unused graph memory.
pub(crate) fn trim(process: &'static Process, account: usize) {
    if let (true, Some(trim), Some(ordinal)) =
        (is_charged(process, account), real!(cuDeviceGraphMemTrim), process.ordinal_of(account))
    {
        // SAFETY: no pointers.
        trimmed(process, ordinal, &|| outside_capture(|| unsafe { trim(ordinal) }));
    }
}

fn trimmed(process: &'static Process, ordinal: CUdevice, call: &dyn Call<CUresult>) -> CUresult {
    let result = call.make();
    if let Some(part) = process.part(ordinal)
        && let Some(memory) = part.graph_memory()
    {
        memory.trims.fetch_add(1, Ordering::Relaxed);
        part.settle_graph_memory();
    }
    result
}

/// Calls `visit` with every part of which the instantiated graph `exec` needs memory, and with the graph's word there.
fn each_need(process: &'static Process, exec: CUgraphExec, mut visit: impl FnMut(&Part, &OfDevice, &AtomicU64)) {
    for part in process.all_parts() {
        if let Some(memory) = part.graph_memory()
            && let Some(word) = memory.needs.existing(exec.0.addr() as u64)
            && word.load(Ordering::Relaxed) != 0
        {
            visit(&part, memory, word);
        }
    }
}

fn remember(process: &'static Process, exec: CUgraphExec, needs: &Needs) {
    // An earlier graph with this handle may have ended with its context.
    each_need(process, exec, |_, _, word| word.store(0, Ordering::Relaxed));
    for (memory, &bytes) in process.graph_memory.devices.iter().zip(needs) {
        if bytes > 0
            && let Some(word) = memory.needs.entry(exec.0.addr() as u64)
        {
            word.store(bytes & BYTES_MASK, Ordering::Relaxed);
        }
    }
}

fn launch_of(memory: &OfDevice) -> u64 {
    LAUNCHED | u64::from(memory.trims.load(Ordering::Relaxed) & 0x7fff) << 48
}

/// Makes a call that launches or uploads the instantiated graph `exec`.
#[inline]
pub(crate) fn launched(exec: CUgraphExec, call: impl Fn() -> CUresult) -> CUresult {
    match Process::if_attached() {
        Some(process) if process.graph_memory.expects_nodes() => launched_with_memory(process, exec, &call),
        _ => call(),
    }
}

#[inline(never)]
fn launched_with_memory(process: &'static Process, exec: CUgraphExec, call: &dyn Call<CUresult>) -> CUresult {
    let (mut needs, mut has_run) = ([0; DEVICES_MAX], [false; DEVICES_MAX]);
    each_need(process, exec, |part, memory, word| {
        let word = word.load(Ordering::Relaxed);
        if let (Some(need), Some(has_run)) = (needs.get_mut(part.index), has_run.get_mut(part.index)) {
            (*need, *has_run) = (word & BYTES_MASK, word & !BYTES_MASK == launch_of(memory));
        }
    });
    let result = with_memory(process, &needs, &has_run, call);
    if result.is_ok() {
        each_need(process, exec, |_, memory, word| {
            word.store(word.load(Ordering::Relaxed) & BYTES_MASK | launch_of(memory), Ordering::Relaxed);
        });
    }
    result
}

/// Makes a call that takes graph memory: charges `needs` before it, and settles the charge after it.
fn with_memory(
    process: &'static Process,
    needs: &Needs,
    has_run: &[bool; DEVICES_MAX],
    call: &dyn Call<CUresult>,
) -> CUresult {
    let requests = || process.all_parts().zip(needs).zip(has_run).filter(|((_, bytes), _)| **bytes > 0);
    let begun = requests().take_while(|((part, bytes), has_run)| part.begin_graph(**bytes, **has_run)).count();
    let result = if begun == requests().count() { call.make() } else { CUresult::OUT_OF_MEMORY };
    for ((part, bytes), _) in requests().take(begun) {
        part.end_graph(*bytes);
    }
    result
}

/// Makes a call that instantiates `graph`, and remembers the graph's needs.
#[inline(never)]
unsafe fn instantiated(exec: *mut CUgraphExec, graph: CUgraph, call: &dyn Call<CUresult>) -> CUresult {
    let result = call.make();
    if let Some(process) = Process::if_attached()
        && process.graph_memory.expects_nodes()
        && result.is_ok()
    {
        // SAFETY: the call has succeeded.
        remember(process, unsafe { *exec }, &needs_of(process, graph).unwrap_or([0; DEVICES_MAX]));
    }
    result
}

/// `cuGraphInstantiate`.
pub(crate) unsafe fn graph_instantiate(
    _: NullStream,
    real: types::cuGraphInstantiate,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    error_node: *mut CUgraphNode,
    log: *mut c_char,
    log_bytes: usize,
) -> CUresult {
    // SAFETY: the host's call.
    unsafe { instantiated(exec, graph, &|| real(exec, graph, error_node, log, log_bytes)) }
}

/// `cuGraphInstantiateWithFlags`.
pub(crate) unsafe fn graph_instantiate_flags(
    _: NullStream,
    real: types::cuGraphInstantiateWithFlags,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    flags: u64,
) -> CUresult {
    // SAFETY: the host's call.
    unsafe { instantiated(exec, graph, &|| real(exec, graph, flags)) }
}

/// `cuGraphInstantiateWithParams`, which can also upload the graph.
pub(crate) unsafe fn graph_instantiate_params(
    _: NullStream,
    real: types::cuGraphInstantiateWithParams,
    exec: *mut CUgraphExec,
    graph: CUgraph,
    parameters: *mut c_void,
) -> CUresult {
    // SAFETY: a pointer that is not null is the host's structure, which begins with the flags.
    let flags = unsafe { parameters.cast::<u64>().as_ref() }.copied().unwrap_or(0);
    // SAFETY: the host's call, here and below.
    let call = || unsafe { real(exec, graph, parameters) };
    let needs = match Process::if_attached() {
        Some(process) if flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD != 0 && process.graph_memory.expects_nodes() => {
            needs_of(process, graph).map(|needs| (process, needs))
        }
        _ => None,
    };
    let Some((process, needs)) = needs else {
        // SAFETY: the host's call.
        return unsafe { instantiated(exec, graph, &call) };
    };
    let result = with_memory(process, &needs, &[false; DEVICES_MAX], &call);
    if result.is_ok() {
        // SAFETY: the call has succeeded.
        remember(process, unsafe { *exec }, &needs);
    }
    result
}

/// `cuGraphExecDestroy`.
pub(crate) unsafe fn graph_exec_destroy(_: NullStream, real: types::cuGraphExecDestroy, exec: CUgraphExec) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(exec) };
    let Some(process) = Process::if_attached().filter(|process| process.graph_memory.expects_nodes()) else {
        return call();
    };
    // Removed first: the driver may give the handle to another graph as soon as this one is gone.
    let mut needs = [0; DEVICES_MAX];
    each_need(process, exec, |part, _, word| {
        if let Some(need) = needs.get_mut(part.index) {
            *need = word.swap(0, Ordering::Relaxed) & BYTES_MASK;
        }
    });
    let result = call();
    if result.is_ok() {
        settle_all(process);
    } else {
        remember(process, exec, &needs);
    }
    result
}

/// `cuGraphUpload`.
pub(crate) unsafe fn graph_upload(
    _: NullStream,
    real: types::cuGraphUpload,
    exec: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the host's call.
    launched(exec, || unsafe { real(exec, stream) })
}

/// `cuDeviceGraphMemTrim`.
pub(crate) unsafe fn graph_trim(_: NullStream, real: types::cuDeviceGraphMemTrim, ordinal: CUdevice) -> CUresult {
    // SAFETY: the host's call.
    let call = || unsafe { real(ordinal) };
    match Process::if_attached() {
        Some(process) => trimmed(process, ordinal, &call),
        None => call(),
    }
}

/// `cuGraphAddMemAllocNode`.
pub(crate) unsafe fn graph_add_allocation(
    _: NullStream,
    real: types::cuGraphAddMemAllocNode,
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    dependency_count: usize,
    parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CUresult {
    if let Some(process) = Process::attached() {
        expect_nodes(process);
    }
    // SAFETY: the host's call.
    unsafe { real(node, graph, dependencies, dependency_count, parameters) }
}

/// Notes whether a node of any kind is an allocation node. The parameters begin with the kind.
unsafe fn expect_node(kind: *const c_uint) {
    // SAFETY: a pointer that is not null is the host's structure.
    if unsafe { kind.as_ref() } == Some(&CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        && let Some(process) = Process::attached()
    {
        expect_nodes(process);
    }
}

/// `cuGraphAddNode`.
pub(crate) unsafe fn graph_add_node(
    _: NullStream,
    real: types::cuGraphAddNode,
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    dependency_count: usize,
    parameters: *mut CUgraphNodeParams,
) -> CUresult {
    // SAFETY: the host's call.
    unsafe {
        expect_node(parameters.cast());
        real(node, graph, dependencies, dependency_count, parameters)
    }
}

/// `cuGraphAddNode_v2` and later, whose dependencies have data.
#[allow(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn graph_add_node_after(
    _: NullStream,
    real: types::cuGraphAddNode_v2,
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    dependency_data: *const c_void,
    dependency_count: usize,
    parameters: *mut CUgraphNodeParams,
) -> CUresult {
    // SAFETY: the host's call.
    unsafe {
        expect_node(parameters.cast());
        real(node, graph, dependencies, dependency_data, dependency_count, parameters)
    }
}

//! The memory that the allocation nodes of a graph need.
//!
//! The driver gives the same addresses to allocations that never live at the same time. So the need is not the sum of
//! the nodes' sizes, but the size of the union of their address ranges.

use crate::hooks::real;
use crate::process::Process;
use crate::sys;
use aliquot_abi::cuda::{
    CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, CUgraph, CUgraphNode,
};
use aliquot_abi::region::DEVICES_MAX;

/// The bytes that a graph needs of each part.
pub(crate) type Needs = [u64; DEVICES_MAX];

/// The depth to which graphs in graphs are searched.
const DEPTH_MAX: u32 = 32;

/// Calls `visit` with the parameters of each allocation node of `graph`, and of the graphs that it contains.
fn each_allocation(graph: CUgraph, depth: u32, visit: &mut dyn FnMut(&CUDA_MEM_ALLOC_NODE_PARAMS)) -> Option<()> {
    let get_nodes = real!(cuGraphGetNodes)?;
    let (get_type, get_child) = (real!(cuGraphNodeGetType)?, real!(cuGraphChildGraphNodeGetGraph)?);
    let get_allocation = real!(cuGraphMemAllocNodeGetParams)?;
    let mut count = 0;
    // SAFETY: the pointer is valid, and with a null list the driver writes only the number.
    if !unsafe { get_nodes(graph, core::ptr::null_mut(), &raw mut count) }.is_ok() || count == 0 {
        return None;
    }
    let bytes = count.saturating_mul(size_of::<CUgraphNode>());
    let nodes: *mut CUgraphNode = sys::map_anonymous(bytes).ok()?.cast();
    // SAFETY: the list has room for `count` nodes, and the driver writes no more.
    let listed = unsafe { get_nodes(graph, nodes, &raw mut count) }.is_ok();
    // SAFETY: the driver has written `count` nodes; the rest of the fresh memory is zero, which is a null handle.
    for &node in unsafe { core::slice::from_raw_parts(nodes, if listed { count } else { 0 }) } {
        let mut kind = 0;
        // SAFETY: the pointer is valid.
        if !unsafe { get_type(node, &raw mut kind) }.is_ok() {
            continue;
        }
        if kind == CU_GRAPH_NODE_TYPE_MEM_ALLOC {
            let mut parameters = core::mem::MaybeUninit::<CUDA_MEM_ALLOC_NODE_PARAMS>::zeroed();
            // SAFETY: the pointer is valid; a structure of zeros is a valid one.
            unsafe {
                if get_allocation(node, parameters.as_mut_ptr()).is_ok() {
                    visit(parameters.assume_init_ref());
                }
            }
        } else if kind == CU_GRAPH_NODE_TYPE_GRAPH && depth > 0 {
            let mut child = CUgraph::NULL;
            // SAFETY: the pointer is valid.
            if unsafe { get_child(node, &raw mut child) }.is_ok() {
                each_allocation(child, depth - 1, visit);
            }
        }
    }
    // SAFETY: mapped above with this size, and not used any more.
    unsafe { sys::unmap(nodes.cast(), bytes) };
    Some(())
}

/// The address range of an allocation node.
#[derive(Clone, Copy)]
struct Range {
    part: usize,
    start: u64,
    end: u64,
}

/// The bytes that the allocation nodes of `graph` need; `None` if it has none.
pub(crate) fn needs_of(process: &'static Process, graph: CUgraph) -> Option<Needs> {
    let mut count = 0_usize;
    each_allocation(graph, DEPTH_MAX, &mut |_| count += 1);
    if count == 0 {
        return None;
    }
    let bytes = count.saturating_mul(size_of::<Range>());
    let ranges: *mut Range = sys::map_anonymous(bytes).ok()?.cast();
    let mut sorted = 0;
    each_allocation(graph, DEPTH_MAX, &mut |parameters| {
        let device = parameters.pool_props.location.device();
        if let (true, Some(part)) = (sorted < count, device.and_then(|ordinal| process.part(ordinal))) {
            let end = parameters.dptr.saturating_add(parameters.bytesize as u64);
            // SAFETY: `ranges` has room for `count` ranges, of which the first `sorted` are in order.
            unsafe { insert(ranges, sorted, Range { part: part.index, start: parameters.dptr, end }) };
            sorted += 1;
        }
    });
    let mut needs = [0; DEVICES_MAX];
    let (mut part, mut end) = (usize::MAX, 0);
    // SAFETY: the first `sorted` ranges were written above.
    for range in unsafe { core::slice::from_raw_parts(ranges, sorted) } {
        if range.part != part {
            (part, end) = (range.part, 0);
        }
        if let Some(need) = needs.get_mut(part) {
            *need = range.end.saturating_sub(range.start.max(end)).saturating_add(*need);
        }
        end = end.max(range.end);
    }
    // SAFETY: mapped above with this size, and not used any more.
    unsafe { sys::unmap(ranges.cast(), bytes) };
    Some(needs)
}

/// Inserts `range` into the first `sorted` ranges, which are in order. Nodes mostly come in order already.
///
/// # Safety
/// There must be room for one more range.
unsafe fn insert(ranges: *mut Range, sorted: usize, range: Range) {
    let mut place = sorted;
    // SAFETY: the caller has filled the places before the last one, and vouches for the rest.
    unsafe {
        while place > 0 && {
            let before = &*ranges.add(place - 1);
            (before.part, before.start) > (range.part, range.start)
        } {
            *ranges.add(place) = *ranges.add(place - 1);
            place -= 1;
        }
        *ranges.add(place) = range;
    }
}

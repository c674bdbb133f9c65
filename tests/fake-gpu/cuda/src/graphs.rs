//! Graphs: nodes and their dependencies.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aliquot_abi::cuda::{CUgraph, CUgraphNode, CUresult};

use crate::Done;
use crate::caller::{get_all, not_null, put, put_all};
use crate::graph_attributes::{Attributes, copy_attributes};
use crate::graph_nodes::NodeKind;
use crate::handles::{self, Kind, Object};
use crate::process::process;
use crate::user_objects::References;

pub(crate) struct Graph {
    nodes: Mutex<Vec<CUgraphNode>>,
    /// Whether it has memory nodes and an executable graph, which then uses its memory.
    memory_is_claimed: AtomicBool,
    /// Whether a node owns it. It then ends with the node.
    owned: AtomicBool,
    /// For a clone: its node for each node of the original.
    origins: Mutex<HashMap<CUgraphNode, CUgraphNode>>,
    pub(crate) user_objects: References,
}

pub(crate) struct Node {
    pub(crate) graph: CUgraph,
    kind: Mutex<NodeKind>,
    dependencies: Mutex<Vec<CUgraphNode>>,
    pub(crate) attributes: Mutex<Attributes>,
}

impl Object for Graph {
    const KIND: Kind = Kind::Graph;
}

impl Object for Node {
    const KIND: Kind = Kind::GraphNode;
}

impl Node {
    pub(crate) fn kind(&self) -> MutexGuard<'_, NodeKind> {
        self.kind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn dependencies(&self) -> MutexGuard<'_, Vec<CUgraphNode>> {
        self.dependencies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Graph {
    /// Claims the graph's memory for an executable graph. Returns false if another one has it.
    pub(crate) fn claim_memory(&self) -> bool {
        !self.memory_is_claimed.swap(true, Ordering::AcqRel)
    }

    /// Gives up the claim.
    pub(crate) fn yield_memory(&self) {
        self.memory_is_claimed.store(false, Ordering::Release);
    }

    pub(crate) fn nodes(&self) -> MutexGuard<'_, Vec<CUgraphNode>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a node. `handle` is this graph's handle.
    pub(crate) fn add(&self, handle: CUgraph, kind: NodeKind, dependencies: Vec<CUgraphNode>) -> CUgraphNode {
        for inner in kind.inner_graphs() {
            if let Ok(inner) = graph(*inner) {
                inner.owned.store(true, Ordering::Release);
            }
        }
        let node = Node {
            graph: handle,
            kind: Mutex::new(kind),
            dependencies: Mutex::new(dependencies),
            attributes: Mutex::default(),
        };
        let node = CUgraphNode(handles::register(node).0);
        self.nodes().push(node);
        node
    }

    /// The nodes, each after its dependencies; `None` if there is a cycle.
    pub(crate) fn ordered(&self) -> Option<Vec<(CUgraphNode, &'static Node)>> {
        let mut waiting =
            self.nodes().iter().filter_map(|&handle| Some((handle, node(handle).ok()?))).collect::<Vec<_>>();
        let mut done = HashSet::new();
        let mut ordered = Vec::with_capacity(waiting.len());
        while !waiting.is_empty() {
            let before = ordered.len();
            waiting.retain(|&(handle, node)| {
                let ready = node.dependencies().iter().all(|dependency| done.contains(dependency));
                if ready {
                    done.insert(handle);
                    ordered.push((handle, node));
                }
                !ready
            });
            if ordered.len() == before {
                return None;
            }
        }
        Some(ordered)
    }
}

/// The graph that a handle names.
pub(crate) fn graph(handle: CUgraph) -> Done<&'static Graph> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_VALUE)
}

/// The node that a handle names.
pub(crate) fn node(handle: CUgraphNode) -> Done<&'static Node> {
    process()?;
    handles::find(handle.0).ok_or(CUresult::INVALID_VALUE)
}

/// Makes an empty graph.
pub(crate) fn create() -> CUgraph {
    let graph = Graph {
        nodes: Mutex::new(Vec::new()),
        memory_is_claimed: AtomicBool::new(false),
        owned: AtomicBool::new(false),
        origins: Mutex::new(HashMap::new()),
        user_objects: References::default(),
    };
    CUgraph(handles::register(graph).0)
}

/// Marks a graph as owned by a node of another graph. A graph can have only one owner, and cannot contain itself.
pub(crate) fn adopt(owner: CUgraph, child: CUgraph) -> Done {
    if owner == child || contains(child, owner)? || graph(child)?.owned.swap(true, Ordering::AcqRel) {
        return Err(CUresult::INVALID_VALUE);
    }
    Ok(())
}

/// Whether a graph is inside another.
pub(crate) fn contains(outer: CUgraph, inner: CUgraph) -> Done<bool> {
    for handle in graph(outer)?.nodes().clone() {
        for &child in node(handle)?.kind().inner_graphs() {
            if child == inner || contains(child, inner)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Destroys a graph with its nodes.
pub(crate) fn destroy(handle: CUgraph) -> Done {
    graph(handle)?;
    let graph = handles::retire::<Graph>(handle.0).ok_or(CUresult::INVALID_VALUE)?;
    let nodes = std::mem::take(&mut *graph.nodes());
    nodes.into_iter().for_each(retire_node);
    graph.user_objects.release_all();
    Ok(())
}

fn retire_node(handle: CUgraphNode) {
    if let Some(node) = handles::retire::<Node>(handle.0) {
        // The node's contents are dropped. The node itself stays, because callers may still have its handle.
        let kind = std::mem::replace(&mut *node.kind(), NodeKind::Empty);
        for inner in kind.inner_graphs() {
            // Inner graphs belong to the node.
            let _ = destroy(*inner);
        }
    }
}

/// The nodes and all their direct and indirect dependencies.
pub(crate) fn with_ancestors(nodes: &[CUgraphNode]) -> HashSet<CUgraphNode> {
    let mut found = HashSet::new();
    let mut open = nodes.to_vec();
    while let Some(handle) = open.pop() {
        if found.insert(handle)
            && let Ok(node) = node(handle)
        {
            open.extend(node.dependencies().iter().copied());
        }
    }
    found
}

/// Copies a graph. Also returns the copy of each node.
pub(crate) fn copy(original: &Graph) -> Done<(CUgraph, HashMap<CUgraphNode, CUgraphNode>)> {
    let ordered = original.ordered().ok_or(CUresult::INVALID_VALUE)?;
    let handle = create();
    let target = graph(handle)?;
    let mut copies = HashMap::new();
    for (source, node) in ordered {
        let kind = match &*node.kind() {
            NodeKind::Child(child) => NodeKind::Child(copy(graph(*child)?)?.0),
            // Memory and conditional nodes belong to one graph and cannot be copied.
            NodeKind::MemoryAllocation(_) | NodeKind::MemoryFree(_) | NodeKind::Conditional(_) => {
                let _ = destroy(handle);
                return Err(CUresult::NOT_SUPPORTED);
            }
            kind => kind.clone(),
        };
        let dependencies =
            node.dependencies().iter().filter_map(|dependency| copies.get(dependency).copied()).collect();
        let copied = target.add(handle, kind, dependencies);
        copy_attributes(copied, source)?;
        copies.insert(source, copied);
    }
    target.user_objects.retain_all_of(&original.user_objects);
    Ok((handle, copies))
}

/// Reads a list of dependencies. They must be different nodes of the graph.
pub(crate) fn read_dependencies(graph: CUgraph, list: *const CUgraphNode, count: usize) -> Done<Vec<CUgraphNode>> {
    let dependencies = get_all(list, count)?;
    let distinct = dependencies.iter().collect::<HashSet<_>>().len() == count;
    let own = dependencies.iter().all(|&handle| node(handle).is_ok_and(|node| node.graph == graph));
    if distinct && own { Ok(dependencies) } else { Err(CUresult::INVALID_VALUE) }
}

pub(crate) fn cuGraphCreate(target: *mut CUgraph, flags: c_uint) -> Done {
    process()?;
    not_null(target)?;
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    put(target, create())
}

pub(crate) fn cuGraphDestroy(handle: CUgraph) -> Done {
    if graph(handle)?.owned.load(Ordering::Acquire) {
        return Err(CUresult::INVALID_VALUE);
    }
    destroy(handle)
}

pub(crate) fn cuGraphClone(target: *mut CUgraph, original: CUgraph) -> Done {
    let original = graph(original)?;
    not_null(target)?;
    let (handle, copies) = copy(original)?;
    *graph(handle)?.origins.lock().unwrap_or_else(PoisonError::into_inner) = copies;
    put(target, handle)
}

/// Finds the clone's node for a node of the original.
pub(crate) fn cuGraphNodeFindInClone(target: *mut CUgraphNode, original: CUgraphNode, clone: CUgraph) -> Done {
    node(original)?;
    let clone = graph(clone)?;
    not_null(target)?;
    let origins = clone.origins.lock().unwrap_or_else(PoisonError::into_inner);
    let found = origins.get(&original).copied().filter(|&copied| node(copied).is_ok());
    put(target, found.ok_or(CUresult::INVALID_VALUE)?)
}

/// Writes a list as the API does: only the number of items if `target` is null, otherwise as many items as there is
/// room for, and null in the rest of the room.
fn put_list<T: Clone>(target: *mut T, count: *mut usize, items: &[T], null: T) -> Done {
    not_null(count)?;
    if target.is_null() {
        return put(count, items.len());
    }
    let room = crate::caller::get(count)?;
    let padded = items.iter().cloned().chain(std::iter::repeat(null)).take(room);
    put_all(target, padded)?;
    put(count, items.len().min(room))
}

pub(crate) fn cuGraphGetNodes(handle: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> Done {
    let list = graph(handle)?.nodes().clone();
    put_list(nodes, count, &list, CUgraphNode::NULL)
}

pub(crate) fn cuGraphGetRootNodes(handle: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> Done {
    let nodes_of = graph(handle)?.nodes().clone();
    let is_root = |handle: &CUgraphNode| node(*handle).is_ok_and(|node| node.dependencies().is_empty());
    let roots = nodes_of.into_iter().filter(is_root).collect::<Vec<_>>();
    put_list(nodes, count, &roots, CUgraphNode::NULL)
}

pub(crate) fn cuGraphGetEdges(
    handle: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    count: *mut usize,
) -> Done {
    let nodes = graph(handle)?.nodes().clone();
    if from.is_null() != to.is_null() {
        return Err(CUresult::INVALID_VALUE);
    }
    let (mut starts, mut ends) = (Vec::new(), Vec::new());
    for end in nodes {
        for start in node(end)?.dependencies().iter() {
            starts.push(*start);
            ends.push(end);
        }
    }
    let room = crate::caller::get(count)?;
    put_list(from, count, &starts, CUgraphNode::NULL)?;
    put(count, room)?;
    put_list(to, count, &ends, CUgraphNode::NULL)
}

/// The bytes of one edge's data.
const EDGE_DATA_BYTES: usize = 8;

/// Writes empty edge data.
fn put_no_edge_data(target: *mut c_void, count: usize) -> Done {
    if target.is_null() { Ok(()) } else { put_all(target.cast(), vec![[0_u8; EDGE_DATA_BYTES]; count]) }
}

pub(crate) fn cuGraphGetEdges_v2(
    handle: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut c_void,
    count: *mut usize,
) -> Done {
    cuGraphGetEdges(handle, from, to, count)?;
    put_no_edge_data(data, crate::caller::get(count)?)
}

pub(crate) fn cuGraphNodeGetDependencies(handle: CUgraphNode, list: *mut CUgraphNode, count: *mut usize) -> Done {
    let dependencies = node(handle)?.dependencies().clone();
    put_list(list, count, &dependencies, CUgraphNode::NULL)
}

pub(crate) fn cuGraphNodeGetDependencies_v2(
    handle: CUgraphNode,
    list: *mut CUgraphNode,
    data: *mut c_void,
    count: *mut usize,
) -> Done {
    cuGraphNodeGetDependencies(handle, list, count)?;
    put_no_edge_data(data, crate::caller::get(count)?)
}

fn dependents_of(handle: CUgraphNode) -> Done<Vec<CUgraphNode>> {
    let nodes = graph(node(handle)?.graph)?.nodes().clone();
    let depends = |other: &CUgraphNode| node(*other).is_ok_and(|node| node.dependencies().contains(&handle));
    Ok(nodes.into_iter().filter(depends).collect())
}

pub(crate) fn cuGraphNodeGetDependentNodes(handle: CUgraphNode, list: *mut CUgraphNode, count: *mut usize) -> Done {
    put_list(list, count, &dependents_of(handle)?, CUgraphNode::NULL)
}

pub(crate) fn cuGraphNodeGetDependentNodes_v2(
    handle: CUgraphNode,
    list: *mut CUgraphNode,
    data: *mut c_void,
    count: *mut usize,
) -> Done {
    cuGraphNodeGetDependentNodes(handle, list, count)?;
    put_no_edge_data(data, crate::caller::get(count)?)
}

pub(crate) fn cuGraphAddDependencies(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Done {
    graph(handle)?;
    let edges = get_all(from, count)?.into_iter().zip(get_all(to, count)?).collect::<Vec<_>>();
    for &(start, end) in &edges {
        let own = node(start)?.graph == handle && node(end)?.graph == handle;
        if !own || node(end)?.dependencies().contains(&start) || with_ancestors(&[start]).contains(&end) {
            return Err(CUresult::INVALID_VALUE);
        }
        node(end)?.dependencies().push(start);
    }
    Ok(())
}

pub(crate) fn cuGraphAddDependencies_v2(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const c_void,
    count: usize,
) -> Done {
    check_edge_data(data, count)?;
    cuGraphAddDependencies(handle, from, to, count)
}

/// Refuses edges with data: dependencies on parts of kernels are not simulated.
pub(crate) fn check_edge_data(data: *const c_void, count: usize) -> Done {
    let data = if data.is_null() { Vec::new() } else { get_all(data.cast::<[u8; EDGE_DATA_BYTES]>(), count)? };
    if data.iter().all(|edge| *edge == [0; EDGE_DATA_BYTES]) { Ok(()) } else { Err(CUresult::NOT_SUPPORTED) }
}

/// Removes edges. All of them must exist.
pub(crate) fn cuGraphRemoveDependencies(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    count: usize,
) -> Done {
    graph(handle)?;
    let edges = get_all(from, count)?.into_iter().zip(get_all(to, count)?).collect::<Vec<_>>();
    for &(start, end) in &edges {
        let own = node(start)?.graph == handle && node(end)?.graph == handle;
        if !own || !node(end)?.dependencies().contains(&start) {
            return Err(CUresult::INVALID_VALUE);
        }
        // Edges of memory nodes cannot be removed, because the order of allocations and frees is fixed.
        for handle in [start, end] {
            if node(handle)?.kind().is_memory() {
                return Err(CUresult::NOT_SUPPORTED);
            }
        }
    }
    for (start, end) in edges {
        node(end)?.dependencies().retain(|&dependency| dependency != start);
    }
    Ok(())
}

pub(crate) fn cuGraphRemoveDependencies_v2(
    handle: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const c_void,
    count: usize,
) -> Done {
    check_edge_data(data, count)?;
    cuGraphRemoveDependencies(handle, from, to, count)
}

pub(crate) fn cuGraphDestroyNode(handle: CUgraphNode) -> Done {
    let found = node(handle)?;
    if found.kind().is_memory() {
        return Err(CUresult::NOT_SUPPORTED);
    }
    let graph = graph(found.graph)?;
    graph.nodes().retain(|&other| other != handle);
    for other in graph.nodes().clone() {
        node(other)?.dependencies().retain(|&dependency| dependency != handle);
    }
    retire_node(handle);
    Ok(())
}

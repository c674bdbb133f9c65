//! Graph nodes of every kind: creation, reading and changing of parameters, disabling, and inner graphs.

use core::sync::atomic::{AtomicUsize, Ordering};

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

const NONE: *const CUgraphNode = core::ptr::null();

unsafe extern "C" fn count(counter: *mut c_void) {
    // SAFETY: the tests pass counters that are never freed.
    unsafe { &*counter.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

fn counter() -> &'static AtomicUsize {
    Box::leak(Box::new(AtomicUsize::new(0)))
}

fn counting(counter: &'static AtomicUsize) -> CUDA_HOST_NODE_PARAMS {
    CUDA_HOST_NODE_PARAMS { callback: Some(count), user_data: (&raw const *counter).cast_mut().cast() }
}

fn any_kind(kind: u32) -> CUgraphNodeParams {
    let of_kind = CUgraphNodeKindParams { words: [0; 29] };
    CUgraphNodeParams { kind, reserved0: [0; 3], of_kind, reserved2: 0 }
}

fn graph(driver: &Driver) -> CUgraph {
    let mut graph = CUgraph::NULL;
    driver.cuGraphCreate(&mut graph, 0).ok();
    graph
}

/// Launches an executable graph and waits for it.
fn launch(driver: &Driver, exec: CUgraphExec) {
    let stream = driver.stream(1);
    driver.cuGraphLaunch(exec, stream).ok();
    driver.cuStreamSynchronize(stream).ok();
}

fn instantiate(driver: &Driver, graph: CUgraph) -> CUgraphExec {
    let mut exec = CUgraphExec::NULL;
    driver.cuGraphInstantiateWithFlags(&mut exec, graph, 0).ok();
    exec
}

fn current(driver: &Driver) -> CUcontext {
    let mut context = CUcontext::NULL;
    driver.cuCtxGetCurrent(&mut context).ok();
    context
}

#[test]
fn copies_and_sets_are_told_and_changed_before_and_after_instantiation() {
    alone("graph_nodes::copies_and_sets_are_told_and_changed_before_and_after_instantiation", "", || {
        let driver = Driver::with_context();
        let (context, graph) = (current(&driver), graph(&driver));
        let (one, two) = (driver.alloc(64), driver.alloc(64));
        let (mut set, mut copy) = (CUgraphNode::NULL, CUgraphNode::NULL);
        let mut value = CUDA_MEMSET_NODE_PARAMS { dst: one, pitch: 0, value: 5, element_size: 1, width: 64, height: 1 };
        driver.cuGraphAddMemsetNode(&mut set, graph, NONE, 0, &value, context).ok();
        // SAFETY: zeros and null pointers are valid in the structure.
        let mut move_all: CUDA_MEMCPY3D = unsafe { core::mem::zeroed() };
        (move_all.src_memory_type, move_all.src_device) = (2, one);
        (move_all.dst_memory_type, move_all.dst_device) = (2, two);
        (move_all.width_in_bytes, move_all.height, move_all.depth) = (64, 1, 1);
        driver.cuGraphAddMemcpyNode(&mut copy, graph, &set, 1, &move_all, context).ok();
        let mut told = CUDA_MEMSET_NODE_PARAMS { value: 0, ..value };
        driver.cuGraphMemsetNodeGetParams(set, &mut told).ok();
        assert_eq!((told.value, told.width, told.dst), (5, 64, one));
        driver.cuGraphMemsetNodeGetParams(copy, &mut told).is(CUresult::INVALID_VALUE);
        let mut told_copy = move_all;
        driver.cuGraphMemcpyNodeGetParams(copy, &mut told_copy).ok();
        assert_eq!((told_copy.src_device, told_copy.dst_device, told_copy.width_in_bytes), (one, two, 64));
        driver.cuGraphMemcpyNodeSetParams(copy, &told_copy).ok();
        let exec = instantiate(&driver, graph);
        let result = |exec| {
            let mut back = [0_u8; 64];
            driver.cuMemsetD8_v2(two, 0, 64).ok();
            launch(&driver, exec);
            driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), two, 64).ok();
            (back[0], back[63])
        };
        assert_eq!(result(exec), (5, 5));
        value.value = 6;
        driver.cuGraphExecMemsetNodeSetParams(exec, set, &value, context).ok();
        move_all.width_in_bytes = 10;
        driver.cuGraphExecMemcpyNodeSetParams(exec, copy, &move_all, context).ok();
        assert_eq!(result(exec), (6, 0));
        driver.cuGraphExecMemsetNodeSetParams(exec, copy, &value, context).is(CUresult::INVALID_VALUE);
        let mut enabled = 9;
        driver.cuGraphNodeGetEnabled(exec, copy, &mut enabled).ok();
        driver.cuGraphNodeSetEnabled(exec, copy, 0).ok();
        assert_eq!((enabled, result(exec)), (1, (0, 0)));
        // Changes of the executable graph do not affect the graph, and vice versa.
        assert_eq!(result(instantiate(&driver, graph)), (5, 5));
        value.value = 7;
        driver.cuGraphMemsetNodeSetParams(set, &value).ok();
        assert_eq!(result(instantiate(&driver, graph)), (7, 7));
    });
}

#[test]
fn generic_nodes_are_added_and_changed_by_one_structure() {
    alone("graph_nodes::generic_nodes_are_added_and_changed_by_one_structure", "", || {
        let driver = Driver::with_context();
        let graph = graph(&driver);
        let (first, second) = (counter(), counter());
        let (mut node, mut event_node) = (CUgraphNode::NULL, CUgraphNode::NULL);
        let mut host = any_kind(3);
        host.of_kind.host = counting(first);
        driver.cuGraphAddNode(&mut node, graph, NONE, 0, &mut host).ok();
        let mut record = any_kind(7);
        let event = driver.event();
        record.of_kind.event = event;
        driver.cuGraphAddNode_v2(&mut event_node, graph, &node, core::ptr::null(), 1, &mut record).ok();
        let mut told = CUevent::NULL;
        driver.cuGraphEventRecordNodeGetEvent(event_node, &mut told).ok();
        assert_eq!(told, event);
        driver.cuGraphEventWaitNodeGetEvent(event_node, &mut told).is(CUresult::INVALID_VALUE);
        let exec = instantiate(&driver, graph);
        launch(&driver, exec);
        driver.cuEventQuery(event).ok();
        host.of_kind.host = counting(second);
        driver.cuGraphExecNodeSetParams(exec, node, &mut host).ok();
        launch(&driver, exec);
        assert_eq!((first.load(Ordering::SeqCst), second.load(Ordering::SeqCst)), (1, 1));
        driver.cuGraphNodeSetParams(event_node, &mut host).is(CUresult::INVALID_VALUE);
        driver.cuGraphNodeSetParams(node, &mut host).ok();
        let mut host_told = counting(first);
        driver.cuGraphHostNodeGetParams(node, &mut host_told).ok();
        assert_eq!(host_told.user_data, (&raw const *second).cast_mut().cast());
        let mut unknown = any_kind(99);
        driver.cuGraphAddNode(&mut node, graph, NONE, 0, &mut unknown).is(CUresult::NOT_SUPPORTED);
        host.reserved2 = 1;
        driver.cuGraphAddNode(&mut node, graph, NONE, 0, &mut host).is(CUresult::INVALID_VALUE);
        let edge = [1_u8, 0, 0, 0, 0, 0, 0, 0];
        driver
            .cuGraphAddNode_v2(&mut event_node, graph, &node, edge.as_ptr().cast(), 1, &mut record)
            .is(CUresult::NOT_SUPPORTED);
    });
}

#[test]
fn conditional_nodes_run_their_bodies_by_the_default_value() {
    alone("graph_nodes::conditional_nodes_run_their_bodies_by_the_default_value", "", || {
        let driver = Driver::with_context();
        let runs = |kind: u32, size: u32, value: u32, flags: u32| {
            let (graph, mut handle, mut node) = (graph(&driver), 0, CUgraphNode::NULL);
            driver.cuGraphConditionalHandleCreate(&mut handle, graph, CUcontext::NULL, value, flags).ok();
            let mut wish = any_kind(13);
            wish.of_kind.conditional = CUDA_CONDITIONAL_NODE_PARAMS {
                handle,
                kind,
                size,
                graph_out: core::ptr::null_mut(),
                ctx: CUcontext::NULL,
            };
            driver.cuGraphAddNode_v2(&mut node, graph, NONE, core::ptr::null(), 0, &mut wish).ok();
            driver
                .cuGraphAddNode_v2(&mut node, graph, NONE, core::ptr::null(), 0, &mut wish)
                .is(CUresult::INVALID_VALUE);
            // SAFETY: for a conditional node the driver has written its list of `size` graphs there.
            let bodies =
                unsafe { std::slice::from_raw_parts(wish.of_kind.conditional.graph_out, size as usize) }.to_vec();
            let counters = bodies.iter().map(|body| {
                let counter = counter();
                let mut inner = CUgraphNode::NULL;
                driver.cuGraphAddHostNode(&mut inner, *body, NONE, 0, &counting(counter)).ok();
                counter
            });
            let counters = counters.collect::<Vec<_>>();
            let mut clone = CUgraph::NULL;
            driver.cuGraphClone(&mut clone, graph).is(CUresult::NOT_SUPPORTED);
            launch(&driver, instantiate(&driver, graph));
            counters.iter().map(|counter| counter.load(Ordering::SeqCst)).collect::<Vec<_>>()
        };
        assert_eq!(runs(0, 1, 1, 1), [1]);
        assert_eq!(runs(0, 1, 1, 0), [0]);
        assert_eq!(runs(0, 2, 0, 1), [0, 1]);
        assert_eq!(runs(1, 1, 5, 1), [5]);
        assert_eq!(runs(2, 3, 2, 1), [0, 0, 1]);
        assert_eq!(runs(2, 3, 3, 1), [0, 0, 0]);
    });
}

#[test]
fn clones_children_and_edges_are_found_again() {
    alone("graph_nodes::clones_children_and_edges_are_found_again", "", || {
        let driver = Driver::with_context();
        let (graph, child, counter) = (graph(&driver), graph(&driver), counter());
        let (mut inner, mut node, mut last) = (CUgraphNode::NULL, CUgraphNode::NULL, CUgraphNode::NULL);
        driver.cuGraphAddHostNode(&mut inner, child, NONE, 0, &counting(counter)).ok();
        driver.cuGraphAddChildGraphNode(&mut node, graph, NONE, 0, child).ok();
        driver.cuGraphAddEmptyNode(&mut last, graph, &node, 1).ok();
        let (mut own, mut clone, mut found) = (CUgraph::NULL, CUgraph::NULL, CUgraphNode::NULL);
        driver.cuGraphChildGraphNodeGetGraph(last, &mut own).is(CUresult::INVALID_VALUE);
        driver.cuGraphChildGraphNodeGetGraph(node, &mut own).ok();
        assert!(own != child);
        driver.cuGraphDestroy(own).is(CUresult::INVALID_VALUE);
        driver.cuGraphClone(&mut clone, graph).ok();
        driver.cuGraphNodeFindInClone(&mut found, last, clone).ok();
        assert!(found != last);
        driver.cuGraphNodeFindInClone(&mut found, last, child).is(CUresult::INVALID_VALUE);
        let mut dependents = [CUgraphNode::NULL; 2];
        let mut count = 2;
        driver.cuGraphNodeGetDependentNodes(node, dependents.as_mut_ptr(), &mut count).ok();
        assert_eq!((count, dependents), (1, [last, CUgraphNode::NULL]));
        driver.cuGraphRemoveDependencies(graph, &node, &last, 1).ok();
        driver.cuGraphRemoveDependencies(graph, &node, &last, 1).is(CUresult::INVALID_VALUE);
        let exec = instantiate(&driver, graph);
        launch(&driver, exec);
        assert_eq!(counter.load(Ordering::SeqCst), 1);
        // The child's contents are replaced by those of another graph of the same shape.
        let (other, other_counter) = (self::graph(&driver), self::counter());
        driver.cuGraphAddHostNode(&mut inner, other, NONE, 0, &counting(other_counter)).ok();
        driver.cuGraphExecChildGraphNodeSetParams(exec, node, other).ok();
        launch(&driver, exec);
        assert_eq!((counter.load(Ordering::SeqCst), other_counter.load(Ordering::SeqCst)), (1, 1));
        driver.cuGraphExecChildGraphNodeSetParams(exec, node, graph).is(CUresult::INVALID_VALUE);
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = std::ffi::CString::new(file.path().to_str().unwrap()).unwrap();
        driver.cuGraphDebugDotPrint(graph, path.as_ptr(), 1).ok();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.starts_with("digraph") && text.contains("HOST") && text.contains("EMPTY"), "{text}");
    });
}

#[test]
fn kernel_nodes_keep_their_attributes() {
    alone("graph_nodes::kernel_nodes_keep_their_attributes", "", || {
        let driver = Driver::with_context();
        let (graph, function) = (graph(&driver), driver.function(c"spin_ns"));
        let (mut one, mut two) = (CUgraphNode::NULL, CUgraphNode::NULL);
        let mut ns = 1_u64;
        let mut arguments = [(&raw mut ns).cast::<c_void>()];
        let parameters = CUDA_KERNEL_NODE_PARAMS_V1 {
            func: function,
            grid_dim: [1; 3],
            block_dim: [1; 3],
            shared_mem_bytes: 0,
            kernel_params: arguments.as_mut_ptr(),
            extra: core::ptr::null_mut(),
        };
        for node in [&mut one, &mut two] {
            driver.cuGraphAddKernelNode(node, graph, NONE, 0, &parameters).ok();
        }
        let mut priority = [0_i32; 16];
        priority[0] = -3;
        driver.cuGraphKernelNodeSetAttribute(one, 8, priority.as_ptr().cast()).ok();
        driver.cuGraphKernelNodeCopyAttributes(two, one).ok();
        let mut told = [0_i32; 16];
        driver.cuGraphKernelNodeGetAttribute(two, 8, told.as_mut_ptr().cast()).ok();
        assert_eq!(told[0], -3);
        priority[0] = 77;
        driver.cuGraphKernelNodeSetAttribute(one, 8, priority.as_ptr().cast()).is(CUresult::INVALID_VALUE);
        driver.cuGraphKernelNodeSetAttribute(one, 99, priority.as_ptr().cast()).is(CUresult::INVALID_VALUE);
    });
}

#[test]
fn user_objects_end_with_their_last_reference() {
    alone("graph_nodes::user_objects_end_with_their_last_reference", "", || {
        let driver = Driver::with_context();
        let (graph, counter) = (graph(&driver), counter());
        let (mut object, mut clone) = (CUuserObject::NULL, CUgraph::NULL);
        let data = (&raw const *counter).cast_mut().cast();
        driver.cuUserObjectCreate(&mut object, data, Some(count), 1, 0).is(CUresult::INVALID_VALUE);
        driver.cuUserObjectCreate(&mut object, data, Some(count), 1, 1).ok();
        driver.cuUserObjectRetain(object, 2).ok();
        driver.cuGraphRetainUserObject(graph, object, 1, 1).ok();
        driver.cuUserObjectRelease(object, 2).ok();
        driver.cuGraphClone(&mut clone, graph).ok();
        driver.cuGraphReleaseUserObject(graph, object, 2).is(CUresult::INVALID_VALUE);
        driver.cuGraphDestroy(graph).ok();
        assert_eq!(counter.load(Ordering::SeqCst), 0);
        driver.cuGraphDestroy(clone).ok();
        driver.cuUserObjectRetain(object, 1).is(CUresult::INVALID_VALUE);
        while counter.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_capture_goes_on_in_a_graph_and_behind_chosen_nodes() {
    alone("graph_nodes::a_capture_goes_on_in_a_graph_and_behind_chosen_nodes", "", || {
        let driver = Driver::with_context();
        let (graph, stream, memory) = (graph(&driver), driver.stream(1), driver.alloc(64));
        let (mut first, mut other, mut ended) = (CUgraphNode::NULL, CUgraphNode::NULL, CUgraph::NULL);
        driver.cuGraphAddEmptyNode(&mut first, graph, NONE, 0).ok();
        driver.cuGraphAddEmptyNode(&mut other, graph, NONE, 0).ok();
        driver.cuStreamUpdateCaptureDependencies(stream, &mut other, 1, 0).is(CUresult::ILLEGAL_STATE);
        driver.cuStreamBeginCaptureToGraph(stream, graph, &first, core::ptr::null(), 1, 0).ok();
        driver.cuMemsetD8Async(memory, 1, 64, stream).ok();
        driver.cuStreamUpdateCaptureDependencies(stream, &mut other, 1, 2).is(CUresult::INVALID_VALUE);
        driver.cuStreamUpdateCaptureDependencies_v2(stream, &mut other, core::ptr::null(), 1, 0).ok();
        driver.cuMemsetD8Async(memory, 2, 64, stream).ok();
        driver.cuStreamUpdateCaptureDependencies(stream, &mut first, 1, 1).ok();
        driver.cuMemsetD8Async(memory, 3, 64, stream).ok();
        driver.cuStreamEndCapture(stream, &mut ended).ok();
        assert_eq!(ended, graph);
        let mut nodes = [CUgraphNode::NULL; 5];
        let mut count = 5;
        driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).ok();
        assert_eq!(count, 5);
        let dependencies = |node| {
            let (mut list, mut count) = ([CUgraphNode::NULL; 4], 4);
            driver.cuGraphNodeGetDependencies(node, list.as_mut_ptr(), &mut count).ok();
            list[..count].to_vec()
        };
        assert_eq!(dependencies(nodes[2]), [first]);
        assert_eq!(dependencies(nodes[3]), [nodes[2], other]);
        assert_eq!(dependencies(nodes[4]), [first]);
        // After a failed capture the graph still belongs to its owner.
        driver.cuStreamBeginCaptureToGraph(stream, graph, &first, core::ptr::null(), 1, 0).ok();
        driver.cuStreamSynchronize(stream).is(CUresult::STREAM_CAPTURE_UNSUPPORTED);
        driver.cuStreamEndCapture(stream, &mut ended).is(CUresult::STREAM_CAPTURE_INVALIDATED);
        driver.cuGraphGetNodes(graph, core::ptr::null_mut(), &mut count).ok();
    });
}

//! Graphs.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

/// Captures two spin kernels and a set, and returns the graph.
fn captured(driver: &Driver, stream: CUstream, address: CUdeviceptr, ns: u64) -> CUgraph {
    let function = driver.function(c"spin_ns");
    let mut graph = CUgraph::NULL;
    driver.cuStreamBeginCapture_v2(stream, 0).ok();
    driver.spin(function, ns, stream).ok();
    driver.cuMemsetD8Async(address, 3, 16, stream).ok();
    driver.spin(function, ns, stream).ok();
    driver.cuStreamEndCapture(stream, &mut graph).ok();
    graph
}

fn nodes(driver: &Driver, graph: CUgraph) -> Vec<CUgraphNode> {
    let mut nodes = vec![CUgraphNode::NULL; 16];
    let mut count = nodes.len();
    driver.cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count).ok();
    nodes.truncate(count);
    nodes
}

#[test]
fn a_launch_takes_the_sum_of_its_nodes() {
    alone("graphs::a_launch_takes_the_sum_of_its_nodes", "", || {
        let driver = Driver::with_context();
        let (stream, start, end) = (driver.stream(1), driver.event(), driver.event());
        let address = driver.alloc(512);
        let graph = captured(&driver, stream, address, 4_000_000);
        let mut exec = CUgraphExec::NULL;
        driver.cuGraphInstantiateWithFlags(&mut exec, graph, 0).ok();
        let mut back = [0_u8; 16];
        driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 16).ok();
        assert_eq!(back, [0; 16]);
        let held = driver.hold(stream);
        driver.cuEventRecord(start, stream).ok();
        driver.cuGraphLaunch(exec, stream).ok();
        driver.cuGraphLaunch(exec, stream).ok();
        driver.cuEventRecord(end, stream).ok();
        held.release();
        driver.cuStreamSynchronize(stream).ok();
        assert!((driver.elapsed_ms(start, end) - 16.0).abs() < 0.001);
        driver.cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), address, 16).ok();
        assert_eq!(back, [3; 16]);

        // Changes the first kernel's argument: first in the executable graph, then by an update from a new graph.
        let first = nodes(&driver, graph)[0];
        let mut parameters = CUDA_KERNEL_NODE_PARAMS_V1 {
            func: CUfunction::NULL,
            grid_dim: [0; 3],
            block_dim: [0; 3],
            shared_mem_bytes: 0,
            kernel_params: core::ptr::null_mut(),
            extra: core::ptr::null_mut(),
        };
        driver.cuGraphKernelNodeGetParams(first, &mut parameters).ok();
        assert_eq!((parameters.grid_dim, parameters.block_dim), ([1, 1, 1], [32, 1, 1]));
        let mut ns = 1_000_000_u64;
        let mut arguments = [(&raw mut ns).cast::<c_void>()];
        parameters.kernel_params = arguments.as_mut_ptr();
        driver.cuGraphExecKernelNodeSetParams(exec, first, &parameters).ok();
        let timed = |expected_ms: f32| {
            let held = driver.hold(stream);
            driver.cuEventRecord(start, stream).ok();
            driver.cuGraphLaunch(exec, stream).ok();
            driver.cuEventRecord(end, stream).ok();
            held.release();
            driver.cuStreamSynchronize(stream).ok();
            assert!((driver.elapsed_ms(start, end) - expected_ms).abs() < 0.001);
        };
        timed(5.0);
        let (mut failed, mut result) = (CUgraphNode::NULL, 99);
        let new = captured(&driver, stream, address, 3_000_000);
        driver.cuGraphExecUpdate(exec, new, &mut failed, &mut result).ok();
        timed(6.0);
        driver.cuGraphDestroyNode(nodes(&driver, new)[2]).ok();
        driver.cuGraphExecUpdate(exec, new, &mut failed, &mut result).is(CUresult::GRAPH_EXEC_UPDATE_FAILURE);
        assert_eq!(result, 2);
        driver.cuGraphDestroy(graph).ok();
        driver.cuGraphDestroy(graph).is(CUresult::INVALID_VALUE);
        driver.cuGraphExecDestroy(exec).ok();
        driver.cuGraphLaunch(exec, stream).is(CUresult::INVALID_VALUE);
    });
}

#[test]
fn graphs_are_built_by_hand() {
    alone("graphs::graphs_are_built_by_hand", "", || {
        let driver = Driver::with_context();
        let (mut graph, mut child, mut clone) = (CUgraph::NULL, CUgraph::NULL, CUgraph::NULL);
        let (mut first, mut second, mut inside) = (CUgraphNode::NULL, CUgraphNode::NULL, CUgraphNode::NULL);
        let none = core::ptr::null();
        driver.cuGraphCreate(&mut graph, 0).ok();
        driver.cuGraphCreate(&mut child, 1).is(CUresult::INVALID_VALUE);
        driver.cuGraphCreate(&mut child, 0).ok();
        driver.cuGraphAddEmptyNode(&mut first, graph, none, 0).ok();
        driver.cuGraphAddEmptyNode(&mut inside, child, none, 0).ok();
        driver.cuGraphAddChildGraphNode(&mut second, graph, &first, 1, child).ok();
        driver.cuGraphAddEmptyNode(&mut inside, graph, &inside, 1).is(CUresult::INVALID_VALUE);
        driver.cuGraphAddDependencies(graph, &second, &first, 1).is(CUresult::INVALID_VALUE);
        driver.cuGraphClone(&mut clone, graph).ok();
        driver.cuGraphDestroyNode(first).ok();
        assert_eq!((nodes(&driver, graph).len(), nodes(&driver, clone).len()), (1, 2));
        let mut kind = 0;
        driver.cuGraphNodeGetType(second, &mut kind).ok();
        assert_eq!(kind, 4);
        driver.cuGraphNodeGetType(first, &mut kind).is(CUresult::INVALID_VALUE);
    });
}

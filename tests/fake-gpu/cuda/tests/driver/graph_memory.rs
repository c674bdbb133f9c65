//! Memory that graphs allocate. A launch takes it, and the device's graph pool keeps it until it is trimmed.

use aliquot_abi::cuda::*;

use crate::library::{Driver, Expect};
use crate::scenario::alone;

const SMALL: &str = "[[device]]\nmemory = '64MiB'";
const PIECE: usize = 2 << 20;

fn pinned_on_first_device(bytes: usize) -> CUDA_MEM_ALLOC_NODE_PARAMS {
    let pool_props = CUmemPoolProps {
        alloc_kind: 1,
        handle_types: 0,
        location: CUmemLocation { kind: 1, id: 0 },
        win32_security_attributes: core::ptr::null_mut(),
        max_size_bytes: 0,
        reserved: [0; 56],
    };
    let access_descs = core::ptr::null();
    CUDA_MEM_ALLOC_NODE_PARAMS { pool_props, access_descs, access_desc_count: 0, bytesize: bytes, dptr: 0 }
}

/// Used and reserved bytes of the device's graph pool.
fn graph_pool(driver: &Driver) -> (usize, usize) {
    let value = |attribute| {
        let mut bytes = 0_u64;
        driver.cuDeviceGetGraphMemAttribute(0, attribute, (&raw mut bytes).cast()).ok();
        bytes as usize
    };
    (value(0), value(2))
}

/// Captures a graph that allocates memory. Returns the graph, its executable form, and the memory's address.
fn allocating(driver: &Driver, stream: CUstream, bytes: usize, frees: bool) -> (CUgraph, CUgraphExec, CUdeviceptr) {
    let (mut graph, mut exec, mut address) = (CUgraph::NULL, CUgraphExec::NULL, 0);
    driver.cuStreamBeginCapture_v2(stream, 0).ok();
    driver.cuMemAllocAsync(&mut address, bytes, stream).ok();
    if frees {
        driver.cuMemFreeAsync(address, stream).ok();
    }
    driver.cuStreamEndCapture(stream, &mut graph).ok();
    driver.cuGraphInstantiateWithFlags(&mut exec, graph, 0).ok();
    (graph, exec, address)
}

#[test]
fn a_launch_takes_memory_and_the_pool_keeps_it_until_it_is_trimmed() {
    alone("graph_memory::a_launch_takes_memory_and_the_pool_keeps_it_until_it_is_trimmed", SMALL, || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let (_, exec, address) = allocating(&driver, stream, PIECE, false);
        assert_eq!(driver.used(), 0);
        driver.cuGraphLaunch(exec, stream).ok();
        assert_eq!((driver.used(), graph_pool(&driver)), (PIECE, (PIECE, PIECE)));
        driver.cuGraphLaunch(exec, stream).is(CUresult::INVALID_VALUE);
        driver.cuMemFreeAsync(address, stream).ok();
        driver.cuMemFreeAsync(address, stream).is(CUresult::INVALID_VALUE);
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!((driver.used(), graph_pool(&driver)), (PIECE, (0, PIECE)));
        driver.cuDeviceGraphMemTrim(0).ok();
        assert_eq!((driver.used(), graph_pool(&driver)), (0, (0, 0)));
        let whole = driver.alloc(63 << 20);
        driver.cuGraphLaunch(exec, stream).is(CUresult::OUT_OF_MEMORY);
        driver.cuMemFree_v2(whole).ok();
        driver.cuGraphLaunch(exec, stream).ok();
        let mut zero = 0_u64;
        driver.cuMemFree_v2(address).ok();
        driver.cuDeviceSetGraphMemAttribute(0, 1, (&raw mut zero).cast()).ok();
        let mut high = 1_u64;
        driver.cuDeviceGetGraphMemAttribute(0, 1, (&raw mut high).cast()).ok();
        assert_eq!(high, 0);
    });
}

#[test]
fn a_graph_that_frees_its_memory_is_launched_over_and_over() {
    alone("graph_memory::a_graph_that_frees_its_memory_is_launched_over_and_over", SMALL, || {
        let driver = Driver::with_context();
        let (stream, spin) = (driver.stream(1), driver.function(c"spin_ns"));
        let base = driver.used();
        let (_, exec, address) = allocating(&driver, stream, 20 << 20, true);
        driver.cuGraphUpload(exec, stream).ok();
        assert_eq!((driver.used() - base, graph_pool(&driver)), (20 << 20, (0, 20 << 20)));
        driver.spin(spin, 10_000_000, stream).ok();
        for _ in 0..5 {
            driver.cuGraphLaunch(exec, stream).ok();
        }
        driver.cuMemFreeAsync(address, stream).is(CUresult::INVALID_VALUE);
        driver.cuStreamSynchronize(stream).ok();
        // The graph keeps the memory between its launches, as on an H100.
        assert_eq!((driver.used() - base, graph_pool(&driver)), (20 << 20, (20 << 20, 20 << 20)));
        driver.cuDeviceGraphMemTrim(0).ok();
        assert_eq!((driver.used() - base, graph_pool(&driver)), (0, (0, 0)));
        driver.cuGraphLaunch(exec, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        driver.cuGraphExecDestroy(exec).ok();
        assert_eq!((driver.used() - base, graph_pool(&driver)), (20 << 20, (0, 20 << 20)));
    });
}

#[test]
fn a_launch_can_free_memory_left_by_the_last_one() {
    let name = "graph_memory::a_launch_can_free_memory_left_by_the_last_one";
    alone(name, SMALL, || {
        let driver = Driver::with_context();
        let stream = driver.stream(1);
        let (graph, exec, address) = allocating(&driver, stream, PIECE, false);
        let mut second = CUgraphExec::NULL;
        driver.cuGraphInstantiateWithFlags(&mut second, graph, 1).is(CUresult::INVALID_VALUE);
        driver.cuGraphExecDestroy(exec).ok();
        driver.cuGraphInstantiateWithFlags(&mut second, graph, 1).ok();
        let mut flags = 0;
        driver.cuGraphExecGetFlags(second, &mut flags).ok();
        assert_eq!(flags, 1);
        for _ in 0..3 {
            driver.cuGraphLaunch(second, stream).ok();
        }
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(graph_pool(&driver), (PIECE, PIECE));
        // The memory outlives its graph.
        driver.cuGraphExecDestroy(second).ok();
        driver.cuGraphDestroy(graph).ok();
        assert_eq!(graph_pool(&driver), (PIECE, PIECE));
        driver.cuMemFree_v2(address).ok();
        driver.cuMemFree_v2(address).is(CUresult::INVALID_VALUE);
        driver.cuDeviceGraphMemTrim(0).ok();
        assert_eq!(driver.used(), 0);
    });
}

#[test]
fn memory_nodes_are_added_directly_and_return_their_parameters() {
    alone("graph_memory::memory_nodes_are_added_directly_and_return_their_parameters", SMALL, || {
        let driver = Driver::with_context();
        let (mut graph, mut exec, stream) = (CUgraph::NULL, CUgraphExec::NULL, driver.stream(1));
        let (mut alloc, mut generic, mut free) = (CUgraphNode::NULL, CUgraphNode::NULL, CUgraphNode::NULL);
        driver.cuGraphCreate(&mut graph, 0).ok();
        let mut parameters = pinned_on_first_device(1000);
        parameters.pool_props.handle_types = 1;
        driver
            .cuGraphAddMemAllocNode(&mut alloc, graph, core::ptr::null(), 0, &mut parameters)
            .is(CUresult::INVALID_VALUE);
        parameters.pool_props.handle_types = 0;
        driver.cuGraphAddMemAllocNode(&mut alloc, graph, core::ptr::null(), 0, &mut parameters).ok();
        let mut any = CUgraphNodeParams {
            kind: 10,
            reserved0: [0; 3],
            of_kind: CUgraphNodeKindParams { words: [0; 29] },
            reserved2: 0,
        };
        any.of_kind.alloc = pinned_on_first_device(PIECE);
        driver.cuGraphAddNode_v2(&mut generic, graph, &alloc, core::ptr::null(), 1, &mut any).ok();
        // SAFETY: for an allocation node the driver has written the address there.
        let second = unsafe { any.of_kind.alloc.dptr };
        assert!(parameters.dptr != 0 && second != 0 && second != parameters.dptr);
        let mut told = pinned_on_first_device(0);
        driver.cuGraphMemAllocNodeGetParams(generic, &mut told).ok();
        assert_eq!((told.bytesize, told.dptr), (PIECE, second));
        driver.cuGraphAddMemFreeNode(&mut free, graph, &generic, 1, 12345).is(CUresult::INVALID_VALUE);
        driver.cuGraphAddMemFreeNode(&mut free, graph, &generic, 1, second).ok();
        let mut again = free;
        driver.cuGraphAddMemFreeNode(&mut again, graph, &generic, 1, second).is(CUresult::INVALID_VALUE);
        let mut freed = 0;
        driver.cuGraphMemFreeNodeGetParams(free, &mut freed).ok();
        driver.cuGraphMemFreeNodeGetParams(alloc, &mut freed).is(CUresult::INVALID_VALUE);
        assert_eq!(freed, second);
        driver.cuGraphDestroyNode(alloc).is(CUresult::NOT_SUPPORTED);
        driver.cuGraphRemoveDependencies(graph, &alloc, &generic, 1).is(CUresult::NOT_SUPPORTED);
        driver.cuGraphInstantiateWithFlags(&mut exec, graph, 0).ok();
        driver.cuGraphLaunch(exec, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(graph_pool(&driver), (1024 + PIECE, 2 * PIECE));
        // A child graph owned by the node may contain allocations; a copied one may not.
        let (mut parent, mut node, mut clone) = (CUgraph::NULL, CUgraphNode::NULL, CUgraph::NULL);
        driver.cuGraphCreate(&mut parent, 0).ok();
        driver.cuGraphClone(&mut clone, graph).is(CUresult::NOT_SUPPORTED);
        driver.cuGraphAddChildGraphNode(&mut node, parent, core::ptr::null(), 0, graph).is(CUresult::NOT_SUPPORTED);
        any.kind = 4;
        any.of_kind.graph = CUDA_CHILD_GRAPH_NODE_PARAMS { graph, ownership: 1 };
        driver.cuGraphAddNode_v2(&mut node, parent, core::ptr::null(), core::ptr::null(), 0, &mut any).ok();
        driver.cuGraphDestroy(graph).is(CUresult::INVALID_VALUE);
        driver.cuMemFreeAsync(parameters.dptr, stream).ok();
        driver.cuGraphInstantiateWithFlags(&mut exec, parent, 0).ok();
        driver.cuGraphLaunch(exec, stream).ok();
        driver.cuStreamSynchronize(stream).ok();
        assert_eq!(graph_pool(&driver), (1024 + PIECE, 2 * PIECE));
    });
}

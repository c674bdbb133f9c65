//! Graphs that a program builds node by node.

use std::ffi::c_void;
use std::ptr;
use std::time::Instant;

use aliquot_abi::cuda::{CUDA_KERNEL_NODE_PARAMS_V1, CUgraph, CUgraphExec, CUgraphNode};

use crate::cuda::call;
use crate::findings::Findings;
use crate::scene::Scene;

const NODES: usize = 3;
const LAUNCHES: u64 = 10;
const SPIN_NS: u64 = 1_000_000;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let (spin, stream) = (cuda.kernel(c"spin_ns")?, cuda.stream()?);
    let (mut graph, mut exec) = (CUgraph::NULL, CUgraphExec::NULL);
    let mut duration_ns = SPIN_NS;
    let mut parameters: [*mut c_void; 1] = [(&raw mut duration_ns).cast()];
    let node = CUDA_KERNEL_NODE_PARAMS_V1 {
        func: spin.0,
        grid_dim: [1; 3],
        block_dim: [1; 3],
        shared_mem_bytes: 0,
        kernel_params: parameters.as_mut_ptr(),
        extra: ptr::null_mut(),
    };
    // SAFETY: outputs are live locals; the driver copies the node's parameters, one of eight bytes, in each call.
    unsafe {
        call!(cuda, cuGraphCreate(&mut graph, 0))?;
        let mut before = CUgraphNode::NULL;
        for index in 0..NODES {
            let mut added = CUgraphNode::NULL;
            call!(cuda, cuGraphAddKernelNode(&mut added, graph, &before, usize::from(index > 0), &node))?;
            before = added;
        }
        call!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        let start = Instant::now();
        let launched =
            (0..LAUNCHES).try_for_each(|_| call!(cuda, cuGraphLaunch(exec, stream))).and_then(|()| cuda.finish(stream));
        let took = start.elapsed();
        findings.expect_ok(format!("a graph of {NODES} kernels is launched {LAUNCHES} times"), launched);
        let least_ns = (NODES as u64 * LAUNCHES * SPIN_NS) as u128;
        findings.expect(
            "all its kernels run",
            took.as_nanos() >= least_ns * 99 / 100,
            format!("{} ms", took.as_millis()),
        );
        findings.expect_ok("it can be destroyed", call!(cuda, cuGraphExecDestroy(exec)));
        findings.expect_ok("and what it was made from", call!(cuda, cuGraphDestroy(graph)));
    }
    Ok(())
}

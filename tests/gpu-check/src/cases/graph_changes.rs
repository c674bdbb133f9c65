//! Graphs of several kinds of nodes, copied, nested, and changed between their runs.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use aliquot_abi::cuda::{
    CUDA_HOST_NODE_PARAMS, CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUgraph, CUgraphExec, CUgraphNode, CUstream,
};

use crate::cuda::{Cuda, Done, call};
use crate::findings::Findings;
use crate::scene::{Scene, answer_name};

const BYTES: usize = 64 << 10;
const RUNS: u32 = 20;

/// The memory and counter that a graph works on.
struct Work<'a> {
    cuda: &'a Cuda,
    stream: CUstream,
    address: CUdeviceptr,
    calls: &'a AtomicU32,
}

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let calls = AtomicU32::new(0);
    let work = Work { cuda, stream: cuda.stream()?, address: cuda.allocate(BYTES as u64)?, calls: &calls };
    let graph = work.graph(0x11)?;
    let exec = instantiate(cuda, graph)?;
    for _ in 0..RUNS {
        work.launch(exec)?;
    }
    work.expect(findings, "every run does all of its work", 0x11, RUNS)?;

    let changed = work.graph(0x22)?;
    let mut error_node = CUgraphNode::NULL;
    // SAFETY: the outputs are live and as large as the driver's.
    let updated = unsafe {
        match cuda.driver.cuGraphExecUpdate {
            Some(_) => call!(cuda, cuGraphExecUpdate(exec, changed, &mut error_node, &mut 0)),
            None => call!(cuda, cuGraphExecUpdate_v2(exec, changed, [0_u64; 3].as_mut_ptr().cast())),
        }
    };
    findings.answer("a graph of the same shape takes its place", answer_name(&updated));
    work.launch(exec)?;
    let pattern = if updated.is_ok() { 0x22 } else { 0x11 };
    work.expect(findings, "a changed graph does what it was changed to", pattern, 1)?;

    let (mut copy, mut parent, mut node) = (CUgraph::NULL, CUgraph::NULL, CUgraphNode::NULL);
    // SAFETY: the outputs are live locals.
    unsafe {
        call!(cuda, cuGraphClone(&mut copy, graph))?;
        call!(cuda, cuGraphDestroy(graph))?;
        call!(cuda, cuGraphCreate(&mut parent, 0))?;
        call!(cuda, cuGraphAddChildGraphNode(&mut node, parent, ptr::null(), 0, copy))?;
    }
    let nested = instantiate(cuda, parent)?;
    work.launch(nested)?;
    work.expect(findings, "a copy of a graph runs inside another", 0x11, 1)?;

    for exec in [exec, nested] {
        // SAFETY: the graphs do not run any more.
        findings.expect_ok("it can be destroyed", unsafe { call!(cuda, cuGraphExecDestroy(exec)) });
    }
    for graph in [changed, copy, parent] {
        // SAFETY: nothing uses them any more.
        unsafe { call!(cuda, cuGraphDestroy(graph))? };
    }
    cuda.free(work.address)?;
    Ok(())
}

impl Work<'_> {
    /// A graph that sets every byte to `pattern`, and then counts a call on the host.
    fn graph(&self, pattern: u8) -> Done<CUgraph> {
        let cuda = self.cuda;
        let (mut graph, mut set, mut host) = (CUgraph::NULL, CUgraphNode::NULL, CUgraphNode::NULL);
        let bytes = CUDA_MEMSET_NODE_PARAMS {
            dst: self.address,
            pitch: 0,
            value: pattern.into(),
            element_size: 1,
            width: BYTES,
            height: 1,
        };
        let function = CUDA_HOST_NODE_PARAMS {
            callback: Some(count),
            user_data: ptr::from_ref(self.calls).cast_mut().cast::<c_void>(),
        };
        // SAFETY: the outputs are live locals; the counter outlives the graph's runs, each of which is waited for.
        unsafe {
            call!(cuda, cuGraphCreate(&mut graph, 0))?;
            call!(cuda, cuGraphAddMemsetNode(&mut set, graph, ptr::null(), 0, &bytes, cuda.context))?;
            call!(cuda, cuGraphAddHostNode(&mut host, graph, &set, 1, &function))?;
        }
        Ok(graph)
    }

    /// Runs a graph to its end.
    fn launch(&self, exec: CUgraphExec) -> Done {
        let cuda = self.cuda;
        // SAFETY: the driver checks the handles.
        unsafe { call!(cuda, cuGraphLaunch(exec, self.stream))? };
        cuda.finish(self.stream)
    }

    /// Records whether the memory contains `pattern`, and whether the host was called `calls` times since the last
    /// check.
    fn expect(&self, findings: &mut Findings, what: &str, pattern: u8, calls: u32) -> Done {
        let mut bytes = vec![0; BYTES];
        self.cuda.read(&mut bytes, self.address, self.stream)?;
        let called = self.calls.swap(0, Ordering::AcqRel);
        let holds = bytes.iter().all(|&byte| byte == pattern) && called == calls;
        findings.expect(what, holds, format!("called {called} times of {calls}; the first byte is {:#x}", bytes[0]));
        Ok(())
    }
}

/// Adds one to the given counter.
unsafe extern "C" fn count(calls: *mut c_void) {
    // SAFETY: the graph hands over the counter of `Work`, which outlives its runs.
    unsafe { &*calls.cast::<AtomicU32>() }.fetch_add(1, Ordering::AcqRel);
}

fn instantiate(cuda: &Cuda, graph: CUgraph) -> Done<CUgraphExec> {
    let mut exec = CUgraphExec::NULL;
    // SAFETY: the output is a live local.
    unsafe { call!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph, 0))? };
    Ok(exec)
}

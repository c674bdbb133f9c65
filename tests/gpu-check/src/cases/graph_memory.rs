//! Memory that a graph allocates: taken when the graph runs, and kept for its next run.

use std::ptr;

use aliquot_abi::cuda::{CUdeviceptr, CUgraph, CUgraphExec, CUresult, CUstream, c_uint};

use crate::cuda::{Cuda, Done, call};
use crate::findings::Findings;
use crate::scene::Scene;
use crate::way::Way;

const BYTES: u64 = 128 << 20;
const POOLS_SUPPORTED: c_uint = 115;
const CAPTURE_THREAD_LOCAL: c_uint = 1;
/// `CUgraphMem_attribute`s.
const USED_BYTES: c_uint = 0;
const RESERVED_BYTES: c_uint = 2;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    if cuda.attribute(POOLS_SUPPORTED).unwrap_or_default() == 0 || cuda.driver.cuDeviceGraphMemTrim.is_none() {
        findings.skip("graph memory", "the device or the driver has none");
        return Ok(());
    }
    let stream = cuda.stream()?;
    let before = scene.steady_free()?;
    let (graph, nodes) = captured(cuda, stream, BYTES)?;
    findings.expect("an allocation, a set and a free are captured", nodes == 3, format!("{nodes} nodes"));
    let exec = instantiate(cuda, graph)?;
    for _ in 0..2 {
        findings.expect_ok("a graph that allocates runs", launch(cuda, exec, stream));
    }
    // Drivers differ in whether memory counts as used between two runs. Their figure of the reserve is always right.
    let (used, reserved) = (bytes(cuda, USED_BYTES)?, bytes(cuda, RESERVED_BYTES)?);
    findings.expect("no more is used than is in reserve", used <= reserved, format!("{used} of {reserved} bytes"));
    scene.expect_charged(findings, "what graphs keep is charged", before, reserved)?;
    destroy(cuda, graph, exec)?;
    // SAFETY: the device is open.
    findings.expect_ok("it can be trimmed", unsafe { call!(cuda, cuDeviceGraphMemTrim(cuda.device)) });
    scene.expect_charged(findings, "and is free again", before, bytes(cuda, RESERVED_BYTES)?)?;

    if scene.way == Way::Limited {
        beyond_the_cap(cuda, findings, stream, before)?;
        scene.expect_charged(findings, "a refused graph costs nothing", before, 0)?;
    }
    Ok(())
}

/// A graph that allocates more than the limit does not run. Any of the calls may return the error.
fn beyond_the_cap(cuda: &Cuda, findings: &mut Findings, stream: CUstream, free: u64) -> anyhow::Result<()> {
    let (graph, _) = captured(cuda, stream, free + BYTES)?;
    let answer = match instantiate(cuda, graph) {
        Ok(exec) => {
            let launched = launch(cuda, exec, stream);
            // SAFETY: the graph does not run.
            unsafe { call!(cuda, cuGraphExecDestroy(exec))? };
            launched
        }
        Err(error) => Err(error),
    };
    let refusal = answer.err().map(|error| error.result);
    findings.expect(
        "a graph cannot allocate past the cap",
        refusal == Some(CUresult::OUT_OF_MEMORY),
        format!("{} bytes with {free} free: {refusal:?}", free + BYTES),
    );
    // SAFETY: nothing uses the graph any more.
    unsafe { call!(cuda, cuGraphDestroy(graph))? };
    let small = cuda.allocate(1 << 20).and_then(|address| cuda.free(address));
    findings.expect_ok("after that other memory can be had", small);
    Ok(())
}

/// A graph that allocates, writes and frees `bytes`, and the number of its nodes.
fn captured(cuda: &Cuda, stream: CUstream, bytes: u64) -> Done<(CUgraph, usize)> {
    let (mut graph, mut address, mut nodes): (_, CUdeviceptr, _) = (CUgraph::NULL, 0, 0);
    // SAFETY: outputs are live locals; the driver checks the handles.
    unsafe {
        call!(cuda, cuStreamBeginCapture_v2(stream, CAPTURE_THREAD_LOCAL))?;
        let captured = call!(cuda, cuMemAllocAsync(&mut address, bytes as usize, stream))
            .and_then(|()| cuda.set(address, 1, bytes as usize, stream))
            .and_then(|()| call!(cuda, cuMemFreeAsync(address, stream)));
        call!(cuda, cuStreamEndCapture(stream, &mut graph))?;
        captured?;
        call!(cuda, cuGraphGetNodes(graph, ptr::null_mut(), &mut nodes))?;
    }
    Ok((graph, nodes))
}

fn instantiate(cuda: &Cuda, graph: CUgraph) -> Done<CUgraphExec> {
    let mut exec = CUgraphExec::NULL;
    // SAFETY: the output is a live local.
    unsafe { call!(cuda, cuGraphInstantiateWithFlags(&mut exec, graph, 0))? };
    Ok(exec)
}

fn launch(cuda: &Cuda, exec: CUgraphExec, stream: CUstream) -> Done {
    // SAFETY: the driver checks the handles.
    unsafe { call!(cuda, cuGraphLaunch(exec, stream))? };
    cuda.finish(stream)
}

fn destroy(cuda: &Cuda, graph: CUgraph, exec: CUgraphExec) -> Done {
    // SAFETY: neither is used any more.
    unsafe {
        call!(cuda, cuGraphExecDestroy(exec))?;
        call!(cuda, cuGraphDestroy(graph))
    }
}

/// An attribute of the device's graph memory, in bytes.
fn bytes(cuda: &Cuda, attribute: c_uint) -> Done<u64> {
    let mut value = 0_u64;
    // SAFETY: each of these attributes is a number of 64 bits.
    unsafe { call!(cuda, cuDeviceGetGraphMemAttribute(cuda.device, attribute, (&raw mut value).cast()))? };
    Ok(value)
}

//! The end of a context frees all its memory.

use aliquot_abi::cuda::CUcontext;

use crate::cuda::call;
use crate::findings::Findings;
use crate::scene::{ROUNDING_BYTES, Scene, answer_name, is_about};
use crate::way::Way;

const BYTES: u64 = 256 << 20;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let before = scene.settled_free()?;
    let mut context = CUcontext::NULL;
    // SAFETY: the output is a live local; the new context is current afterwards.
    unsafe { call!(cuda, cuCtxCreate_v2(&mut context, 0, cuda.device))? };
    findings.expect_ok("a context of one's own can allocate", cuda.allocate(BYTES));
    // SAFETY: nothing uses the context any more.
    findings.expect_ok("it can be destroyed", unsafe { call!(cuda, cuCtxDestroy_v2(context)) });
    cuda.bind()?;
    expect_free_again(scene, findings, "what a destroyed context held is free again", before)?;

    let mut context = CUcontext::NULL;
    // SAFETY: as above.
    unsafe { call!(cuda, cuCtxCreate_v2(&mut context, 0, cuda.device))? };
    cuda.allocate(BYTES)?;
    // SAFETY: as above.
    let detached = unsafe { call!(cuda, cuCtxDetach(context)) };
    findings.answer("a context is detached from", answer_name(&detached));
    cuda.bind()?;
    if detached.is_ok() {
        expect_free_again(scene, findings, "what a context held that nobody is attached to is free again", before)?;
    } else {
        // SAFETY: nothing uses the context any more.
        unsafe { call!(cuda, cuCtxDestroy_v2(context))? };
    }

    several_at_once(scene, findings, before)?;

    cuda.allocate(BYTES)?;
    let mut context = CUcontext::NULL;
    // SAFETY: nothing uses the context's handles any more; the output is a live local.
    unsafe {
        findings.expect_ok("the primary context can be reset", call!(cuda, cuDevicePrimaryCtxReset_v2(cuda.device)));
        call!(cuda, cuDevicePrimaryCtxRetain(&mut context, cuda.device))?;
        call!(cuda, cuCtxSetCurrent(context))?;
    }
    expect_free_again(scene, findings, "what the primary context held is free again", before)
}

/// The end of one context does not affect the memory of others, and its own addresses become invalid.
fn several_at_once(scene: &Scene, findings: &mut Findings, before: u64) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let mut contexts = [CUcontext::NULL; 2];
    let mut addresses = [0; 2];
    for (context, address) in contexts.iter_mut().zip(&mut addresses) {
        // SAFETY: the output is a live local.
        unsafe { call!(cuda, cuCtxCreate_v2(context, 0, cuda.device))? };
        *address = cuda.allocate(BYTES)?;
    }
    // SAFETY: nothing uses the context any more.
    unsafe { call!(cuda, cuCtxDestroy_v2(contexts[0]))? };
    let freed = cuda.free(addresses[0]);
    findings.answer("memory of a destroyed context, given back", answer_name(&freed));
    if scene.way == Way::Limited {
        let free = cuda.memory()?.0;
        let saw = format!("{free} bytes free, {before} before");
        findings.expect("the other context's memory stays charged", free + BYTES <= before + ROUNDING_BYTES, saw);
    }
    findings.expect_ok("the other context's memory can be given back", cuda.free(addresses[1]));
    // SAFETY: nothing uses the context any more.
    unsafe { call!(cuda, cuCtxDestroy_v2(contexts[1]))? };
    cuda.bind()?;
    expect_free_again(scene, findings, "after both contexts all is free again", before)
}

fn expect_free_again(scene: &Scene, findings: &mut Findings, what: &str, before: u64) -> anyhow::Result<()> {
    // In the other ways the figures are those of the whole device, which other programs may use.
    if scene.way == Way::Limited {
        let free = scene.wait_for_free(before)?;
        // A new context can be smaller than the old one with its modules, so more may be free.
        findings.expect(what, free >= before || is_about(free, before), format!("{free} bytes, {before} before"));
    }
    Ok(())
}

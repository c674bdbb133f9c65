//! The end of a context frees all that it held.

use aliquot_abi::cuda::CUcontext;

use crate::cuda::call;
use crate::findings::Findings;
use crate::scene::{Scene, is_about};
use crate::way::Way;

const BYTES: u64 = 256 << 20;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let before = scene.steady_free()?;
    let mut context = CUcontext::NULL;
    // SAFETY: the output is a live local; the new context is current afterwards.
    unsafe { call!(cuda, cuCtxCreate_v2(&mut context, 0, cuda.device))? };
    findings.expect_ok("a context of one's own can allocate", cuda.allocate(BYTES));
    // SAFETY: nothing uses the context any more.
    findings.expect_ok("it can be destroyed", unsafe { call!(cuda, cuCtxDestroy_v2(context)) });
    cuda.bind()?;
    expect_free_again(scene, findings, "what a destroyed context held is free again", before)?;

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

fn expect_free_again(scene: &Scene, findings: &mut Findings, what: &str, before: u64) -> anyhow::Result<()> {
    // Elsewhere the whole device is seen, and others may use it.
    if scene.way == Way::Limited {
        let free = scene.wait_for_free(before)?;
        // A context that was made anew can be smaller than the one before, with its modules: more may be free.
        findings.expect(what, free >= before || is_about(free, before), format!("{free} bytes, {before} before"));
    }
    Ok(())
}

//! Invalid calls: the program must get the driver's own answers.

use std::ptr;

use aliquot_abi::cuda::{CUarray, CUcontext, CUevent, CUfunction, CUresult, CUstream};

use crate::cuda::{Done, call, result_name};
use crate::findings::Findings;
use crate::scene::Scene;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let kernel = cuda.kernel(c"nothing")?;
    let null = ptr::null_mut();
    let mut address = 0;
    let mut ask = |asked: &str, got: Done| {
        findings.answer(asked, result_name(got.map_or_else(|error| error.result, |()| CUresult::SUCCESS)));
    };
    // SAFETY: the driver documents that it checks what is wrong in these calls; other outputs are live locals.
    unsafe {
        ask("cuMemAlloc of 0 bytes", call!(cuda, cuMemAlloc_v2(&mut address, 0)));
        ask("cuMemAlloc into null", call!(cuda, cuMemAlloc_v2(ptr::null_mut(), 4096)));
        ask("cuMemAlloc of 2^62 bytes", call!(cuda, cuMemAlloc_v2(&mut address, 1 << 62)));
        ask("cuMemFree of null", call!(cuda, cuMemFree_v2(0)));
        ask("cuMemFree of an address never given", call!(cuda, cuMemFree_v2(0x1234_5600)));
        ask("cuMemAllocManaged without a flag", call!(cuda, cuMemAllocManaged(&mut address, 4096, 0)));
        ask("cuMemAllocPitch of width 0", call!(cuda, cuMemAllocPitch_v2(&mut address, &mut 0, 0, 16, 4)));
        ask("cuArrayDestroy of null", call!(cuda, cuArrayDestroy(CUarray::NULL)));
        ask("cuDeviceTotalMem of no device", call!(cuda, cuDeviceTotalMem_v2(&mut 0, 99)));
        ask(
            "cuLaunchKernel of null",
            call!(cuda, cuLaunchKernel(CUfunction::NULL, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, null, null)),
        );
        ask(
            "cuLaunchKernel of no block",
            call!(cuda, cuLaunchKernel(kernel.0, 0, 1, 1, 1, 1, 1, 0, CUstream::NULL, null, null)),
        );
        ask("cuEventRecord of null", call!(cuda, cuEventRecord(CUevent::NULL, CUstream::NULL)));
        ask("cuMemRelease of no handle", call!(cuda, cuMemRelease(0)));
        ask("cuInit with flags", call!(cuda, cuInit(7)));
        call!(cuda, cuCtxSetCurrent(CUcontext::NULL))?;
        ask("cuMemAlloc without a context", call!(cuda, cuMemAlloc_v2(&mut address, 4096)));
        ask("cuMemGetInfo without a context", call!(cuda, cuMemGetInfo_v2(&mut 0, &mut 0)));
        ask(
            "cuLaunchKernel without a context",
            call!(cuda, cuLaunchKernel(kernel.0, 1, 1, 1, 1, 1, 1, 0, CUstream::NULL, null, null)),
        );
    }
    cuda.bind()?;
    Ok(())
}

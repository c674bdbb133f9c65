//! The launch functions from before CUDA 4, where shape and parameters are set beforehand. Drivers still have them.

use std::ffi::c_int;

use aliquot_abi::cuda::c_uint;

use crate::cuda::{Cuda, Done, Kernel, call};
use crate::findings::Findings;
use crate::scene::{Scene, answer_name};

/// Size of the single parameter in bytes.
const PARAMETER_BYTES: c_uint = 8;
const LAUNCHES: usize = 200;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let kernel = cuda.kernel(c"nothing")?;
    let stream = cuda.stream()?;
    let prepared = prepare(cuda, kernel);
    findings.answer("shape and parameters", answer_name(&prepared));
    if prepared.is_err() {
        findings.skip("launches as before CUDA 4", answer_name(&prepared));
        return Ok(());
    }
    // SAFETY: the kernel's shape and its one parameter are set.
    unsafe {
        for _ in 0..LAUNCHES {
            call!(cuda, cuLaunch(kernel.0))?;
            call!(cuda, cuLaunchGrid(kernel.0, 2, 2))?;
            call!(cuda, cuLaunchGridAsync(kernel.0, 2, 2, stream))?;
        }
        findings.answer("a grid of no width", answer_name(&call!(cuda, cuLaunchGrid(kernel.0, 0, 1))));
        findings.expect_ok("their work ends", call!(cuda, cuCtxSynchronize()));
    }
    Ok(())
}

fn prepare(cuda: &Cuda, kernel: Kernel) -> Done {
    let mut value = 0_u64;
    let (x, y, z): (c_int, c_int, c_int) = (32, 1, 1);
    // SAFETY: the value is as long as is said, and copied during the call.
    unsafe {
        call!(cuda, cuFuncSetBlockShape(kernel.0, x, y, z))?;
        call!(cuda, cuFuncSetSharedSize(kernel.0, 0))?;
        call!(cuda, cuParamSetSize(kernel.0, PARAMETER_BYTES))?;
        call!(cuda, cuParamSetv(kernel.0, 0, (&raw mut value).cast(), PARAMETER_BYTES))
    }
}

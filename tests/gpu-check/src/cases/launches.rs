//! Every form of launch does its work.

use std::ffi::c_void;
use std::ptr;

use aliquot_abi::cuda::{CU_STREAM_PER_THREAD, CUstream};

use crate::cuda::{COOPERATIVE_LAUNCH, Shape, call, one_thread};
use crate::findings::Findings;
use crate::scene::Scene;

/// More launches than the driver's queue holds.
const BURST: u32 = 3000;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let kernel = cuda.kernel(c"nothing")?;
    let stream = cuda.stream()?;
    let mut value = 0_u64;
    let mut parameters: [*mut c_void; 1] = [(&raw mut value).cast()];
    let parameters = parameters.as_mut_ptr();
    let none = ptr::null_mut();
    // SAFETY: the kernel has one parameter of eight bytes, which the driver copies before each call returns.
    unsafe {
        let null = CUstream::NULL;
        findings.expect_ok(
            "cuLaunchKernel",
            call!(cuda, cuLaunchKernel(kernel.0, 1, 1, 1, 1, 1, 1, 0, stream, parameters, none)),
        );
        findings.expect_ok(
            "cuLaunchKernel into the default stream",
            call!(cuda, cuLaunchKernel(kernel.0, 1, 1, 1, 1, 1, 1, 0, null, parameters, none)),
        );
        findings.expect_ok(
            "cuLaunchKernel_ptsz into the thread's default stream",
            call!(cuda, cuLaunchKernel_ptsz(kernel.0, 1, 1, 1, 1, 1, 1, 0, null, parameters, none)),
        );
        match cuda.driver.cuLaunchKernelEx {
            Some(_) => {
                findings.expect_ok(
                    "cuLaunchKernelEx",
                    call!(cuda, cuLaunchKernelEx(&one_thread(stream), kernel.0, parameters, none)),
                );
            }
            None => findings.skip("cuLaunchKernelEx", "the driver lacks it"),
        }
        if cuda.attribute(COOPERATIVE_LAUNCH)? == 0 {
            findings.skip("cuLaunchCooperativeKernel", "the device has no cooperative launch");
        } else {
            findings.expect_ok(
                "cuLaunchCooperativeKernel",
                call!(cuda, cuLaunchCooperativeKernel(kernel.0, 1, 1, 1, 1, 1, 1, 0, stream, parameters)),
            );
        }
    }
    for stream in [stream, CU_STREAM_PER_THREAD, CUstream::NULL] {
        cuda.finish(stream)?;
    }
    let burst =
        (0..BURST).try_for_each(|_| cuda.launch(kernel, Shape::ONE, stream, 0)).and_then(|()| cuda.finish(stream));
    findings.expect_ok(format!("{BURST} launches without waiting"), burst);
    let threads = std::thread::scope(|scope| {
        let launch = || {
            cuda.bind()?;
            let stream = cuda.stream()?;
            (0..BURST / 4).try_for_each(|_| cuda.launch(kernel, Shape::ONE, stream, 0))?;
            cuda.finish(stream)
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(launch)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| "a thread panicked".to_owned())?.map_err(|error| error.to_string())
        })
    });
    findings.expect_ok("launches of four threads at once", threads);
    Ok(())
}

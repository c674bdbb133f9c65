//! Streams and events: order, time, callbacks; and the contents of memory.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use aliquot_abi::cuda::CUresult;

use crate::cuda::{Cuda, Done, Shape, call};
use crate::findings::Findings;
use crate::scene::Scene;

const BYTES: usize = 1 << 20;
const SPIN_NS: u64 = 20_000_000;

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let spin = cuda.kernel(c"spin_ns")?;
    let (first, second) = (cuda.stream()?, cuda.stream()?);
    let (begin, end) = (cuda.event()?, cuda.event()?);
    let address = cuda.allocate(BYTES as u64)?;

    cuda.set(address, 0x11, BYTES, first)?;
    cuda.record(begin, first)?;
    // SAFETY: the driver checks the handle.
    let query = unsafe {
        call!(cuda, cuLaunchHostFunc(first, Some(wait_until_asked), std::ptr::null_mut()))?;
        call!(cuda, cuStreamQuery(first))
    };
    HAS_ASKED.store(true, Ordering::Release);
    let is_busy = query.map_err(|error| error.result) == Err(CUresult::NOT_READY);
    findings.expect("a stream with work in flight is not ready", is_busy, format!("{query:?}"));
    cuda.launch(spin, Shape::ONE, first, SPIN_NS)?;
    cuda.set(address, 0x5a, BYTES, first)?;
    cuda.record(end, first)?;
    // SAFETY: the driver checks both handles.
    unsafe { call!(cuda, cuStreamWaitEvent(second, end, 0))? };
    let mut copy = vec![0; BYTES];
    cuda.read(&mut copy, address, second)?;
    findings.expect(
        "a stream that waits for an event sees what was written before it",
        copy.iter().all(|&byte| byte == 0x5a),
        format!("the first byte is {:#x}", copy[0]),
    );

    let mut elapsed_ms = 0.0;
    // SAFETY: the output is a live local; the driver checks both handles.
    unsafe { call!(cuda, cuEventElapsedTime(&mut elapsed_ms, begin, end))? };
    findings.expect(
        format!("events around a kernel of {} ms are at least so far apart", SPIN_NS / 1_000_000),
        f64::from(elapsed_ms) >= SPIN_NS as f64 / 1e6 * 0.99,
        format!("{elapsed_ms} ms"),
    );
    findings.expect_ok("a host function in a stream is called after the work before it", host_function(cuda));
    cuda.free(address)?;
    Ok(())
}

/// Whether the stream has been queried.
static HAS_ASKED: AtomicBool = AtomicBool::new(false);

/// Keeps the stream busy until it has been queried, however late the querying thread runs.
unsafe extern "C" fn wait_until_asked(_: *mut c_void) {
    while !HAS_ASKED.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Sets the given flag.
unsafe extern "C" fn note(called: *mut c_void) {
    // SAFETY: the stream hands over the flag that `host_function` passes, which outlives the call.
    unsafe { &*called.cast::<AtomicBool>() }.store(true, Ordering::Release);
}

fn host_function(cuda: &Cuda) -> Result<(), String> {
    let called = AtomicBool::new(false);
    let stream = cuda.stream().map_err(|error| error.to_string())?;
    let run = || -> Done {
        cuda.launch(cuda.kernel(c"spin_ns")?, Shape::ONE, stream, 1_000_000)?;
        // SAFETY: the flag outlives the stream's work, which is waited for below.
        unsafe { call!(cuda, cuLaunchHostFunc(stream, Some(note), (&raw const called).cast_mut().cast()))? };
        cuda.finish(stream)
    };
    run().map_err(|error| error.to_string())?;
    if called.load(Ordering::Acquire) { Ok(()) } else { Err("it was not called".to_owned()) }
}

//! The cost of a progress marker: as a write by the device, and as an event. On an H100 with driver 580.159.04 a write
//! behind a kernel of 30 us cost the host 0.8 us and the device 2.0 us.

use std::time::Instant;

use aliquot_abi::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUdeviceptr, CUevent, CUstream};

use crate::cuda::{Cuda, Done, Shape, call};
use crate::facts::median_us;
use crate::facts::registration::{Page, write_value};
use crate::findings::Findings;
use crate::overhead::median;
use crate::scene::Scene;

const ROUNDS: usize = 7;
const CALLS: usize = 2000;

/// The marker after a launch.
#[derive(Clone, Copy)]
enum Mark {
    None,
    Write(CUdeviceptr),
    Event(CUevent),
}

pub(super) fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    let page = Page::register(cuda, &tempfile::tempfile_in("/dev/shm")?)?;
    let (own, mut important, event) = (cuda.stream()?, CUstream::NULL, cuda.event()?);
    // SAFETY: the output is a live local; a context is current.
    unsafe { call!(cuda, cuStreamCreateWithPriority(&mut important, 1, -1))? };
    let streams =
        [("own", own), ("legacy", CU_STREAM_LEGACY), ("per-thread", CU_STREAM_PER_THREAD), ("prioritised", important)];
    let marks = [("no marker", Mark::None), ("a write", Mark::Write(page.address)), ("an event", Mark::Event(event))];
    for (kernel_ns, count) in [(5_000_u64, 1000), (30_000, 200)] {
        for (stream_name, stream) in streams {
            for (mark_name, mark) in marks {
                let (host_us, device_us) = launches(cuda, stream, kernel_ns, count, mark)?;
                let what = format!("kernels of {} us, {stream_name} stream, {mark_name} behind each", kernel_ns / 1000);
                findings.figure(format!("{what}: host"), host_us, "us");
                findings.figure(format!("{what}: device"), device_us, "us");
            }
        }
    }
    overlap(cuda, findings, &page)?;
    for (name, us) in [
        ("cuEventQuery", median_us(CALLS, || cuda.is_done(event).map(drop))?),
        // SAFETY: the driver checks the handle.
        ("cuStreamQuery", median_us(CALLS, || unsafe { call!(cuda, cuStreamQuery(own)) })?),
        ("cuMemGetInfo", median_us(CALLS, || cuda.memory().map(drop))?),
        ("cuMemAlloc and cuMemFree of 1 MiB", median_us(200, || cuda.free(cuda.allocate(1 << 20)?))?),
    ] {
        findings.figure(name, us, "us");
    }
    Ok(())
}

/// Duration of a launch with its marker in µs: on the host, and until all work is done.
fn launches(cuda: &Cuda, stream: CUstream, kernel_ns: u64, count: u32, mark: Mark) -> anyhow::Result<(f64, f64)> {
    let spin = cuda.kernel(c"spin_ns")?;
    let (mut host_us, mut device_us) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for number in 0..count {
            cuda.launch(spin, Shape::ONE, stream, kernel_ns)?;
            leave(cuda, stream, mark, number)?;
        }
        host_us.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(count));
        cuda.finish(stream)?;
        device_us.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    }
    Ok((median(host_us), median(device_us)))
}

fn leave(cuda: &Cuda, stream: CUstream, mark: Mark, number: u32) -> Done {
    match mark {
        Mark::None => Ok(()),
        Mark::Write(address) => write_value(cuda, stream, address, number.into()),
        Mark::Event(event) => cuda.record(event, stream),
    }
}

/// Whether markers keep kernels of two streams from running at the same time.
fn overlap(cuda: &Cuda, findings: &mut Findings, page: &Page) -> anyhow::Result<()> {
    let (spin, streams) = (cuda.kernel(c"spin_ns")?, [cuda.stream()?, cuda.stream()?]);
    for (name, mark) in [("no markers", Mark::None), ("a write behind each", Mark::Write(page.address))] {
        let mut all_us = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for number in 0..100 {
                for stream in streams {
                    cuda.launch(spin, Shape::ONE, stream, 50_000)?;
                    leave(cuda, stream, mark, number)?;
                }
            }
            streams.iter().try_for_each(|stream| cuda.finish(*stream))?;
            all_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        findings.figure(format!("two streams, each 100 kernels of 50 us, {name}"), median(all_us), "us");
    }
    Ok(())
}

//! The cost of a progress marker: as a write by the device, and as an event. On an H100 with driver 580.159.04 a write
//! behind a kernel of 30 us cost the host 0.8 us and the device 2.0 us.

use std::process::{Command, Stdio};
use std::time::Instant;

use aliquot_abi::cuda::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUdeviceptr, CUevent, CUstream};
use anyhow::Context;

use crate::cuda::{Cuda, Done, Shape, call};
use crate::facts::median_us;
use crate::facts::registration::{Page, write_value};
use crate::findings::{Figure, Findings};
use crate::overhead::median;
use crate::scene::Scene;

const ROUNDS: usize = 7;
const CALLS: usize = 2000;
/// Kernels of a graph, and the duration of each.
const GRAPH_KERNELS: u32 = 10;
const GRAPH_KERNEL_NS: u64 = 3_000;
/// The variable for the number of the device's queues that a process's streams share, and its values.
const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
const CONNECTION_COUNTS: [&str; 2] = ["1", "8"];
const STREAM_COUNTS: [usize; 2] = [2, 8];

/// The marker after a launch.
#[derive(Clone, Copy)]
pub(super) enum Mark {
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
    let spin = cuda.kernel(c"spin_ns")?;
    let marks = [("no marker", Mark::None), ("a write", Mark::Write(page.address)), ("an event", Mark::Event(event))];
    for (kernel_ns, count) in [(5_000_u64, 1000), (30_000, 200)] {
        for (stream_name, stream) in streams {
            for (mark_name, mark) in marks {
                let took = launches(cuda, stream, count, mark, || cuda.launch(spin, Shape::ONE, stream, kernel_ns))?;
                let what = format!("kernels of {} us, {stream_name} stream, {mark_name} behind each", kernel_ns / 1000);
                took.note(findings, &what);
            }
        }
    }
    let graph = cuda.graph(spin, Shape::ONE, GRAPH_KERNEL_NS, GRAPH_KERNELS)?;
    for (mark_name, mark) in marks {
        let took = launches(cuda, own, 200, mark, || cuda.launch_graph(graph, own))?;
        let kernels = format!("{GRAPH_KERNELS} kernels of {} us", GRAPH_KERNEL_NS / 1000);
        took.note(findings, &format!("graphs of {kernels}, own stream, {mark_name} behind each"));
    }
    beside_each_other(findings, None)?;
    for count in CONNECTION_COUNTS {
        beside_each_other(findings, Some(count))?;
    }
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

/// Duration of a launch with its marker in us: on the host, and until all work is done.
pub(super) struct Took {
    host_us: f64,
    device_us: f64,
}

impl Took {
    pub(super) fn note(&self, findings: &mut Findings, what: &str) {
        findings.figure(format!("{what}: host"), self.host_us, "us");
        findings.figure(format!("{what}: device"), self.device_us, "us");
    }
}

/// Times `count` launches in `stream`.
pub(super) fn launches(
    cuda: &Cuda,
    stream: CUstream,
    count: u32,
    mark: Mark,
    mut launch: impl FnMut() -> Done,
) -> anyhow::Result<Took> {
    let (mut host_us, mut device_us) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for number in 0..count {
            launch()?;
            leave(cuda, stream, mark, number)?;
        }
        host_us.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(count));
        cuda.finish(stream)?;
        device_us.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(count));
    }
    Ok(Took { host_us: median(host_us), device_us: median(device_us) })
}

fn leave(cuda: &Cuda, stream: CUstream, mark: Mark, number: u32) -> Done {
    match mark {
        Mark::None => Ok(()),
        Mark::Write(address) => write_value(cuda, stream, address, number.into()),
        Mark::Event(event) => cuda.record(event, stream),
    }
}

/// Lets a second process measure whether markers keep kernels of several streams from running at the same time. The
/// driver reads the number of `connections` when a process starts to use it.
fn beside_each_other(findings: &mut Findings, connections: Option<&str>) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["worker", "overlap"]).stdin(Stdio::null());
    match connections {
        None => command.env_remove(CONNECTIONS),
        Some(count) => command.env(CONNECTIONS, count),
    };
    let output = command.stderr(Stdio::inherit()).output().context("cannot start a second process")?;
    let seen: Findings = serde_json::from_slice(&output.stdout).context("the second process says nothing")?;
    let setting = connections.map_or(String::new(), |count| format!(", {CONNECTIONS}={count}"));
    for Figure { what, value, unit } in seen.figures {
        findings.figure(format!("{what}{setting}"), value, &unit);
    }
    Ok(())
}

/// The second process: times kernels in several streams, with markers and without.
pub(crate) fn overlap() -> anyhow::Result<()> {
    let (cuda, mut findings) = (Cuda::open()?, Findings::default());
    let page = Page::register(&cuda, &tempfile::tempfile_in("/dev/shm")?)?;
    let spin = cuda.kernel(c"spin_ns")?;
    for count in STREAM_COUNTS {
        let streams = (0..count).map(|_| cuda.stream()).collect::<Done<Vec<_>>>()?;
        for (name, mark) in [("no markers", Mark::None), ("a write behind each", Mark::Write(page.address))] {
            let mut all_us = Vec::new();
            for _ in 0..ROUNDS {
                let start = Instant::now();
                for number in 0..100 {
                    for &stream in &streams {
                        cuda.launch(spin, Shape::ONE, stream, 50_000)?;
                        leave(&cuda, stream, mark, number)?;
                    }
                }
                streams.iter().try_for_each(|stream| cuda.finish(*stream))?;
                all_us.push(start.elapsed().as_secs_f64() * 1e6);
            }
            findings.figure(format!("{count} streams, each 100 kernels of 50 us, {name}"), median(all_us), "us");
        }
    }
    println!("{}", serde_json::to_string(&findings)?);
    Ok(())
}

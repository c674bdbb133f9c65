//! A process is killed while it holds much memory: how long until another process can allocate that memory. On an H100
//! with driver 580.159.04 it took 146 ms with 60 GiB of device memory, and 3.5 s with 20 GiB of page-locked memory.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

use crate::cases::{Case, Holder, take_memory};
use crate::cuda::Cuda;
use crate::findings::Findings;
use crate::launcher::{Ended, Launcher};
use crate::part_run::PartRun;
use crate::scene::Scene;
use crate::shares::monotonic_ns;
use crate::way::{Share, Way};

/// Memory of the killed processes: name, percentage of the device's free memory, bytes of page-locked host memory.
const HOLDERS: [(&str, u64, u64); 3] = [
    ("most of the device", 75, 0),
    ("a little of it", 2, 0),
    ("a little, and page-locked memory of the host", 2, HOST_BYTES),
];
const HOST_BYTES: u64 = 20 << 30;
/// Memory of each of two slices in percent of the device's, and what a program in it leaves beside its context.
const SLICE_PERCENT: u64 = 70;
const LEFT_BYTES: u64 = 256 << 20;
const PERCENT: u64 = 100;
const TIMEOUT: Duration = Duration::from_secs(90);
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// The cases, run without a slice and in one that holds the whole device.
pub(crate) const DEATHS: &[Case] = &[Case { name: "killed", about: "a process is killed that holds much memory", run }];

fn run(scene: &Scene, findings: &mut Findings) -> anyhow::Result<()> {
    let cuda = &scene.cuda;
    for (name, percent, host_bytes) in HOLDERS {
        // Less on a machine with little memory.
        let host_bytes = host_bytes.min(available_host_bytes() / 4);
        let free = scene.settled_free()?;
        let bytes = free / PERCENT * percent;
        let mut holder = Holder::start(bytes, host_bytes)?;
        let beside = scene.settled_free()?;
        // So much that it is available only when the holder's memory is.
        let wanted = (beside + (free - beside) / 2).min(free - (free - beside) / 4);
        let what = format!("{name} ({} MiB, {} MiB of the host)", bytes >> 20, host_bytes >> 20);
        if let Ok(address) = cuda.allocate(wanted) {
            cuda.free(address)?;
            findings.expect(format!("{what}: is held"), false, format!("{wanted} bytes were given beside it"));
            continue;
        }
        let killed = Instant::now();
        holder.kill()?;
        findings.figure(
            format!("{what}: killed until it can be waited for"),
            killed.elapsed().as_secs_f64() * 1e3,
            "ms",
        );
        let address = loop {
            match cuda.allocate(wanted) {
                Ok(address) => break address,
                Err(_) if killed.elapsed() < TIMEOUT => std::thread::sleep(LOOK_INTERVAL),
                Err(error) => bail!("{what}: still not free after {} s: {error}", TIMEOUT.as_secs()),
            }
        };
        findings.figure(
            format!("{what}: killed until another can have it"),
            killed.elapsed().as_secs_f64() * 1e3,
            "ms",
        );
        cuda.free(address)?;
        findings.expect(format!("{what}: another process can have it"), true, "");
    }
    Ok(())
}

/// A process in a slice is killed, and then a program in a new slice takes memory of which the killed process held a
/// part. The node manager has taken the slice back at once, while the driver may still be freeing the memory.
pub(crate) fn between_slices(run: &mut PartRun) {
    for (name, host_bytes) in [("a killed process", 0), ("a killed process with page-locked memory", HOST_BYTES)] {
        let what = format!("{name}, and a new slice");
        if !run.begins(&what) {
            continue;
        }
        let mut findings = Findings::default();
        let host_bytes = host_bytes.min(available_host_bytes() / 4);
        if let Err(error) = between_two(&run.launcher, run.report.device.memory_bytes, host_bytes, &mut findings) {
            findings.expect("it runs to its end", false, format!("{error:#}"));
        }
        run.add(&what, Way::Limited, findings);
    }
}

fn between_two(launcher: &Launcher, memory_bytes: u64, host_bytes: u64, findings: &mut Findings) -> anyhow::Result<()> {
    let share = Share { core_percent: 50, core_limit_percent: 50, memory: format!("{SLICE_PERCENT}%") };
    // On any but the smallest devices there is no room for this twice.
    let bytes = (memory_bytes / PERCENT * SLICE_PERCENT).saturating_sub(2 * launcher.limits.context_bytes + LEFT_BYTES);
    let [bytes, host_bytes] = [bytes, host_bytes].map(|bytes| bytes.to_string());
    let Ended { said, complained, .. } =
        launcher.start(Some(&share), &["hold-and-die", &bytes, &host_bytes])?.ended()?;
    let killed_ns: u64 =
        serde_json::from_str(&said).with_context(|| format!("the first program says {said:?} and {complained:?}"))?;
    let since = |ns: u64| (ns - killed_ns) as f64 / 1e6;
    findings.figure("killed until its slice is gone", since(monotonic_ns()?), "ms");
    let taken: Taken = launcher.run(Some(&share), &["take-when-free", &bytes, &killed_ns.to_string()])?;
    findings.figure("killed until a program in a new slice asks for the memory", taken.asked_ms, "ms");
    findings.figure("killed until it has the memory", taken.taken_ms, "ms");
    findings.figure("refusals until then", taken.refusals as f64, "");
    findings.expect("a program in a new slice can have the memory", true, "");
    Ok(())
}

/// What [`take_when_free`] saw.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Taken {
    /// Milliseconds until the first request, and until the memory was given.
    asked_ms: f64,
    taken_ms: f64,
    refusals: u32,
}

/// The first program's process: takes memory, says what time it is, and is killed.
pub(crate) fn hold_and_die(bytes: u64, host_bytes: u64) -> anyhow::Result<()> {
    let cuda = Cuda::open()?;
    // What a killed process held before may not be free yet.
    wait_for(&cuda, bytes)?;
    take_memory(&cuda, 0, host_bytes)?;
    println!("{}", monotonic_ns()?);
    bail!("SIGKILL did not end this process: {:?}", raise(Signal::SIGKILL))
}

/// The second program's process: asks for memory until it is given.
pub(crate) fn take_when_free(bytes: u64, since_ns: u64) -> anyhow::Result<Taken> {
    let cuda = Cuda::open()?;
    let passed_ms = || anyhow::Ok((monotonic_ns()? - since_ns) as f64 / 1e6);
    let asked_ms = passed_ms()?;
    let refusals = wait_for(&cuda, bytes)?;
    Ok(Taken { asked_ms, taken_ms: passed_ms()?, refusals })
}

/// Asks for memory until it is given. Returns the number of refusals.
fn wait_for(cuda: &Cuda, bytes: u64) -> anyhow::Result<u32> {
    let (start, mut refusals) = (Instant::now(), 0);
    loop {
        match cuda.allocate(bytes) {
            Ok(_) => return Ok(refusals),
            Err(_) if start.elapsed() < TIMEOUT => refusals += 1,
            Err(error) => bail!("still not free after {} s: {error}", TIMEOUT.as_secs()),
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// The host's available memory in bytes.
fn available_host_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

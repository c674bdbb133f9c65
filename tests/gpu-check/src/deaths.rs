//! A process is killed while it holds much memory: how long until another process can allocate that memory. On an H100
//! with driver 580.159.04 it took 146 ms with 60 GiB of device memory, and 3.5 s with 20 GiB of page-locked memory.

use std::time::{Duration, Instant};

use anyhow::bail;

use crate::cases::{Case, Holder};
use crate::findings::Findings;
use crate::scene::Scene;

/// Memory of the killed processes: name, percentage of the device's free memory, bytes of page-locked host memory.
const HOLDERS: [(&str, u64, u64); 3] = [
    ("most of the device", 75, 0),
    ("a little of it", 2, 0),
    ("a little, and page-locked memory of the host", 2, 20 << 30),
];
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

/// The host's available memory in bytes.
fn available_host_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

//! Shares of device time: what a slice gets, measured by the work that is done in it.
//!
//! A share is the rate at which a worker's kernels complete, as a part of the rate at which the same kernels complete without
//! a slice on an idle device. So neither the clock of the device nor the time between kernels matters.

use std::collections::VecDeque;
use std::ffi::CString;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::cuda::{Cuda, Shape};
use crate::launcher::{Launcher, Running};
use crate::way::Share;

/// Kernels that are waited for together last about so long.
const BATCH_NS: u64 = 1_000_000;
/// Batches in flight.
const BATCHES: usize = 4;
/// Before the measurement begins, the load runs so long.
const WARM_UP: Duration = Duration::from_secs(1);
/// After it ends, it runs on so long, so that who is measured beside it is never alone.
const COOL_DOWN: Duration = Duration::from_millis(500);
/// Memory of each slice; time is what is looked at.
const MEMORY: &str = "25%";

/// A load on the device: what a worker is told.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// The kernel.
    #[arg(long)]
    kernel: String,
    /// Its parameter.
    #[arg(long)]
    parameter: u64,
    /// Its blocks of 256 threads; 0: one thread.
    #[arg(long)]
    blocks: u32,
    /// About how long it takes alone, in nanoseconds.
    #[arg(long)]
    kernel_ns: u64,
    /// `CLOCK_MONOTONIC` in nanoseconds at which to begin.
    #[arg(long)]
    start_ns: u64,
    /// How long to measure, in nanoseconds.
    #[arg(long)]
    window_ns: u64,
}

/// What a load did in its window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Kernels between the first and the last completion that was seen.
    kernels: u64,
    /// Time between these two, in nanoseconds.
    elapsed_ns: u64,
}

impl Done {
    fn kernels_per_second(self) -> f64 {
        self.kernels as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }
}

impl Load {
    /// Runs the load, in a worker.
    pub(crate) fn run(&self) -> anyhow::Result<Done> {
        let cuda = Cuda::open()?;
        let kernel = cuda.kernel(&CString::new(self.kernel.as_str())?)?;
        let stream = cuda.stream()?;
        let shape = if self.blocks == 0 { Shape::ONE } else { Shape { blocks: self.blocks, threads: 256 } };
        let batch = (BATCH_NS / self.kernel_ns.max(1)).max(1);
        let mut idle = (0..BATCHES).map(|_| cuda.event()).collect::<Result<Vec<_>, _>>()?;
        let mut recorded = VecDeque::new();
        let wait = self.start_ns.checked_sub(monotonic_ns()?).context("the worker was not ready in time")?;
        std::thread::sleep(Duration::from_nanos(wait));

        let from_ns = self.start_ns + WARM_UP.as_nanos() as u64;
        let to_ns = from_ns + self.window_ns;
        let (mut first_ns, mut last_ns, mut kernels) = (None, 0, 0);
        loop {
            let now_ns = monotonic_ns()?;
            let ends = now_ns > to_ns + COOL_DOWN.as_nanos() as u64;
            if let (false, Some(event)) = (ends, idle.pop()) {
                (0..batch).try_for_each(|_| cuda.launch(kernel, shape, stream, self.parameter))?;
                cuda.record(event, stream)?;
                recorded.push_back(event);
                continue;
            }
            let Some(event) = recorded.pop_front() else { break };
            cuda.wait(event)?;
            idle.push(event);
            let now_ns = monotonic_ns()?;
            if now_ns < from_ns || now_ns > to_ns {
                continue;
            }
            match first_ns {
                None => first_ns = Some(now_ns),
                Some(_) => kernels += batch,
            }
            last_ns = now_ns;
        }
        let first_ns = first_ns.context("no kernel completed in the window")?;
        if kernels == 0 {
            bail!("only one kernel completed in the window");
        }
        Ok(Done { kernels, elapsed_ns: last_ns - first_ns })
    }

    fn args(&self) -> Vec<String> {
        let named = [
            ("--kernel", self.kernel.clone()),
            ("--parameter", self.parameter.to_string()),
            ("--blocks", self.blocks.to_string()),
            ("--kernel-ns", self.kernel_ns.to_string()),
            ("--start-ns", self.start_ns.to_string()),
            ("--window-ns", self.window_ns.to_string()),
        ];
        std::iter::once("load".to_owned())
            .chain(named.into_iter().flat_map(|(name, value)| [name.to_owned(), value]))
            .collect()
    }
}

fn monotonic_ns() -> anyhow::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

/// A share that was asked for, and what came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// What ran.
    pub(crate) load: String,
    /// What ran beside it; empty: nothing.
    pub(crate) beside: String,
    /// The share in percent that its slice has.
    pub(crate) wanted_percent: f64,
    /// The work it did, in percent of what it does alone without a slice.
    pub(crate) measured_percent: f64,
}

/// How to measure.
pub(crate) struct Plan {
    /// How long to measure each share.
    pub(crate) window: Duration,
    /// How long a worker may take until it is ready.
    pub(crate) lead: Duration,
    /// Durations of kernels and shares of a slice that is alone.
    pub(crate) alone: Vec<(u64, u32)>,
    /// Durations of kernels of two slices that share the device 30/70.
    pub(crate) pairs: Vec<u64>,
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

impl Plan {
    /// A plan that takes minutes, or with `quick` less than one.
    pub(crate) fn new(quick: bool, lead: Duration) -> Plan {
        if quick {
            let window = Duration::from_secs(3);
            return Plan { window, lead, alone: vec![(MS, 30), (20 * MS, 50)], pairs: vec![MS] };
        }
        let kernels = [50 * US, MS, 20 * MS, 200 * MS];
        let alone =
            kernels.iter().flat_map(|&kernel_ns| [10, 30, 50, 80].map(|percent| (kernel_ns, percent))).collect();
        Plan { window: Duration::from_secs(10), lead, alone, pairs: kernels.to_vec() }
    }

    /// Measures all; `progress` is told what comes next.
    pub(crate) fn measure(&self, launcher: &Launcher, progress: impl Fn(&str)) -> anyhow::Result<Vec<Measured>> {
        let mut measured = Vec::new();
        let mut durations: Vec<u64> =
            self.alone.iter().map(|&(kernel_ns, _)| kernel_ns).chain(self.pairs.iter().copied()).collect();
        durations.sort_unstable();
        durations.dedup();
        for kernel_ns in durations {
            let load = spin(kernel_ns);
            let name = format!("kernels of {}", duration(kernel_ns));
            progress(&name);
            let full = self.rates(launcher, &load, &[None])?[0];
            let percents =
                self.alone.iter().filter(|&&(alone_ns, _)| alone_ns == kernel_ns).map(|&(_, percent)| vec![percent]);
            let pairs = self.pairs.iter().filter(|&&pair_ns| pair_ns == kernel_ns).map(|_| vec![30, 70]);
            for percents in percents.chain(pairs).collect::<Vec<_>>() {
                measured.extend(self.shares(launcher, &load, &name, full, &percents)?);
            }
        }
        progress("halves of arithmetic");
        let load = self.arithmetic(launcher)?;
        let full = self.rates(launcher, &load, &[None])?[0];
        measured.extend(self.shares(
            launcher,
            &load,
            &format!("arithmetic, {} a kernel", duration(load.kernel_ns)),
            full,
            &[50, 50],
        )?);
        Ok(measured)
    }

    fn shares(
        &self,
        launcher: &Launcher,
        load: &Load,
        name: &str,
        full: f64,
        percents: &[u32],
    ) -> anyhow::Result<Vec<Measured>> {
        let shares: Vec<_> =
            percents.iter().map(|&percent| Share { core_percent: percent, memory: MEMORY.to_owned() }).collect();
        let rates = self.rates(launcher, load, &shares.iter().map(Some).collect::<Vec<_>>())?;
        let measured = rates.iter().enumerate().map(|(index, rate)| {
            let others = percents.iter().enumerate().filter(|&(other, _)| other != index);
            Measured {
                load: name.to_owned(),
                beside: others.map(|(_, percent)| format!("{percent} %")).collect(),
                wanted_percent: f64::from(percents[index]),
                measured_percent: rate / full * 100.0,
            }
        });
        Ok(measured.collect())
    }

    /// Kernels per second of `load` in each of `shares`, all at once.
    fn rates(&self, launcher: &Launcher, load: &Load, shares: &[Option<&Share>]) -> anyhow::Result<Vec<f64>> {
        let start_ns = monotonic_ns()? + self.lead.as_nanos() as u64;
        let args = Load { start_ns, window_ns: self.window.as_nanos() as u64, ..load.clone() }.args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let workers = shares.iter().map(|share| launcher.start(*share, &args)).collect::<anyhow::Result<Vec<_>>>()?;
        workers.into_iter().map(Running::answer::<Done>).map(|done| Ok(done?.kernels_per_second())).collect()
    }

    /// A kernel of arithmetic that takes about a millisecond alone: with as many blocks as that needs on this device.
    fn arithmetic(&self, launcher: &Launcher) -> anyhow::Result<Load> {
        let mut load = Load {
            kernel: "multiply_add".to_owned(),
            parameter: 20_000,
            blocks: 4096,
            kernel_ns: MS,
            start_ns: 0,
            window_ns: 0,
        };
        let short = Plan { window: Duration::from_secs(1), lead: self.lead, alone: Vec::new(), pairs: Vec::new() };
        // The first measurement leads near it, the second says what it has become.
        for _ in 0..2 {
            let kernel_ns = 1e9 / short.rates(launcher, &load, &[None])?[0];
            load.blocks = (f64::from(load.blocks) * MS as f64 / kernel_ns).clamp(1.0, 1e6) as u32;
        }
        Ok(load)
    }
}

fn spin(kernel_ns: u64) -> Load {
    Load { kernel: "spin_ns".to_owned(), parameter: kernel_ns, blocks: 0, kernel_ns, start_ns: 0, window_ns: 0 }
}

fn duration(ns: u64) -> String {
    if ns < MS { format!("{} µs", ns / US) } else { format!("{} ms", ns / MS) }
}

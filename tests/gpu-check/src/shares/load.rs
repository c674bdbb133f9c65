//! The worker: a program that keeps the device busy and counts its completed work.

use std::collections::VecDeque;
use std::ffi::CString;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use aliquot_abi::cuda::{CUdeviceptr, CUevent, CUgraphExec, CUstream};
use anyhow::{Context, bail};
use clap::Args;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::cuda::{Cuda, Kernel, Shape};
use crate::shares::{MS, SECOND_NS};

/// Approximate duration of a batch: the kernels that are waited for together.
const BATCH_NS: u64 = MS;
/// Batches in flight.
const BATCHES: usize = 4;
/// How long the load runs before the measurement.
pub(super) const WARM_UP_NS: u64 = SECOND_NS;
/// How long the load runs on after the measurement, so that other measured loads are never alone.
pub(super) const COOL_DOWN_NS: u64 = SECOND_NS / 2;
/// Work is counted separately for pieces of time of this length.
pub(super) const PIECE_NS: u64 = SECOND_NS / 10;

/// A load on the device: the arguments of a worker.
#[derive(Args, Clone, PartialEq, Debug)]
pub(crate) struct Load {
    /// The kernel.
    #[arg(long)]
    pub(super) kernel: String,
    /// Its parameters, used in turn.
    #[arg(long, value_delimiter = ',')]
    pub(super) parameters: Vec<u64>,
    /// Its blocks of 256 threads; 0: one thread.
    #[arg(long, default_value_t = 0)]
    pub(super) blocks: u32,
    /// Approximate duration of each kernel alone, in nanoseconds.
    #[arg(long)]
    pub(super) kernel_ns: u64,
    /// Wait for each kernel or graph before launching the next.
    #[arg(long)]
    pub(super) waits: bool,
    /// Streams, used in turn.
    #[arg(long, default_value_t = 1)]
    pub(super) streams: usize,
    /// Launch graphs with this number of kernels instead of kernels; 0: no graphs.
    #[arg(long, default_value_t = 0)]
    pub(super) graph: u32,
    /// Number of processes that each run this load.
    #[arg(long, default_value_t = 1)]
    pub(super) processes: usize,
    /// The host's own work before each launch, in nanoseconds.
    #[arg(long, default_value_t = 0)]
    pub(super) gap_ns: u64,
    /// Poll for the end of a batch instead of waiting for it.
    #[arg(long)]
    pub(super) polls: bool,
    /// Copy this number of bytes within the device instead of each kernel; 0: launch kernels.
    #[arg(long, default_value_t = 0)]
    pub(super) copy_bytes: u64,
    /// Set this number of bytes instead of each kernel; 0: launch kernels.
    #[arg(long, default_value_t = 0)]
    pub(super) set_bytes: u64,
    /// Open the device and do nothing.
    #[arg(long)]
    pub(super) idle: bool,
    /// `CLOCK_MONOTONIC` in nanoseconds at which to begin.
    #[arg(long, default_value_t = 0)]
    pub(super) start_ns: u64,
    /// How long to measure, in nanoseconds.
    #[arg(long, default_value_t = 0)]
    pub(super) window_ns: u64,
}

/// The work done by a load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Work {
    /// Kernels per second, between the first and the last completion seen in the window.
    pub(super) kernels_per_second: f64,
    /// Kernels completed in each piece of time since the beginning, including the warm-up.
    pub(super) pieces: Vec<u64>,
}

impl Work {
    fn add(&mut self, other: &Work) {
        self.kernels_per_second += other.kernels_per_second;
        self.pieces.resize(self.pieces.len().max(other.pieces.len()), 0);
        self.pieces.iter_mut().zip(&other.pieces).for_each(|(sum, piece)| *sum += piece);
    }
}

/// The handles that a load uses.
struct Prepared {
    kernel: Kernel,
    graph: Option<CUgraphExec>,
    /// Memory of twice the copied bytes, or of those that are set; null if there are none.
    memory: CUdeviceptr,
}

/// Work that is queued on a stream and waited for together.
struct Batch {
    event: CUevent,
    kernels: u64,
}

impl Load {
    /// A load of kernels that spin for these durations.
    pub(super) fn spin(kernels_ns: &[u64]) -> Load {
        Load {
            kernel: "spin_ns".to_owned(),
            parameters: kernels_ns.to_vec(),
            blocks: 0,
            kernel_ns: kernels_ns.iter().sum::<u64>() / kernels_ns.len().max(1) as u64,
            waits: false,
            streams: 1,
            graph: 0,
            processes: 1,
            gap_ns: 0,
            polls: false,
            copy_bytes: 0,
            set_bytes: 0,
            idle: false,
            start_ns: 0,
            window_ns: 0,
        }
    }

    /// A description of the load.
    pub(super) fn name(&self) -> String {
        match (self.copy_bytes, self.set_bytes) {
            (0, 0) => "kernels".to_owned(),
            (0, _) => "memsets".to_owned(),
            _ => "copies".to_owned(),
        }
    }

    /// Runs the load in a worker. `None`: the worker was not ready in time.
    pub(crate) fn run(&self) -> anyhow::Result<Option<Work>> {
        if self.processes > 1 {
            return self.run_in_processes();
        }
        let cuda = Cuda::open()?;
        let kernel = cuda.kernel(&CString::new(self.kernel.as_str())?)?;
        let streams = (0..self.streams).map(|_| cuda.stream()).collect::<Result<Vec<_>, _>>()?;
        let graph =
            if self.graph > 0 { Some(cuda.graph(kernel, self.shape(), self.parameters[0], self.graph)?) } else { None };
        let bytes = self.set_bytes.max(2 * self.copy_bytes);
        let memory = if bytes > 0 { cuda.allocate(bytes)? } else { 0 };
        let prepared = Prepared { kernel, graph, memory };
        // The driver may not list a process that has not used the device. This takes a negligible time.
        cuda.finish(streams[0])?;
        let Some(wait) = self.start_ns.checked_sub(monotonic_ns()?) else { return Ok(None) };
        std::thread::sleep(Duration::from_nanos(wait));
        if self.idle {
            std::thread::sleep(Duration::from_nanos(WARM_UP_NS + self.window_ns + COOL_DOWN_NS));
            return Ok(Some(Work::default()));
        }
        self.work(&cuda, &prepared, &streams).map(Some)
    }

    fn work(&self, cuda: &Cuda, prepared: &Prepared, streams: &[CUstream]) -> anyhow::Result<Work> {
        let (from_ns, to_ns) = (self.start_ns + WARM_UP_NS, self.start_ns + WARM_UP_NS + self.window_ns);
        let in_flight = if self.waits { 1 } else { BATCHES };
        let mut idle = (0..in_flight).map(|_| cuda.event()).collect::<Result<Vec<_>, _>>()?;
        let mut recorded: VecDeque<Batch> = VecDeque::new();
        let mut pieces = vec![0; (WARM_UP_NS + self.window_ns).div_ceil(PIECE_NS) as usize];
        let (mut first_ns, mut last_ns, mut done, mut launched) = (None, 0, 0, 0);
        for stream in streams.iter().cycle() {
            let unused = if monotonic_ns()? <= to_ns + COOL_DOWN_NS { idle.pop() } else { None };
            if let Some(event) = unused {
                let kernels = self.launch_batch(cuda, prepared, *stream, &mut launched)?;
                cuda.record(event, *stream)?;
                recorded.push_back(Batch { event, kernels });
                continue;
            }
            let Some(Batch { event, kernels }) = recorded.pop_front() else { break };
            if self.polls {
                while !cuda.is_done(event)? {}
            } else {
                cuda.wait(event)?;
            }
            idle.push(event);
            let now_ns = monotonic_ns()?;
            if let Some(piece) = pieces.get_mut(((now_ns - self.start_ns) / PIECE_NS) as usize) {
                *piece += kernels;
            }
            if !(from_ns..=to_ns).contains(&now_ns) {
                continue;
            }
            match first_ns {
                None => first_ns = Some(now_ns),
                Some(_) => done += kernels,
            }
            last_ns = now_ns;
        }
        let first_ns = first_ns.context("no kernel completed in the window")?;
        if done == 0 {
            bail!("only one kernel completed in the window");
        }
        Ok(Work { kernels_per_second: done as f64 * 1e9 / (last_ns - first_ns).max(1) as f64, pieces })
    }

    /// Launches a batch. Returns its number of kernels.
    fn launch_batch(
        &self,
        cuda: &Cuda,
        prepared: &Prepared,
        stream: CUstream,
        launched: &mut usize,
    ) -> anyhow::Result<u64> {
        if let Some(graph) = prepared.graph {
            cuda.launch_graph(graph, stream)?;
            return Ok(u64::from(self.graph));
        }
        let kernels = if self.waits { 1 } else { (BATCH_NS / self.kernel_ns.max(1)).max(1) };
        // A multiple of the number of parameters, so that every batch has the same work.
        let kernels = kernels.next_multiple_of(self.parameters.len() as u64);
        for _ in 0..kernels {
            busy_for(self.gap_ns)?;
            if self.copy_bytes > 0 {
                cuda.copy(prepared.memory + self.copy_bytes, prepared.memory, self.copy_bytes, stream)?;
                continue;
            }
            if self.set_bytes > 0 {
                cuda.set(prepared.memory, 1, self.set_bytes as usize, stream)?;
                continue;
            }
            cuda.launch(prepared.kernel, self.shape(), stream, self.parameters[*launched % self.parameters.len()])?;
            *launched += 1;
        }
        Ok(kernels)
    }

    fn shape(&self) -> Shape {
        if self.blocks == 0 { Shape::ONE } else { Shape { blocks: self.blocks, threads: 256 } }
    }

    /// Runs the load in several processes, all in this process's slice.
    fn run_in_processes(&self) -> anyhow::Result<Option<Work>> {
        let one = Load { processes: 1, ..self.clone() };
        let start = || -> anyhow::Result<Child> {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("worker").args(one.args()).stdin(Stdio::null()).stdout(Stdio::piped());
            Ok(command.spawn()?)
        };
        let children = (0..self.processes).map(|_| start()).collect::<anyhow::Result<Vec<_>>>()?;
        let answer = |child: Child| -> anyhow::Result<Option<Work>> {
            let output = child.wait_with_output()?;
            if !output.status.success() {
                bail!("one of its processes ended with {}", output.status);
            }
            Ok(serde_json::from_slice(&output.stdout)?)
        };
        let works: Option<Vec<Work>> = children.into_iter().map(answer).collect::<anyhow::Result<_>>()?;
        Ok(works.map(|works| {
            let mut sum = Work::default();
            works.iter().for_each(|work| sum.add(work));
            sum
        }))
    }

    /// The worker's command line.
    pub(super) fn args(&self) -> Vec<String> {
        let parameters: Vec<String> = self.parameters.iter().map(u64::to_string).collect();
        let named = [
            ("--kernel", self.kernel.clone()),
            ("--parameters", parameters.join(",")),
            ("--blocks", self.blocks.to_string()),
            ("--kernel-ns", self.kernel_ns.to_string()),
            ("--streams", self.streams.to_string()),
            ("--graph", self.graph.to_string()),
            ("--processes", self.processes.to_string()),
            ("--gap-ns", self.gap_ns.to_string()),
            ("--copy-bytes", self.copy_bytes.to_string()),
            ("--set-bytes", self.set_bytes.to_string()),
            ("--start-ns", self.start_ns.to_string()),
            ("--window-ns", self.window_ns.to_string()),
        ];
        let flags = [("--waits", self.waits), ("--polls", self.polls), ("--idle", self.idle)];
        std::iter::once("load".to_owned())
            .chain(named.into_iter().flat_map(|(name, value)| [name.to_owned(), value]))
            .chain(flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| name.to_owned()))
            .collect()
    }
}

/// Keeps the processor busy for this time, like a program's own work.
fn busy_for(duration_ns: u64) -> anyhow::Result<()> {
    let start_ns = if duration_ns > 0 { monotonic_ns()? } else { 0 };
    while duration_ns > 0 && monotonic_ns()? - start_ns < duration_ns {
        std::hint::spin_loop();
    }
    Ok(())
}

/// `CLOCK_MONOTONIC`, which is the same in all processes.
pub(crate) fn monotonic_ns() -> anyhow::Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * SECOND_NS + now.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        load: Load,
    }

    #[test]
    fn a_worker_understands_what_it_is_told() {
        let load = Load {
            waits: true,
            streams: 4,
            graph: 100,
            gap_ns: 9,
            polls: true,
            set_bytes: 8,
            start_ns: 7,
            ..Load::spin(&[50_000, 1_000_000])
        };
        assert_eq!(Cli::try_parse_from(load.args()).unwrap().load, load);
    }

    #[test]
    fn the_work_of_processes_is_added_up() {
        let mut sum = Work::default();
        for pieces in [vec![1, 2], vec![10]] {
            sum.add(&Work { kernels_per_second: 5.0, pieces });
        }
        assert_eq!((sum.kernels_per_second, sum.pieces), (10.0, vec![11, 2]));
    }
}

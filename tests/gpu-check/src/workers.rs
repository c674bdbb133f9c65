//! Workers: the check starts this program again to do one thing on the device. The last line of the output is JSON.

use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use serde::{Deserialize, Serialize};

use crate::cases::{self, CASES, Case};
use crate::cuda::{COMPUTE_MODE, Cuda, call};
use crate::deaths::{self, DEATHS};
use crate::driver::Driver;
use crate::facts::{self, FACTS};
use crate::findings::Findings;
use crate::hooks::{self, Use};
use crate::nvml::Nvml;
use crate::overhead;
use crate::scene::Scene;
use crate::shares::Load;
use crate::truth;
use crate::way::{Limits, Way};

/// The task of a worker.
#[derive(Subcommand, Debug)]
pub(crate) enum WorkerCommand {
    /// Describe the device and the driver.
    Probe,
    /// Run a conformance case.
    Case {
        /// The case.
        name: String,
        /// How this worker runs.
        #[arg(long)]
        way: Way,
        #[command(flatten)]
        limits: Limits,
    },
    /// Watch the used memory of the device until standard input ends. Never runs in a slice.
    Watch {
        /// The device.
        uuid: String,
    },
    /// Print the processes on the device.
    Others {
        /// The device's UUID, as NVML writes it.
        uuid: String,
    },
    /// Print what NVML lists for a process. Runs without the shim.
    Listed {
        /// The device's UUID, as NVML writes it.
        uuid: String,
        /// The process's id in the namespace of this worker.
        pid: u32,
    },
    /// Hold memory until standard input ends.
    Hold {
        /// Bytes of device memory.
        bytes: u64,
        /// Bytes of page-locked host memory.
        host_bytes: u64,
    },
    /// Hold memory, and be killed.
    HoldAndDie {
        /// Bytes of device memory.
        bytes: u64,
        /// Bytes of page-locked host memory.
        host_bytes: u64,
    },
    /// Take memory as soon as there is enough.
    TakeWhenFree {
        /// Bytes of device memory.
        bytes: u64,
        /// `CLOCK_MONOTONIC` in nanoseconds from which to measure.
        since_ns: u64,
    },
    /// Use the device in one way only, and hold what it takes until standard input ends.
    Use {
        /// What the program does with the device.
        kind: Use,
        /// Find the driver's functions by `cuGetProcAddress`.
        #[arg(long)]
        by_proc_address: bool,
    },
    /// Kill a process that holds much memory.
    Death {
        /// The case.
        name: String,
    },
    /// Open the memory described on standard input.
    OpenShared,
    /// Determine a fact about the driver.
    Fact {
        /// The fact.
        name: String,
    },
    /// Ask about a destroyed context.
    AskStale,
    /// Time kernels in several streams.
    Overlap,
    /// Record when a kernel did not run.
    WatchGaps,
    /// Measure the costs of calls.
    Overhead,
    /// Keep the device busy, and count the work.
    Load(Load),
}

/// The device and its driver.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// The product's name.
    pub(crate) name: String,
    /// The device's UUID.
    pub(crate) uuid: String,
    /// Its memory in bytes.
    pub(crate) memory_bytes: u64,
    /// Device memory of a context, by NVML; 0 if NVML does not report it.
    pub(crate) context_bytes: u64,
    /// The driver's version; empty if NVML does not report it.
    pub(crate) driver_version: String,
    /// The driver's CUDA version: 12040 is 12.4.
    pub(crate) cuda_version: i32,
    /// A `CUcomputemode`: 0, if several processes may use the device.
    pub(crate) compute_mode: i32,
    /// The file that the driver was loaded from.
    pub(crate) driver_library: String,
}

impl Probe {
    /// Why slices of the device cannot be checked; `None`: they can be.
    pub(crate) fn unsuitable(&self) -> Option<String> {
        let name = &self.name;
        // CUDA names instances so: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
        if name.contains(" MIG ") {
            return Some(format!("{name} is a MIG instance; end MIG mode: sudo nvidia-smi -mig 0"));
        }
        let mode = match self.compute_mode {
            0 => return None,
            2 => "PROHIBITED".to_owned(),
            3 => "EXCLUSIVE_PROCESS".to_owned(),
            other => other.to_string(),
        };
        Some(format!("the compute mode of {name} is {mode}, so programs cannot share it: sudo nvidia-smi -c DEFAULT"))
    }
}

/// A process on the device that is none of the check's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Other {
    /// Its id, as NVML lists it.
    pub(crate) pid: u32,
    /// Its memory on the device; absent if NVML does not tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory_bytes: Option<u64>,
}

/// Exit status of a probe that finds no driver or no device.
pub(crate) const NO_DEVICE: u8 = 2;

/// Carries out a worker's task.
pub(crate) fn run(command: &WorkerCommand) -> anyhow::Result<ExitCode> {
    match command {
        WorkerCommand::Probe => return probe(),
        WorkerCommand::Hold { bytes, host_bytes } => cases::hold_memory(*bytes, *host_bytes)?,
        WorkerCommand::HoldAndDie { bytes, host_bytes } => deaths::hold_and_die(*bytes, *host_bytes)?,
        WorkerCommand::TakeWhenFree { bytes, since_ns } => say(&deaths::take_when_free(*bytes, *since_ns)?)?,
        WorkerCommand::Use { kind, by_proc_address } => hooks::use_device(*kind, *by_proc_address)?,
        WorkerCommand::Death { name } => say(&case(DEATHS, name, Way::Bare, Limits::with_contexts_of(0))?)?,
        WorkerCommand::OpenShared => cases::open_shared()?,
        WorkerCommand::Case { name, way, limits } => say(&case(CASES, name, *way, *limits)?)?,
        WorkerCommand::Fact { name } => say(&case(FACTS, name, Way::Bare, Limits::with_contexts_of(0))?)?,
        WorkerCommand::AskStale => facts::ask_stale()?,
        WorkerCommand::Overlap => facts::overlap()?,
        WorkerCommand::WatchGaps => facts::watch_gaps()?,
        WorkerCommand::Others { uuid } => say(&truth::others(uuid)?)?,
        WorkerCommand::Listed { uuid, pid } => say(&truth::listed(uuid, *pid)?)?,
        WorkerCommand::Watch { uuid } => truth::watch(uuid)?,
        WorkerCommand::Overhead => say(&overhead::measure()?)?,
        WorkerCommand::Load(load) => say(&load.run()?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints `value` as a line.
pub(crate) fn say(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

fn case(cases: &[Case], name: &str, way: Way, limits: Limits) -> anyhow::Result<Findings> {
    let case = cases.iter().find(|case| case.name == name).with_context(|| format!("there is no case {name:?}"))?;
    let mut findings = Findings::default();
    let scene = Scene { cuda: Cuda::open()?, way, limits };
    if way == Way::Limited {
        let (_, total) = scene.cuda.memory()?;
        let saw = format!("{total} bytes, the slice has {}", limits.memory_bytes);
        findings.expect("the program sees the slice's memory as the device's", total == limits.memory_bytes, saw);
    }
    if let Err(error) = (case.run)(&scene, &mut findings) {
        findings.expect("the case runs to its end", false, format!("{error:#}"));
    }
    Ok(findings)
}

fn probe() -> anyhow::Result<ExitCode> {
    let found = Driver::load().and_then(|driver| Ok(Cuda::start(driver)?.with_kernels()?));
    let cuda = match found {
        Ok(cuda) => cuda,
        Err(error) => {
            eprintln!("no GPU that can be used: {error:#}");
            return Ok(ExitCode::from(NO_DEVICE));
        }
    };
    let (name, uuid, memory_bytes) = (cuda.name()?, cuda.uuid()?, cuda.memory()?.1);
    let used_bytes = || Nvml::open().and_then(|nvml| nvml.used_bytes(&uuid)).ok();
    let with_context = used_bytes();
    // SAFETY: nothing uses the context any more.
    unsafe { call!(cuda, cuDevicePrimaryCtxReset_v2(cuda.device))? };
    say(&Probe {
        context_bytes: with_context.zip(used_bytes()).map_or(0, |(with, without)| with.saturating_sub(without)),
        name,
        uuid,
        memory_bytes,
        driver_version: Nvml::open().and_then(|nvml| nvml.driver_version()).unwrap_or_default(),
        cuda_version: cuda.version()?,
        compute_mode: cuda.attribute(COMPUTE_MODE)?,
        driver_library: driver_library(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The file from which this process has loaded the driver.
fn driver_library() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files = maps.lines().filter_map(|line| line.find('/').map(|start| line[start..].to_owned()));
    files.find(|file| file.contains("cuda")).unwrap_or_default()
}

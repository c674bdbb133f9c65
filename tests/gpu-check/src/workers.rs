//! What the check starts: this program again, to do one thing on the device. The last line of its output is JSON.

use std::process::ExitCode;

use anyhow::Context;
use clap::Subcommand;
use serde::{Deserialize, Serialize};

use crate::cases::{self, CASES};
use crate::cuda::Cuda;
use crate::driver::Driver;
use crate::findings::Findings;
use crate::nvml::Nvml;
use crate::overhead;
use crate::scene::Scene;
use crate::shares::Load;
use crate::way::Way;

/// What a worker does.
#[derive(Subcommand, Debug)]
pub(crate) enum WorkerCommand {
    /// Say what device and driver there are.
    Probe,
    /// Run a conformance case.
    Case {
        /// The case.
        name: String,
        /// How this worker is run.
        #[arg(long)]
        way: Way,
    },
    /// Hold memory until standard input ends.
    Hold,
    /// Open the memory that standard input names.
    OpenShared,
    /// Measure what calls cost.
    Overhead,
    /// Keep the device busy, and count.
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
    /// The driver's version; empty if NVML does not say.
    pub(crate) driver_version: String,
    /// The driver's CUDA version: 12040 is 12.4.
    pub(crate) cuda_version: i32,
    /// The file that the driver was loaded from.
    pub(crate) driver_library: String,
}

/// The exit status of a probe that finds no driver or no device.
pub(crate) const NO_DEVICE: u8 = 2;

/// Does what is asked for.
pub(crate) fn run(command: &WorkerCommand) -> anyhow::Result<ExitCode> {
    match command {
        WorkerCommand::Probe => return probe(),
        WorkerCommand::Hold => cases::hold_memory()?,
        WorkerCommand::OpenShared => cases::open_shared()?,
        WorkerCommand::Case { name, way } => say(&case(name, *way)?)?,
        WorkerCommand::Overhead => say(&overhead::measure()?)?,
        WorkerCommand::Load(load) => say(&load.run()?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn say(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

fn case(name: &str, way: Way) -> anyhow::Result<Findings> {
    let case = CASES.iter().find(|case| case.name == name).with_context(|| format!("there is no case {name:?}"))?;
    let mut findings = Findings::default();
    let scene = Scene { cuda: Cuda::open()?, way };
    if let Err(error) = (case.run)(&scene, &mut findings) {
        findings.expect("the case runs to its end", false, format!("{error:#}"));
    }
    Ok(findings)
}

fn probe() -> anyhow::Result<ExitCode> {
    let found = Driver::load().and_then(|driver| Ok(Cuda::start(driver)?));
    let cuda = match found {
        Ok(cuda) => cuda,
        Err(error) => {
            eprintln!("no GPU that can be used: {error:#}");
            return Ok(ExitCode::from(NO_DEVICE));
        }
    };
    say(&Probe {
        name: cuda.name()?,
        uuid: cuda.uuid()?,
        memory_bytes: cuda.memory()?.1,
        driver_version: Nvml::open().and_then(|nvml| nvml.driver_version()).unwrap_or_default(),
        cuda_version: cuda.version()?,
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

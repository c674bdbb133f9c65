//! `aliquot demo`: two programs share one device 30/70, and a third is refused memory beyond its limit.
//!
//! The programs are real processes, started in slices as `aliquot run` does it. They count the device time that they
//! get (completed kernels times a kernel's duration). That is compared with their requests, and with the manager's own
//! figures.

mod checks;
mod program;
mod protocol;
mod report;
mod stage;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use aliquot_proto::node::v1::Device;
use nix::time::{ClockId, clock_gettime};

pub(crate) use worker::work;

use crate::args::DemoArgs;
use crate::client;
use crate::error::{Result, exit};
use crate::output;
use crate::quantity::bytes_human;
use crate::run::{Manager, Supervisor};
use crate::simulated::SimulatedGpu;
use stage::Stage;

/// Runs the demonstration, and reports whether every promise held.
pub(crate) fn demo(socket: Option<&Path>, args: &DemoArgs) -> Result<ExitCode> {
    let choice = match (args.simulated, real_gpu()) {
        (true, _) => Gpu::SimulatedAsAsked,
        (false, true) => Gpu::Real,
        (false, false) => Gpu::SimulatedForLack,
    };
    let simulated = (choice != Gpu::Real).then(SimulatedGpu::set_up).transpose()?;
    // Before any thread starts, as in `aliquot run`.
    let supervisor = Supervisor::new()?;
    let manager = Manager::find_or_embed(socket.filter(|_| simulated.is_none()), simulated.as_ref())?;
    let runtime = client::runtime()?;
    let stage = Stage::new(&supervisor, &runtime, manager.socket(), simulated.as_ref(), args)?;
    stage.say(&opening(&stage.device, choice));
    let shown = stage.show()?;
    let checks = checks::of(&shown);
    let holds = checks.iter().all(|check| check.holds);
    match args.json {
        true => output::print_json(&report::json(&shown, &checks, simulated.is_some()))?,
        false => output::print(&report::text(&shown, &checks, output::stdout_has_colours()))?,
    }
    Ok(if holds { ExitCode::SUCCESS } else { exit::FAILED.into() })
}

/// Whether NVML sees a device.
fn real_gpu() -> bool {
    nvml_wrapper::Nvml::init().and_then(|nvml| nvml.device_count()).is_ok_and(|count| count > 0)
}

/// The GPU of the demonstration, and why it was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gpu {
    Real,
    SimulatedAsAsked,
    SimulatedForLack,
}

fn opening(device: &Device, gpu: Gpu) -> String {
    let which = match gpu {
        Gpu::Real => "",
        Gpu::SimulatedAsAsked => "The demonstration runs on a simulated GPU.\n",
        Gpu::SimulatedForLack => "There is no NVIDIA GPU here: the demonstration runs on a simulated one.\n",
    };
    format!("{which}Device: {} {}, {}\n", device.model, device.uuid, bytes_human(device.memory_bytes))
}

/// `CLOCK_MONOTONIC` in nanoseconds: the same for all processes of the machine.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the kernel has this clock");
    now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64
}

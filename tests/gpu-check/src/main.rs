//! The check to run on a machine with an NVIDIA GPU: does Aliquot hold what it promises on this device and driver?
//!
//! It runs everything in three ways: as it is, in a slice that holds the whole device, and in a limited slice (way.rs),
//! each in a process of its own (`worker`, workers.rs) that is a plain driver-API program. The check itself never
//! touches the driver: a broken driver call, or one that never returns, costs one case.
//!
//! ```text
//! main ── check.rs ── launcher.rs: starts workers, bare or through `aliquot run`; manager.rs: the node manager
//!            ├── cases*:       conformance, in the worker; findings.rs: what it sends back
//!            ├── overhead.rs:  what a call costs
//!            ├── shares.rs:    shares of device time, there and on simulated.rs
//!            └── torch.rs:     PyTorch, where it is installed
//! report.rs: the table and the JSON
//! ```

mod cases;
mod check;
mod cuda;
mod driver;
mod findings;
mod launcher;
mod manager;
mod nvml;
mod overhead;
mod report;
mod scene;
mod shares;
mod simulated;
mod torch;
mod way;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::workers::WorkerCommand;

/// Checks Aliquot on this machine's GPU: conformance, overhead, share accuracy, PyTorch.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "\
Exit status:
  0  every conformance case holds
  1  a conformance case does not hold
  2  there is nothing to check here: no driver or no device, or the command line is wrong"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

/// What to check, and where.
#[derive(Args, Debug)]
struct Options {
    /// Shorter measurements and fewer of them: minutes become a minute, figures become rough
    #[arg(long)]
    quick: bool,
    /// Check only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    json: PathBuf,
    /// Directory with the programs aliquot and aliquot-manager [default: where this program lies]
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// A part of the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// The driver's behaviour, with and without a slice.
    Conformance,
    /// What calls cost.
    Overhead,
    /// Shares of device time.
    Shares,
    /// PyTorch.
    Torch,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Do one thing on the device, and say on standard output what came of it.
    #[command(subcommand, hide = true)]
    Worker(WorkerCommand),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Command::Worker(command)) => workers::run(command),
        None => check::run(&cli.options),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

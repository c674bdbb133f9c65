//! The check to run on a machine with an NVIDIA GPU: does Aliquot hold what it promises on this device and driver?
//!
//! It runs everything in three ways: without a slice, in a slice that holds the whole device, and in a limited slice
//! (way.rs). Each run is a separate process (`worker`, workers.rs), which is a plain driver-API program. The check
//! itself never calls the driver, so a broken driver call, or one that never returns, costs only one case.
//!
//! ```text
//! main ── check.rs ── launcher.rs: starts workers, bare or through `aliquot run`; manager.rs: the node manager
//!            │        ── part_run.rs: a part that runs: its deadline, and its results as they come
//!            ├── facts*:        the driver's behaviour without a slice
//!            ├── cases*:        conformance, in the worker; findings.rs: its results
//!            ├── overhead.rs:   costs of calls
//!            ├── shares.rs:     shares of device time, on the device and on simulated.rs; two programs side by side
//!            ├── deaths.rs:     when the memory of a killed process is free again
//!            ├── hooks.rs:      which ways to use the device show in a slice's usage
//!            ├── runtime.rs:    programs of the CUDA runtime, if they can be built
//!            ├── torch.rs:      PyTorch, if it is installed
//!            └── frameworks.rs: other frameworks and tools, if they are installed
//! truth.rs: the driver's figures outside of slices; report.rs: the tables, the verdict and the JSON
//! ```
//!
//! No judgement relies on figures shown by the shim: workers get the numbers with which the check has made their slice,
//! memory is watched from outside, and work is compared with the same work without a slice. So a check without working
//! hooks fails (tests/hooks_off.rs). An earlier version trusted the shim, and passed with every hook bypassed.

mod cases;
mod check;
mod children;
mod cuda;
mod deaths;
mod driver;
mod facts;
mod findings;
mod frameworks;
mod hooks;
mod launcher;
mod manager;
mod nvml;
mod overhead;
mod part_run;
mod report;
mod runtime;
mod scene;
mod shares;
mod simulated;
mod torch;
mod truth;
mod way;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::workers::WorkerCommand;

/// The longest time of a part, and of a whole quick check, in seconds. A machine with a GPU is often lent for ten minutes.
const PART_SECONDS: u64 = 570;

/// Checks Aliquot on this machine's GPU.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "\
Exit status:
  0  everything that was looked at holds
  1  something does not hold
  2  there is nothing to check here: no driver, no device, or none that programs can share; or the command line is wrong"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

/// The command line's options.
#[derive(Args, Debug)]
struct Options {
    /// Make shorter and fewer measurements, the most important first, and end within ten minutes; figures are rough
    #[arg(long)]
    quick: bool,
    /// Check only these parts [default: all but simulated]
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,
    /// Run only this conformance case; may be given several times
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Print the names of the conformance cases, and end
    #[arg(long)]
    list_cases: bool,
    /// Allowed error of shares in percentage points [default: 2, or 5 with --quick]
    #[arg(long, value_name = "POINTS")]
    share_tolerance: Option<f64>,
    /// Write the results to this file as JSON, anew after each step
    #[arg(long, value_name = "FILE", default_value = "gpu-check.json")]
    json: PathBuf,
    /// End a part that has taken this long, which is a failure, and go on with the next one
    #[arg(long, value_name = "SECONDS", default_value_t = PART_SECONDS)]
    part_seconds: u64,
    /// Directory with the programs aliquot and aliquot-manager [default: this program's directory]
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
}

/// A part of the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Part {
    /// The driver's own behaviour and costs.
    Facts,
    /// The driver's behaviour, with and without a slice.
    Conformance,
    /// Costs of calls.
    Overhead,
    /// Shares of device time.
    Shares,
    /// The same shares on the simulated GPU of this machine, beside those of the device.
    Simulated,
    /// Two programs on the device, in slices and without.
    Neighbours,
    /// Processes that are killed.
    Deaths,
    /// Whether each way to launch and to take memory is seen in a slice's usage.
    Hooks,
    /// Programs of the CUDA runtime.
    Runtime,
    /// PyTorch.
    Torch,
    /// Other frameworks and tools.
    Frameworks,
}

impl Part {
    /// Whether it runs programs in slices. Of these, only some parts notice if slices are not enforced.
    fn uses_slices(self) -> bool {
        self != Part::Facts
    }

    /// Whether it runs only on request.
    fn is_extra(self) -> bool {
        self == Part::Simulated
    }

    /// The order of a quick check, with each part's portion of its time: what a slice promises comes first. Time that a
    /// part leaves is for those after it.
    const QUICK: [(Part, u32); 11] = [
        (Part::Hooks, 12),
        (Part::Conformance, 28),
        (Part::Shares, 7),
        (Part::Runtime, 9),
        (Part::Facts, 6),
        (Part::Deaths, 6),
        (Part::Torch, 24),
        (Part::Frameworks, 6),
        (Part::Neighbours, 9),
        (Part::Overhead, 4),
        (Part::Simulated, 7),
    ];

    /// Its name on the command line and in the report.
    fn name(self) -> &'static str {
        match self {
            Part::Facts => "facts",
            Part::Conformance => "conformance",
            Part::Overhead => "overhead",
            Part::Shares => "shares",
            Part::Simulated => "simulated",
            Part::Neighbours => "neighbours",
            Part::Deaths => "deaths",
            Part::Hooks => "hooks",
            Part::Runtime => "runtime",
            Part::Torch => "torch",
            Part::Frameworks => "frameworks",
        }
    }
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Do one thing on the device, and print the result
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

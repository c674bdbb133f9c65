//! Every figure of BENCHMARKS.md about nodes, measured on the simulated GPU with the real shim and the real node
//! manager, and those about jobs on a cluster of played nodes with the real scheduler.
//!
//! ```text
//! cargo run --release -p aliquot-bench              all of them
//! cargo run --release -p aliquot-bench -- launch    some of them
//! cargo run --release -p aliquot-bench -- shares --quick
//! cargo run --release -p aliquot-bench -- jobs --nodes 100 --jobs 10000
//! ```
//!
//! Runs with and without the shim alternate, and their medians count, so that other load of the machine affects both
//! alike.

mod client;
mod deaths;
mod idle_process;
mod jobs;
mod kubernetes;
mod launches;
mod library;
mod manager_cost;
mod memory;
mod race;
mod shares;
mod start;
mod statistics;
mod table;
mod together;

use std::cell::LazyCell;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::client::Client;
use crate::shares::Depth;

/// Measures Aliquot's costs and the exactness of its enforcement.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// The measurements to make [default: all]
    what: Vec<What>,
    /// Number of runs for each median
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Measure shares in short windows and with few cases of each group
    #[arg(long)]
    quick: bool,
    /// Nodes of the cluster for jobs
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// Jobs of that cluster
    #[arg(long, default_value_t = 100_000)]
    jobs: usize,
}

/// The topics that can be measured. Each prints a table, row by row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum What {
    /// `cuLaunchKernel`, uncapped and capped.
    Launch,
    /// Allocations, and `cuMemGetInfo`.
    Memory,
    /// `cuInit` and the first context.
    Start,
    /// Many processes of one container that start at once.
    Together,
    /// A process that never uses CUDA.
    IdleProcess,
    /// The shim as a file.
    Library,
    /// Eight processes racing one cap.
    Race,
    /// A process killed while it holds memory.
    Deaths,
    /// Memory and processor time of the node manager, by the number of processes.
    Manager,
    /// Claims of pods on Kubernetes, one after the other and two hundred at once.
    Kubernetes,
    /// Jobs on a cluster without Kubernetes.
    Jobs,
    /// Shares of device time: all of the following.
    Shares,
    /// One container alone under a cap.
    Capped,
    /// Several processes, streams and graphs under one cap.
    Inside,
    /// Containers that are always busy side by side.
    Neighbours,
    /// Neighbours that are idle, or come and go.
    IdleNeighbours,
    /// Requests beside batch work.
    Requests,
    /// The cost of sharing.
    Cost,
    /// Containers with two devices whose kernels wait for each other.
    Collectives,
    /// Processor time of the node manager while eight devices are shared.
    ManagerTime,
    /// Containers without a node manager.
    SelfPacing,
    /// Shares that change while programs run.
    Resizing,
    /// Markers that the device writes against events.
    MarkerWays,
    /// The cost of sharing when launches, markers and changes of process cost as much as on an H100.
    HardwareLike,
}

impl What {
    /// The corresponding group of shares, if it is one.
    fn shares(self) -> Option<shares::Case> {
        use shares::Case;
        Some(match self {
            What::Capped => Case::Capped,
            What::Inside => Case::Inside,
            What::Neighbours => Case::Neighbours,
            What::IdleNeighbours => Case::IdleNeighbours,
            What::Requests => Case::Requests,
            What::Cost => Case::Cost,
            What::Collectives => Case::Collectives,
            What::ManagerTime => Case::ManagerTime,
            What::SelfPacing => Case::SelfPacing,
            What::Resizing => Case::Resizing,
            What::MarkerWays => Case::MarkerWays,
            What::HardwareLike => Case::HardwareLike,
            _ => return None,
        })
    }

    fn is_wanted(self, args: &Args) -> bool {
        let by_group = self.shares().is_some() && args.what.contains(&What::Shares);
        args.what.is_empty() || args.what.contains(&self) || by_group
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // Built only when it is needed: figures about jobs do not need it, and it takes all other programs with it.
    let (client, runs) = (LazyCell::new(Client::build), usize::from(args.runs));
    let depth = if args.quick { Depth::Quick } else { Depth::Full };
    table::print_machine();
    for what in What::value_variants().iter().filter(|what| what.is_wanted(&args)) {
        match what {
            What::Launch => launches::measure(&client, runs),
            What::Memory => memory::measure(&client, runs),
            What::Start => start::measure(&client, runs),
            What::Together => together::measure(&client, runs),
            What::IdleProcess => idle_process::measure(),
            What::Library => library::measure(),
            What::Race => race::measure(&client),
            What::Deaths => deaths::measure(runs),
            What::Manager => manager_cost::measure(),
            What::Kubernetes => kubernetes::measure(),
            What::Jobs => jobs::measure(jobs::Size { nodes: args.nodes, jobs: args.jobs }),
            other => {
                if let Some(case) = other.shares() {
                    shares::measure(case, &client, depth);
                }
            }
        }
    }
    ExitCode::SUCCESS
}

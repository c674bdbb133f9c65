//! Every figure of BENCHMARKS.md, measured on the simulated GPU with the real shim and the real node manager.
//!
//! ```text
//! cargo run --release -p aliquot-bench              all of them
//! cargo run --release -p aliquot-bench -- launch    some of them
//! ```
//!
//! Runs with and without the shim alternate, and medians of them count: what else the machine does hits both alike.

mod client;
mod deaths;
mod idle_process;
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

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use crate::client::Client;
use crate::table::Table;

/// Measures what Aliquot costs, and how exactly it enforces.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// What to measure [default: everything]
    what: Vec<What>,
    /// Runs of which the median counts
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
}

/// What can be measured.
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
    /// Memory and processor time of the node manager.
    Manager,
    /// Shares of device time.
    Shares,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let (client, runs) = (Client::build(), usize::from(args.runs));
    table::print_machine();
    for what in What::value_variants().iter().filter(|what| args.what.is_empty() || args.what.contains(what)) {
        let table: Table = match what {
            What::Launch => launches::measure(&client, runs),
            What::Memory => memory::measure(&client, runs),
            What::Start => start::measure(&client, runs),
            What::Together => together::measure(&client, runs),
            What::IdleProcess => idle_process::measure(),
            What::Library => library::measure(),
            What::Race => race::measure(&client),
            What::Deaths => deaths::measure(runs),
            What::Manager => manager_cost::measure(),
            What::Shares => shares::measure(),
        };
        print!("{table}");
    }
    ExitCode::SUCCESS
}

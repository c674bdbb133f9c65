//! The cluster scheduler's command line.

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::backup::{BackupArgs, backup};
use commands::dev::{DevArgs, dev};
use commands::explain::{ExplainArgs, explain};
use commands::kubernetes::{KubernetesArgs, kubernetes};
use commands::replay::{ReplayArgs, replay};
use commands::serve::{ServeArgs, serve};
use commands::simulate::{SimulateArgs, simulate};
use commands::snapshot::{SnapshotArgs, snapshot};
use commands::steady::{SteadyArgs, steady};

/// Schedules claims for GPUs in a cluster.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Schedule a snapshot of a cluster until nothing changes and print the plan; or place the tasks of a trace one
    /// after another and print how much was placed.
    Replay(ReplayArgs),
    /// Print how a change of a snapshot changes the plan: more nodes, other claims, another policy.
    Simulate(SimulateArgs),
    /// Explain why a claim of a snapshot waits or was evicted, and suggest changes.
    Explain(ExplainArgs),
    /// Simulate a cluster in which tasks arrive and end at random, and print the lost or delayed tasks as JSON.
    Steady(SteadyArgs),
    /// Serve machines without Kubernetes: nodes join the scheduler, and users submit jobs to it.
    Serve(ServeArgs),
    /// Start a whole cluster on this machine, with simulated GPUs, to try it out. Ctrl-C ends it.
    Dev(DevArgs),
    /// Schedule the pods of a Kubernetes cluster that name this scheduler.
    Kubernetes(Box<KubernetesArgs>),
    /// Copy the state of `serve` into a new file, whether that scheduler runs or not.
    Backup(BackupArgs),
    /// Print what a running `serve` knows, as a snapshot for `replay`, `explain` and `simulate`.
    Snapshot(SnapshotArgs),
}

fn main() -> ExitCode {
    commands::live::end_at_panics();
    let done = match Cli::parse().command {
        Command::Replay(args) => replay(&args),
        Command::Simulate(args) => simulate(&args),
        Command::Explain(args) => explain(&args),
        Command::Steady(args) => steady(&args),
        Command::Serve(args) => serve(&args),
        Command::Dev(args) => dev(&args),
        Command::Kubernetes(args) => kubernetes(&args),
        Command::Backup(args) => backup(&args),
        Command::Snapshot(args) => snapshot(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

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
use commands::steady::{SteadyArgs, steady};

/// Decides which claims go where in a cluster.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a snapshot of a cluster until nothing changes and print the plan; or play a trace through a placement
    /// policy, one task after another, and say how much could be placed.
    Replay(ReplayArgs),
    /// Say what would change in a snapshot of a cluster: with more nodes, other claims, another policy.
    Simulate(SimulateArgs),
    /// Say why a claim of a snapshot waits or was evicted, and what would help.
    Explain(ExplainArgs),
    /// Play a cluster in which tasks come and end at random, and print as JSON what was lost or had to wait.
    Steady(SteadyArgs),
    /// Serve machines without Kubernetes: nodes join it, and users submit jobs to it.
    Serve(ServeArgs),
    /// Start a whole cluster on this machine, with simulated GPUs, to try it out. Ctrl-C ends it.
    Dev(DevArgs),
    /// Schedule the pods of a Kubernetes cluster that name this scheduler.
    Kubernetes(KubernetesArgs),
    /// Write what a scheduler that serves must remember into a new file, whether it runs or not.
    Backup(BackupArgs),
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
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

//! `kubectl aliquot`: who uses what in a cluster, and why a pod waits.
//!
//! What is in objects is read from the API server. The rest the leading scheduler is asked for, through a forwarded port
//! of its pod, and the nodes' managers in the same way. So the API server's rules alone say who may see what: whoever
//! may not forward ports there is told what the objects say.

#![forbid(unsafe_code)]

mod args;
mod cluster;
mod completion;
mod explain;
mod failure;
mod holdings;
mod leader;
mod managers;
mod port;
mod queues;
mod slices;
mod usage;
mod what_if;

pub use args::Cli;
pub use completion::{is_asked, reply};
pub use failure::Failure;

use aliquot_terminal::look::Look;

use args::Command;
use cluster::Cluster;

/// What a command prints.
#[derive(Debug, Default)]
pub struct Printed {
    /// On standard output.
    pub text: String,
    /// On standard error: what could not be asked, and why.
    pub notes: Vec<String>,
    /// The exit code.
    pub exit: u8,
}

/// The exit code where pods that were asked about would wait.
const WOULD_WAIT: u8 = 3;

/// Runs a command.
///
/// # Errors
/// Why it has failed.
pub async fn run(cli: &Cli, look: Look) -> Result<Printed, Failure> {
    let cluster = Cluster::connect(&cli.global).await?;
    match &cli.command {
        Command::Explain(args) => explain::explain(&cluster, args, look).await,
        Command::Queues(args) => queues::queues(&cluster, args.output, look).await,
        Command::Slices(args) => slices::slices(&cluster, args, look).await,
        Command::Top(args) => slices::top(&cluster, args, look).await,
        Command::WhatIf(args) => what_if::what_if(&cluster, args, look).await,
    }
}

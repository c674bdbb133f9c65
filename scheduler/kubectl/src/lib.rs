//! `kubectl aliquot`: shows how a cluster's GPUs are used, and why a pod waits.
//!
//! Objects are read from the API server. Other facts come from the leading scheduler, through a forwarded port of its
//! pod, and from the nodes' managers in the same way. So only the API server's rules decide what a user may see. A user
//! without the right to forward ports is shown what the objects say.

#![forbid(unsafe_code)]

mod args;
mod cluster;
mod completion;
mod document;
mod explain;
mod failure;
mod holdings;
mod leader;
mod managers;
mod port;
mod queues;
mod quota;
mod slices;
mod usage;
mod what_if;

pub use args::Cli;
pub use completion::{is_asked, reply};
pub use failure::Failure;

use aliquot_terminal::look::Look;

use args::Command;
use cluster::Cluster;

/// The output of a command.
#[derive(Debug, Default)]
pub struct Printed {
    /// The text for standard output.
    pub text: String,
    /// The notes for standard error: questions that failed, with the reasons.
    pub notes: Vec<String>,
    /// The exit code of the program.
    pub exit: u8,
}

/// The exit code if some of the pods in question would wait.
const WOULD_WAIT: u8 = 3;

/// Runs a command.
///
/// # Errors
/// The reason why the command failed.
pub async fn run(cli: &Cli, look: Look) -> Result<Printed, Failure> {
    let cluster = Cluster::connect(&cli.global).await?;
    match &cli.command {
        Command::Explain(args) => explain::explain(&cluster, args, look).await,
        Command::Queues(args) => queues::queues(&cluster, args.output, look).await,
        Command::Snapshot => {
            let text = leader::ask_text(&cluster, "/v1/snapshot").await?;
            Ok(Printed { text, ..Printed::default() })
        }
        Command::Slices(args) => slices::slices(&cluster, args, look).await,
        Command::Top(args) => slices::top(&cluster, args, look).await,
        Command::WhatIf(args) => what_if::what_if(&cluster, args, look).await,
    }
}

//! `aliquot dev`: a whole cluster on this machine, with simulated GPUs.
//!
//! The scheduler and the node managers are the shipped programs, started as children of this process. Only their
//! directories and their simulated devices differ from a real cluster.

mod cluster;
mod daemon;
mod programs;

use std::env;
use std::process::ExitCode;

use nix::sys::signal::{Signal, raise};

use crate::args::DevArgs;
use crate::cluster::counted;
use crate::error::{Failure, Result};
use crate::output;
use crate::run::Supervisor;
use cluster::Cluster;
use programs::Programs;

/// Runs the cluster until a signal asks for its end.
pub(crate) fn dev(args: &DevArgs) -> Result<ExitCode> {
    let programs = Programs::find()?;
    // Before any thread starts, because each thread inherits the blocked signals.
    let supervisor = Supervisor::new()?;
    let mut cluster = Cluster::new(&supervisor, &programs)?;
    if !cluster.start(args)? {
        return Ok(ExitCode::SUCCESS);
    }
    output::print(&introduction(args, &cluster))?;
    loop {
        match supervisor.wait()? {
            Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP | Signal::SIGQUIT => break,
            Signal::SIGTSTP => raise(Signal::SIGSTOP)
                .map_err(|error| Failure::new(format!("cannot stop this process for a while: {error}")))?,
            Signal::SIGCHLD => cluster.restart_ended()?,
            _ => {}
        }
    }
    output::say("Ending the cluster …");
    Ok(ExitCode::SUCCESS)
}

fn introduction(args: &DevArgs, cluster: &Cluster<'_>) -> String {
    let aliquot = env::current_exe().map_or_else(|_| "aliquot".to_owned(), |program| program.display().to_string());
    let (nodes, devices) = (counted(args.nodes.into(), "node"), counted(args.devices.into(), "simulated GPU"));
    format!(
        "{nodes} with {devices} of 80 GiB each. In another terminal:\n\n    export ALIQUOT_SCHEDULER={}\n    {aliquot} submit \
         --gpu-core 30 --gpu-memory 8GiB --wait --follow -- {aliquot} load --seconds 20\n    {aliquot} jobs\n    {aliquot} nodes\n\nLogs are \
         in {}. Ctrl-C ends the cluster.\n",
        cluster.scheduler_socket().display(),
        cluster.dir().display(),
    )
}

//! `aliquot-scheduler replay`: of a snapshot, or of a trace.

use std::path::{Path, PathBuf};

use aliquot_scheduler::report::Report;
use aliquot_scheduler::session::{CYCLES_MAX, Session};
use aliquot_scheduler::snapshot::File;
use anyhow::{Context, Result};
use clap::Args;

use super::trace::{TraceArgs, replay_trace};

/// Arguments of `replay`.
#[derive(Args)]
#[command(override_usage = "aliquot-scheduler replay [OPTIONS] <SNAPSHOT>\n       \
                            aliquot-scheduler replay [OPTIONS] --nodes <NODES> --arrivals <ARRIVALS>")]
pub(crate) struct ReplayArgs {
    /// The snapshot of a cluster.
    #[arg(required_unless_present = "nodes", conflicts_with_all = TraceArgs::NAMES)]
    snapshot: Option<PathBuf>,
    /// Run at most this number of cycles, instead of until nothing changes.
    #[arg(long, conflicts_with_all = TraceArgs::NAMES, help_heading = "Of a snapshot")]
    cycles: Option<usize>,
    /// Write the final state to this file as a snapshot. After a trace, the tasks that were not placed wait in it.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, conflicts_with_all = TraceArgs::NAMES, help_heading = "Of a snapshot")]
    json: bool,
    #[command(flatten)]
    trace: TraceArgs,
}

/// Replays a snapshot or a trace.
pub(crate) fn replay(args: &ReplayArgs) -> Result<()> {
    match &args.snapshot {
        Some(path) => replay_snapshot(path, args),
        None => replay_trace(&args.trace, args.dump.as_deref()),
    }
}

fn replay_snapshot(path: &Path, args: &ReplayArgs) -> Result<()> {
    let snapshot = File::load(path)?;
    let mut session = Session::new(&snapshot).with_context(|| path.display().to_string())?;
    let converged = session.converge(args.cycles.unwrap_or(CYCLES_MAX));
    let report = Report::new(&session, converged);
    if let Some(path) = &args.dump {
        super::write_file(path, &snapshot.later(session.scheduler(), session.cluster())?.render()?)?;
    }
    super::print(&report, args.json)
}

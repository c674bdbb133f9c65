//! `aliquot-scheduler explain`.

use std::path::PathBuf;

use aliquot_scheduler::session::{CYCLES_MAX, Session};
use aliquot_scheduler::snapshot::File;
use anyhow::{Context, Result};
use clap::Args;

/// Arguments of `explain`.
#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// The snapshot.
    snapshot: PathBuf,
    /// The claim, as NAME or NAMESPACE/NAME.
    claim: String,
}

/// Runs the snapshot until nothing changes, and explains the claim.
pub(crate) fn explain(args: &ExplainArgs) -> Result<()> {
    let snapshot = File::load(&args.snapshot)?;
    let mut session = Session::new(&snapshot).with_context(|| args.snapshot.display().to_string())?;
    let claim = session.claim_named(&args.claim);
    let claim = claim.with_context(|| format!("{}: there is no claim {:?}", args.snapshot.display(), args.claim))?;
    session.converge(CYCLES_MAX);
    super::print_text(&session.scheduler().explain(session.cluster(), claim)?.to_string())
}

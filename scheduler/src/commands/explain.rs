//! `aliquot-scheduler explain`.

use std::path::PathBuf;

use aliquot_scheduler::session::{CYCLES_MAX, Session};
use aliquot_scheduler::snapshot::File;
use aliquot_scheduler_core::explain::Explanation;
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

/// Arguments of `explain`.
#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// The snapshot.
    snapshot: PathBuf,
    /// The claim, as NAME or NAMESPACE/NAME.
    claim: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the snapshot until nothing changes, and explains the claim.
pub(crate) fn explain(args: &ExplainArgs) -> Result<()> {
    let snapshot = File::load(&args.snapshot)?;
    let mut session = Session::new(&snapshot).with_context(|| args.snapshot.display().to_string())?;
    let claim = session.claim_named(&args.claim);
    let claim = claim.with_context(|| format!("{}: there is no claim {:?}", args.snapshot.display(), args.claim))?;
    session.converge(CYCLES_MAX);
    let explanation = session.scheduler().explain(session.cluster(), claim)?;
    super::print_text(&match args.json {
        true => serde_json::to_string_pretty(&in_json(&explanation))?,
        false => explanation.to_string(),
    })
}

fn in_json(explanation: &Explanation) -> Value {
    let Explanation { name, node, reasons, changes, evictions, .. } = explanation;
    json!({
        "claim": name,
        "node": node,
        "reasons": texts(reasons),
        "changes": texts(changes),
        "evictions": texts(evictions),
    })
}

fn texts(list: &[impl ToString]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

//! `aliquot-scheduler simulate`.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use aliquot_scheduler::policy::PolicyName;
use aliquot_scheduler::simulate::{Changes, simulate as run};
use aliquot_scheduler::snapshot::File;
use anyhow::{Context, Result, bail};
use clap::Args;

/// Arguments of `simulate`.
#[derive(Args)]
pub(crate) struct SimulateArgs {
    /// The snapshot.
    snapshot: PathBuf,
    /// Add the nodes, queues, pod groups and claims of this file in the snapshot's format; - reads standard input.
    #[arg(long, value_name = "FILE")]
    add: Vec<PathBuf>,
    /// Add COUNT nodes like NODE, without claims on them.
    #[arg(long, value_name = "NODE=COUNT", value_parser = node_and_count)]
    add_nodes: Vec<(String, u32)>,
    /// Remove this node; its claims wait again.
    #[arg(long, value_name = "NODE")]
    remove_node: Vec<String>,
    /// Change a queue. FIELD is quota, limit or weight; RESOURCE is a resource as in the snapshot.
    #[arg(long, value_name = "QUEUE.FIELD.RESOURCE=AMOUNT")]
    set: Vec<String>,
    /// Use this placement policy instead of the snapshot's.
    #[arg(long, value_enum)]
    policy: Option<PolicyName>,
    /// Continue the simulation until this time, in milliseconds on the snapshot's clock.
    #[arg(long)]
    until_ms: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn node_and_count(text: &str) -> Result<(String, u32)> {
    let (node, count) = text.rsplit_once('=').context("write NODE=COUNT, such as a100-0=4")?;
    Ok((node.to_owned(), count.parse().with_context(|| format!("{count:?} is not a number of nodes"))?))
}

/// Runs the snapshot as it is and with the changes, and prints the difference.
pub(crate) fn simulate(args: &SimulateArgs) -> Result<()> {
    let snapshot = File::load(&args.snapshot)?;
    let changes = Changes {
        add: args.add.iter().map(|path| load(path)).collect::<Result<_>>()?,
        add_nodes: args.add_nodes.clone(),
        remove_nodes: args.remove_node.clone(),
        set: args.set.clone(),
        policy: args.policy,
    };
    if changes.is_empty() {
        bail!("no change is given; give one, for example by --add-nodes NODE=COUNT, --add FILE or --policy");
    }
    let simulation = run(&snapshot, &changes, args.until_ms).with_context(|| args.snapshot.display().to_string())?;
    super::print(&simulation, args.json)
}

fn load(path: &Path) -> Result<File> {
    if path != Path::new("-") {
        return File::load(path);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    File::parse(&text).context("standard input")
}

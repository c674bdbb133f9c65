//! `aliquot-scheduler steady`.

use std::path::PathBuf;

use aliquot_scheduler::policy::PolicyName;
use aliquot_scheduler::steady::{Mode, Play, play};
use aliquot_scheduler::trace::{read_nodes, read_tasks};
use anyhow::{Context, Result};
use clap::Args;

/// Arguments of `steady`. Of lists, each value is combined with each of the others, and each combination prints a line
/// of JSON.
#[derive(Args)]
pub(crate) struct SteadyArgs {
    /// The nodes: sn,cpu_milli,memory_mib,gpu,model[,gpu_memory_mib]; of equally good ones the earlier is taken.
    #[arg(long)]
    nodes: PathBuf,
    /// The tasks that those that come are drawn from:
    /// name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec][,gpu_memory_mib].
    #[arg(long)]
    tasks: PathBuf,
    /// Device time that tasks ask for, in percent of what there is; several separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "90", value_parser = clap::value_parser!(u32).range(1..=1000))]
    load: Vec<u32>,
    /// What happens to tasks that do not fit when they come.
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// How nodes are chosen; several separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "default")]
    policy: Vec<PolicyName>,
    /// Where chances begin; several separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// Tasks that come before any is counted.
    #[arg(long, default_value_t = 30_000)]
    warm_up: u64,
    /// Tasks that are counted.
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Move running tasks to make room for those that do not fit.
    #[arg(long)]
    consolidate: bool,
}

/// Runs each combination, and prints its results as a line of JSON.
pub(crate) fn steady(args: &SteadyArgs) -> Result<()> {
    let (nodes, tasks) = (read_nodes(&args.nodes)?, read_tasks(&args.tasks)?);
    for load_percent in &args.load {
        for policy in &args.policy {
            for seed in &args.seed {
                let what = Play {
                    load_percent: *load_percent,
                    mode: args.mode,
                    policy: *policy,
                    consolidate: args.consolidate,
                    seed: *seed,
                    warm_up: args.warm_up,
                    count: args.count,
                };
                let of = || format!("{} on {}", args.tasks.display(), args.nodes.display());
                let report = play(&nodes, &tasks, &what).with_context(of)?;
                super::print_text(&serde_json::to_string(&report)?)?;
            }
        }
    }
    Ok(())
}

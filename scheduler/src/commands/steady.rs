//! `aliquot-scheduler steady`.

use std::path::PathBuf;

use aliquot_scheduler::policy::PolicyName;
use aliquot_scheduler::steady::{Mode, Play, play};
use aliquot_scheduler::trace::{read_nodes, read_tasks};
use anyhow::{Context, Result};
use clap::Args;

/// Arguments of `steady`. The values of lists are combined in all ways, and each combination prints a line of JSON.
#[derive(Args)]
pub(crate) struct SteadyArgs {
    /// The nodes, as CSV with the columns sn,cpu_milli,memory_mib,gpu,model[,gpu_memory_mib]. Among equally good nodes
    /// the first is taken.
    #[arg(long)]
    nodes: PathBuf,
    /// The tasks from which arriving tasks are drawn, as CSV with the columns
    /// name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec][,gpu_memory_mib].
    #[arg(long)]
    tasks: PathBuf,
    /// Requested device time, in percent of the capacity; several values are separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "90", value_parser = clap::value_parser!(u32).range(1..=1000))]
    load: Vec<u32>,
    /// The treatment of tasks that do not fit when they arrive.
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// The placement policy; several are separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "default")]
    policy: Vec<PolicyName>,
    /// The seed of the random numbers; several are separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// The number of tasks that arrive before any is counted.
    #[arg(long, default_value_t = 30_000)]
    warm_up: u64,
    /// The number of tasks that are counted.
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

//! Plays many arrival orders of a trace family through two policies and compares them: means over seeds of what was
//! allocated at 100 and 130 % of demand, and of the tasks that were left out by 100 %.
//!
//! Orders are generated (`order`), and so are traces with another mix (`variant`), so that a policy is not judged on
//! the few that are published.

mod order;
mod variant;

use std::path::PathBuf;

use aliquot_scheduler::policy::PolicyName;
use aliquot_scheduler::replay::{Summary, replay};
use aliquot_scheduler::trace::{Task, read_nodes, read_tasks};
use aliquot_scheduler_core::NodeSpec;
use aliquot_scheduler_core::placement::Mix;
use anyhow::{Context, Result};
use clap::Parser;

#[derive(Parser)]
struct Args {
    /// Folder with the lists of nodes and tasks.
    #[arg(long)]
    data: PathBuf,
    /// Traces, separated by commas: a list's name, and possibly what is changed about it, as in default+multi30 (30 %
    /// of the demand for several devices), +share60 (60 % for parts of a device), +cpu200 (twice as many tasks without
    /// devices), +spec20 (20 % of the tasks restricted to models).
    #[arg(long, value_delimiter = ',', default_value = "default,cpu250,gpushare40,multigpu20,gpuspec33")]
    traces: Vec<String>,
    /// Number of arrival orders.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// The first order.
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Policies to compare.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fgd,default")]
    policies: Vec<PolicyName>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let nodes = read_nodes(&args.data.join("openb_node_list_gpu_node.csv"))?;
    println!(
        "{:20} {:>14} {:>8} {:>8} {:>9} {:>9} {:>7}",
        "trace", "policy", "@100", "@130", "unplaced", "several", "first"
    );
    for name in &args.traces {
        let (list, change) = name.split_once('+').map_or((name.as_str(), None), |(list, change)| (list, Some(change)));
        let mut tasks = read_tasks(&args.data.join(format!("openb_pod_list_{list}.csv")))?;
        if let Some(change) = change {
            tasks = variant::change(&nodes, tasks, change).with_context(|| format!("in the trace's name {name:?}"))?;
        }
        for policy in &args.policies {
            let summaries = play(&nodes, &tasks, *policy, args.first_seed, args.seeds)?;
            print_means(name, *policy, &summaries);
        }
    }
    Ok(())
}

fn play(nodes: &[NodeSpec], tasks: &[Task], policy: PolicyName, first: u64, seeds: u64) -> Result<Vec<Summary>> {
    let mix = Mix::of(tasks.iter().map(|task| &task.request));
    let run = |seed| -> Result<Summary> {
        let (nodes, tasks) = order::arrivals(nodes, tasks, seed);
        Ok(replay(&nodes, &tasks, policy.make(&mix, seed), None)?.summary)
    };
    (first..first + seeds).map(run).collect()
}

fn print_means(trace: &str, policy: PolicyName, summaries: &[Summary]) {
    let mean = |value: &dyn Fn(&Summary) -> f64| summaries.iter().map(value).sum::<f64>() / summaries.len() as f64;
    println!(
        "{trace:20} {:>14} {:8.2} {:8.2} {:9.1} {:9.1} {:7.1}",
        format!("{policy:?}"),
        mean(&|s| s.allocated_at_100.unwrap_or_default()),
        mean(&|s| s.allocated_at_130.unwrap_or_default()),
        mean(&|s| s.unplaced_at_100.total as f64),
        mean(&|s| s.unplaced_at_100.several_devices as f64),
        mean(&|s| s.first_unplaced_at.unwrap_or(130.0)),
    );
}

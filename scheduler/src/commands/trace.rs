//! The replay of a trace.

use std::path::{Path, PathBuf};
use std::time::Duration;

use aliquot_scheduler::plot::{Series, svg};
use aliquot_scheduler::policy::PolicyName;
use aliquot_scheduler::replay::{Summary, end_of, replay};
use aliquot_scheduler::snapshot::File;
use aliquot_scheduler::trace::{placements, read_nodes, read_tasks};
use aliquot_scheduler_core::placement::Mix;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;

/// Arguments of a replay of a trace.
#[derive(Args)]
pub(crate) struct TraceArgs {
    /// The nodes, as CSV with the columns sn,cpu_milli,memory_mib,gpu,model[,gpu_memory_mib]. Among equally good nodes
    /// the first is taken.
    #[arg(long, requires = "arrivals", help_heading = "Of a trace")]
    nodes: Option<PathBuf>,
    /// The tasks in the order of their arrival, as CSV with the columns
    /// name,cpu_milli,memory_mib,num_gpu,gpu_milli[,gpu_spec][,gpu_memory_mib].
    #[arg(long, requires = "nodes", help_heading = "Of a trace")]
    arrivals: Option<PathBuf>,
    /// Tasks whose mix the policy knows in advance, in the same format [default: the arrivals].
    #[arg(long, requires = "nodes", help_heading = "Of a trace")]
    typical: Option<PathBuf>,
    /// The placement policy.
    #[arg(long, value_enum, default_value_t, help_heading = "Of a trace")]
    policy: PolicyName,
    /// The seed of the random policy.
    #[arg(long, default_value_t = 0, help_heading = "Of a trace")]
    seed: u64,
    /// Write the placement of each task to this file, as CSV with the columns pod,node,gpus.
    #[arg(long, requires = "nodes", help_heading = "Of a trace")]
    placements: Option<PathBuf>,
    /// Draw the allocated and the fragmented device time against the arrived demand, into this SVG file.
    #[arg(long, requires = "nodes", help_heading = "Of a trace")]
    plot: Option<PathBuf>,
    /// Print also the durations of decisions.
    #[arg(long, requires = "nodes", help_heading = "Of a trace")]
    timings: bool,
}

impl TraceArgs {
    /// The names of these arguments, none of which can be combined with a snapshot.
    pub(crate) const NAMES: [&str; 8] =
        ["nodes", "arrivals", "typical", "policy", "seed", "placements", "plot", "timings"];
}

/// The results that are printed.
#[derive(Serialize)]
struct Report {
    policy: PolicyName,
    #[serde(flatten)]
    summary: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision_time: Option<DecisionTime>,
}

#[derive(Serialize)]
struct DecisionTime {
    mean_ns: u128,
    p50_ns: u128,
    p99_ns: u128,
    max_ns: u128,
}

/// Replays the trace and prints the summary; writes the state at the end to `dump`.
pub(crate) fn replay_trace(args: &TraceArgs, dump: Option<&Path>) -> Result<()> {
    let (Some(list), Some(arrivals)) = (&args.nodes, &args.arrivals) else {
        bail!("a trace needs two files; name them with --nodes and --arrivals");
    };
    let nodes = read_nodes(list)?;
    let tasks = read_tasks(arrivals)?;
    let typical = args.typical.as_deref().map(read_tasks).transpose()?;
    let mix = Mix::of(typical.as_ref().unwrap_or(&tasks).iter().map(|task| &task.request));
    let measure = mix.most_frequent(95);
    let played = replay(&nodes, &tasks, args.policy.make(&mix, args.seed), Some(&measure))
        .with_context(|| list.display().to_string())?;
    if let Some(path) = &args.placements {
        let placed = played.placements.iter().map(|placement| {
            let (node, allocation) = placement.as_ref()?;
            Some((nodes.get(*node)?.name.as_str(), allocation))
        });
        super::write_file(path, &placements(tasks.iter().zip(placed))?)?;
    }
    if let Some(path) = &args.plot {
        let series = [
            Series { name: "allocated, %", colour: "#1b6ca8", points: &played.summary.allocated },
            Series { name: "fragmented, %", colour: "#b33a3a", points: &played.summary.fragmented },
        ];
        super::write_file(path, &svg("Device time allocated and fragmented, % of capacity", &series))?;
    }
    if let Some(path) = dump {
        let cluster = end_of(&nodes, &tasks, &played.placements)?;
        super::write_file(path, &File::of_cluster(&cluster, args.policy, args.seed, &mix)?.render()?)?;
    }
    let decision_time = args.timings.then(|| decision_time(played.decisions));
    let report = Report { policy: args.policy, summary: played.summary, decision_time };
    super::print_text(&serde_json::to_string_pretty(&report)?)
}

fn decision_time(mut times: Vec<Duration>) -> DecisionTime {
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).or(times.last()).map_or(0, Duration::as_nanos);
    let sum: u128 = times.iter().map(Duration::as_nanos).sum();
    DecisionTime { mean_ns: sum / times.len().max(1) as u128, p50_ns: at(50), p99_ns: at(99), max_ns: at(100) }
}

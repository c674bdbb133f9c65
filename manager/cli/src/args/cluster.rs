//! The commands for a cluster: jobs, queues and nodes.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::cluster::completion::{jobs, nodes, queues};
use crate::cluster::{JobWords, Ports, TaskId, Text};
use crate::quantity::{DeviceLimit, Span};

/// Submit a job to the cluster: a command that runs where there is room for it.
///
/// Prints the job's number. The job may also be in a YAML file, in the words of the options; options go before the file.
#[derive(Args, Debug)]
#[command(
    override_usage = "aliquot submit [OPTIONS] -- <CMD>...\n       aliquot submit [OPTIONS] --file <FILE>",
    after_long_help = "\
Examples:
  aliquot submit --gpu-core 30 --gpu-memory 8GiB -- python train.py
  aliquot submit --gpus 2 --gpu-core 100 --gang 4 -- torchrun train.py
  aliquot submit --gpu-core 10 --array 0-99 -- sh -c 'python sweep.py --seed $ALIQUOT_ARRAY_INDEX'
  aliquot submit -f job.yaml --queue team-b
  aliquot submit --wait --follow --gpu-core 30 -- make test

A file:
  name: train
  queue: team-a
  gpu-core: 30
  gpu-memory: 8GiB
  env: {EPOCHS: 3, HF_TOKEN: }
  command: [python, train.py]

Exit status with --wait:
  125   aliquot itself failed          1    the job was cancelled, or failed without a status
  130   Ctrl-C; the job goes on        128+N the command was ended by signal N
  otherwise the status of the command, of the first that failed"
)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub(crate) words: JobWords,
    /// Read the job from this YAML file; - reads standard input
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    /// Print the JSON Schema of such files
    #[arg(long)]
    pub(crate) schema: bool,
    /// Wait until the job has ended, and exit with its status
    #[arg(long)]
    pub(crate) wait: bool,
    /// Meanwhile print what it writes; of a gang, what rank 0 writes
    #[arg(long, requires = "wait", conflicts_with = "json")]
    pub(crate) follow: bool,
    /// Print the job as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the jobs of the cluster, the newest first.
///
/// RUN/WAIT/DONE are the numbers of its tasks that run, that wait and that have ended. GPU is what it asks for: members
/// of a gang × devices × share of each. NODE is where it is or was.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot jobs
  aliquot jobs --all --user ada
  aliquot jobs --queue team-a
  aliquot jobs --json | jq -r '.jobs[] | select(.state == \"pending\") | .id'")]
pub(crate) struct JobsArgs {
    /// Also jobs that have ended
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Only jobs of this user
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Only jobs in this queue
    #[arg(long, short, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) queue: Option<String>,
    /// At most this many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Print JSON, with exact figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show everything about a job: what it asks for, its tasks, where they run, and how they have ended.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot job 17
  aliquot job 17.3
  aliquot job 17 --json | jq '.tasks[].members[].node'")]
pub(crate) struct JobArgs {
    /// The job, or one of its tasks: 17 or 17.3
    #[arg(value_name = "JOB[.TASK]", add = ArgValueCompleter::new(jobs))]
    pub(crate) task: TaskId,
    /// Print JSON, with exact figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print what a job has written.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot logs 17
  aliquot logs 17.3 -f
  aliquot logs 17 --rank 2 -n 100")]
pub(crate) struct LogsArgs {
    /// The job, or one of its tasks: 17 or 17.3
    #[arg(value_name = "JOB[.TASK]", add = ArgValueCompleter::new(jobs))]
    pub(crate) task: TaskId,
    /// Member of a gang
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub(crate) rank: u32,
    /// Continue until the task has ended
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only the last lines of what is there [default: all]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) lines: Option<u32>,
    /// Print JSON: one object for each line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what a job writes from now on, until it ends, and exit with its status.
///
/// Ctrl-C ends this program and not the job. A job has no standard input; `aliquot exec` runs a command beside it.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot attach 17
  aliquot attach 17.3 --rank 2")]
pub(crate) struct AttachArgs {
    /// The job, or one of its tasks: 17 or 17.3
    #[arg(value_name = "JOB[.TASK]", add = ArgValueCompleter::new(jobs))]
    pub(crate) task: TaskId,
    /// Member of a gang
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub(crate) rank: u32,
}

/// Forward TCP connections from here to ports of a running job, until Ctrl-C or the end of the job.
///
/// Only programs of this machine can connect. The job's program listens on its node's loopback address or on all; if the
/// job has a network of its own, there.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot port-forward 17 8888
  aliquot port-forward 17 9000:8888 :6006
  aliquot port-forward 17.3 --rank 2 29500")]
pub(crate) struct PortForwardArgs {
    /// The job, or one of its tasks: 17 or 17.3
    #[arg(value_name = "JOB[.TASK]", add = ArgValueCompleter::new(jobs))]
    pub(crate) task: TaskId,
    /// The job's port; or a port here, a colon and the job's: without a port here a free one is taken
    #[arg(value_name = "[LOCAL:]REMOTE", required = true)]
    pub(crate) ports: Vec<Ports>,
    /// Member of a gang
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub(crate) rank: u32,
}

/// End jobs, or some of their tasks.
///
/// What runs is stopped with SIGTERM, and with SIGKILL when its grace is over. Of several jobs, those that can be ended
/// are ended, even if others cannot.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot cancel 17
  aliquot cancel 17.3 17.4 18")]
pub(crate) struct CancelArgs {
    /// Jobs, or tasks of jobs: 17 or 17.3
    #[arg(value_name = "JOB[.TASK]", required = true, add = ArgValueCompleter::new(jobs))]
    pub(crate) tasks: Vec<TaskId>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say why a job waits or was evicted, and what would help.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot explain 17
  aliquot explain 17.3 --json")]
pub(crate) struct ExplainArgs {
    /// The job, or one of its tasks: 17 or 17.3
    #[arg(value_name = "JOB[.TASK]", add = ArgValueCompleter::new(jobs))]
    pub(crate) task: TaskId,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the queues of the cluster, or change them.
///
/// QUOTA is guaranteed, LIMIT is never exceeded, and FAIR SHARE is what the queue may have now; all in devices.
#[derive(Args, Debug)]
#[command(
    visible_alias = "queue",
    args_conflicts_with_subcommands = true,
    after_long_help = "\
Examples:
  aliquot queues
  aliquot queues set team-a --quota 4 --limit 8
  aliquot queues remove team-a"
)]
pub(crate) struct QueuesArgs {
    #[command(subcommand)]
    pub(crate) command: Option<QueuesCommand>,
    /// Print JSON, with exact figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// Changes of queues.
#[derive(Subcommand, Debug)]
pub(crate) enum QueuesCommand {
    Set(QueueSetArgs),
    Remove(QueueRemoveArgs),
}

/// Make a queue, or change one.
///
/// Options that are not given change nothing. Only administrators may do this.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot queues set team-a --quota 4 --limit 8 --weight 2
  aliquot queues set vision --parent research --quota 0.5
  aliquot queues set team-a --limit none")]
pub(crate) struct QueueSetArgs {
    /// Name of the queue
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(queues))]
    pub(crate) name: Text,
    /// Devices that are guaranteed: 4 or 0.5, or none
    #[arg(long, value_name = "DEVICES", allow_hyphen_values = true)]
    pub(crate) quota: Option<DeviceLimit>,
    /// Devices that it may have at most, or none for no limit
    #[arg(long, value_name = "DEVICES", allow_hyphen_values = true)]
    pub(crate) limit: Option<DeviceLimit>,
    /// Its part of what is left over, relative to that of others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) weight: Option<u32>,
    /// The queue whose part it is of
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) parent: Option<Text>,
    /// It is part of no other queue
    #[arg(long, conflicts_with = "parent")]
    pub(crate) top_level: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove a queue that no job is in.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot queues remove team-a")]
pub(crate) struct QueueRemoveArgs {
    /// Name of the queue
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(queues))]
    pub(crate) name: Text,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the nodes of the cluster; without a cluster, this node's devices: what is given, and what is free.
#[derive(Args, Debug)]
#[command(
    visible_alias = "node",
    args_conflicts_with_subcommands = true,
    after_long_help = "\
Examples:
  aliquot nodes
  aliquot nodes --local
  aliquot nodes --local --json | jq -r '.devices[].uuid'
  aliquot nodes remove gpu-3 --nothing-runs-there"
)]
pub(crate) struct NodesArgs {
    #[command(subcommand)]
    pub(crate) command: Option<NodesCommand>,
    /// Show this node's devices, also where there is a cluster
    #[arg(long)]
    pub(crate) local: bool,
    /// Print JSON, with exact figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// Changes of the cluster's nodes.
#[derive(Subcommand, Debug)]
pub(crate) enum NodesCommand {
    Remove(NodeRemoveArgs),
}

/// Remove a node that does not come back, so that its jobs start elsewhere at once.
///
/// Without this they start elsewhere when the node's lease has lapsed. Only administrators may do this.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot nodes remove gpu-3 --nothing-runs-there")]
pub(crate) struct NodeRemoveArgs {
    /// Name of the node
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(nodes))]
    pub(crate) name: Text,
    /// It is certain that none of its jobs still runs: the node is off. Required, because such jobs would run twice
    #[arg(long)]
    pub(crate) nothing_runs_there: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a token with which a node joins the cluster, and print the command for it.
///
/// Whoever has the token can add a node, which then is given jobs. Only administrators may do this.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot token
  aliquot token --valid 1d --uses 8
  ssh gpu-1 sudo $(aliquot token)")]
pub(crate) struct TokenArgs {
    /// How long it can be used [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub(crate) valid: Option<Span>,
    /// How many nodes may join with it [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) uses: Option<u32>,
    /// A node may take the name of one that has joined before
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

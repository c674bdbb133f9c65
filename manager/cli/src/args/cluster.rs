//! The commands for a cluster: jobs, queues and nodes.

use std::path::PathBuf;

use aliquot_terminal::number::at_least;
use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::cluster::completion::{jobs, nodes, queues};
use crate::cluster::{JobWords, Ports, Priority, TaskId, Text};
use crate::quantity::{CountLimit, MemoryLimit, MinRuntime, Span};

/// Submit a job to the cluster: a command that runs on a node with enough free resources.
///
/// Prints the job's number. The job may also be in a YAML file, whose keys are the names of the options. An option
/// takes precedence over the file.
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
    /// While waiting, print the output of the job; of a gang, the output of rank 0
    #[arg(long, requires = "wait", conflicts_with = "json")]
    pub(crate) follow: bool,
    /// Print the job as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the jobs of the cluster, the newest first.
///
/// RUN/WAIT/DONE are the numbers of the job's running, waiting and ended tasks. GPU is the job's request: members of a
/// gang × devices × share of each device. NODE is the node of the job, or its last node.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot jobs
  aliquot jobs --all --user ada
  aliquot jobs --queue team-a
  aliquot jobs --json | jq -r '.jobs[] | select(.state == \"pending\") | .id'")]
pub(crate) struct JobsArgs {
    /// List also the jobs that have ended
    #[arg(long, short)]
    pub(crate) all: bool,
    /// List only the jobs of this user
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// List only the jobs in this queue
    #[arg(long, short, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) queue: Option<String>,
    /// List at most N jobs
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000, allow_negative_numbers = true, value_parser = at_least(1_u32))]
    pub(crate) count: u32,
    /// Print JSON, with exact figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show all details of a job: its request, its tasks, their nodes, and their results.
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

/// Print the output of a job.
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
    #[arg(long, value_name = "RANK", default_value_t = 0, allow_negative_numbers = true, value_parser = at_least(0_u32))]
    pub(crate) rank: u32,
    /// Continue with new output until the task has ended
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print only the last N lines of the output so far [default: all]
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true, value_parser = at_least(1_u32))]
    pub(crate) lines: Option<u32>,
    /// Print JSON: one object for each line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the output of a job from now on, until the job ends, and exit with its status.
///
/// Ctrl-C ends this program and not the job. A job has no standard input; `aliquot exec` runs a command beside the job.
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
    #[arg(long, value_name = "RANK", default_value_t = 0, allow_negative_numbers = true, value_parser = at_least(0_u32))]
    pub(crate) rank: u32,
}

/// Forward TCP connections from this machine to ports of a running job, until Ctrl-C or the end of the job.
///
/// Only programs on this machine can connect. The job's program must listen on the loopback address or on all
/// addresses. These are the addresses of the node, or of the job's own network if it has one.
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
    /// REMOTE is a port of the job, LOCAL a port of this machine. Without "LOCAL:" both have the same number; ":REMOTE"
    /// takes a free local port
    #[arg(value_name = "[LOCAL:]REMOTE", required = true)]
    pub(crate) ports: Vec<Ports>,
    /// Member of a gang
    #[arg(long, value_name = "RANK", default_value_t = 0, allow_negative_numbers = true, value_parser = at_least(0_u32))]
    pub(crate) rank: u32,
}

/// End jobs, or some of their tasks.
///
/// A running task gets SIGTERM, and SIGKILL after its grace period. If one of several jobs cannot be ended, the others
/// still are.
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

/// Explain why a job waits or was evicted, and suggest changes.
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
/// All amounts of the first table are numbers of devices. QUOTA is guaranteed, LIMIT is never exceeded, and FAIR SHARE is
/// the present entitlement of the queue. Some columns are there only if a queue has a value: PRIORITY; PREEMPT and
/// RECLAIM AFTER, which are the minimum run times; USED LATELY, which is what the queue has held lately of the time of
/// all devices. If a queue has a quota or a limit of CPUs or memory, a second table shows these.
#[derive(Args, Debug)]
#[command(
    visible_alias = "queue",
    args_conflicts_with_subcommands = true,
    after_long_help = "\
Examples:
  aliquot queues
  aliquot queues set team-a --quota 4 --limit 8
  aliquot queues set team-a --cpu-limit 64 --memory-limit 512GiB
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
  aliquot queues set team-a --cpu-quota 32 --memory-limit 512GiB
  aliquot queues set team-a --priority 10 --reclaim-min-runtime 30m
  aliquot queues set team-a --limit none")]
pub(crate) struct QueueSetArgs {
    /// Name of the queue
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(queues))]
    pub(crate) name: Text,
    /// Guaranteed number of devices: 4, 0.5 or none
    #[arg(long, value_name = "DEVICES", allow_hyphen_values = true)]
    pub(crate) quota: Option<CountLimit>,
    /// Maximum number of devices: 4, 0.5, or none for no limit
    #[arg(long, value_name = "DEVICES", allow_hyphen_values = true)]
    pub(crate) limit: Option<CountLimit>,
    /// Guaranteed number of CPUs: 32, 0.5 or none. If any queue has a quota of CPUs, they are divided among all queues, as
    /// devices are
    #[arg(long, value_name = "CPUS", allow_hyphen_values = true)]
    pub(crate) cpu_quota: Option<CountLimit>,
    /// Maximum number of CPUs: 64, 0.5, or none for no limit
    #[arg(long, value_name = "CPUS", allow_hyphen_values = true)]
    pub(crate) cpu_limit: Option<CountLimit>,
    /// Guaranteed memory of the nodes: 256GiB or none. If any queue has a quota of memory, it is divided among all queues,
    /// as devices are
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory_quota: Option<MemoryLimit>,
    /// Maximum memory of the nodes: 512GiB, or none for no limit
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory_limit: Option<MemoryLimit>,
    /// Weight of the queue when what is beyond the quotas is divided
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least(1_u32))]
    pub(crate) weight: Option<u32>,
    /// Priority of the queue: of what is beyond the quotas, queues with a greater number get their part first [default of
    /// a new queue: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) priority: Option<Priority>,
    /// How long a task must have run before one of the same queue with a greater priority may evict it: 10m, 0, or none
    /// for that of the queue above
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) preempt_min_runtime: Option<MinRuntime>,
    /// How long a task must have run before another queue may take its place: 10m, 0, or none for that of the queue above
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) reclaim_min_runtime: Option<MinRuntime>,
    /// The parent of a new queue; it cannot be changed later [default: none]
    #[arg(long, value_name = "QUEUE", add = ArgValueCompleter::new(queues))]
    pub(crate) parent: Option<Text>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove a queue that has no jobs.
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

/// Show the nodes of the cluster; without a cluster, the devices of this node with their allocated and free parts.
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
    /// Show this node's devices, also if the node is in a cluster
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

/// Remove a node that will not return, so that its jobs start on other nodes at once.
///
/// Without this command, the jobs of a lost node start on other nodes when the node's lease has ended. Only
/// administrators may do this.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot nodes remove gpu-3 --nothing-runs-there")]
pub(crate) struct NodeRemoveArgs {
    /// Name of the node
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(nodes))]
    pub(crate) name: Text,
    /// Confirm that no job runs on the node any more, for example because the node is off. Required: a job that still
    /// runs there would run twice
    #[arg(long)]
    pub(crate) nothing_runs_there: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a token for joining the cluster, and print the command that joins a node.
///
/// Anyone with the token can add a node, and the scheduler then starts jobs on that node. Only administrators may do
/// this.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot token
  aliquot token --valid 1d --uses 8
  ssh gpu-1 sudo $(aliquot token)")]
pub(crate) struct TokenArgs {
    /// Lifetime of the token [default: 1h]
    #[arg(long, value_name = "TIME")]
    pub(crate) valid: Option<Span>,
    /// Number of nodes that may join with the token [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least(1_u32))]
    pub(crate) uses: Option<u32>,
    /// Let the node take the name of a node that has joined before
    #[arg(long)]
    pub(crate) replace: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

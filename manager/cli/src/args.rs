//! The command line: commands, options, and the text of their help.

mod cluster;
mod users;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Effects};
use clap::builder::{OsStringValueParser, Styles, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

pub(crate) use cluster::{
    AttachArgs, CancelArgs, ExplainArgs, JobArgs, JobsArgs, LogsArgs, NodeRemoveArgs, NodesArgs, NodesCommand,
    PortForwardArgs, QueueRemoveArgs, QueueSetArgs, QueuesArgs, QueuesCommand, SubmitArgs, TokenArgs,
};
pub(crate) use users::{RoleWord, UserAddArgs, UserRemoveArgs, UserRights, UserSetArgs, UsersArgs, UsersCommand};

use crate::cluster::TaskId;
use crate::cluster::completion::jobs;
use crate::completion::slices;
use crate::priority::Priority;
use crate::quantity::{CorePercent, HostMemory, Memory, Span};
use crate::user::User;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .usage(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .literal(AnsiColor::Cyan.on_default().effects(Effects::BOLD))
    .placeholder(AnsiColor::Cyan.on_default());

/// Gives commands and containers exact parts of a GPU: a percentage of its time, and a number of bytes of its memory.
///
/// A part is called a slice. It is enforced for unmodified programs, on any NVIDIA GPU. The node manager,
/// aliquot-manager, keeps the slices of a machine; where it does not run, `run` and `demo` work without it. The
/// scheduler, aliquot-scheduler, places jobs on the machines of a cluster.
#[derive(Parser, Debug)]
#[command(
    name = "aliquot",
    version,
    styles = STYLES,
    max_term_width = 100,
    after_long_help = "\
Examples:
  aliquot demo                                        See two programs share one GPU 30/70; needs no GPU
  aliquot run --gpu-core 30 --gpu-memory 4GiB -- python train.py
                                                      Run a command in a slice of its own
  aliquot slice create train --gpu-core 30 --gpu-memory 4GiB
  podman run --device aliquot.dev/slice=train …       Run a container in a slice
  aliquot ps                                          Who uses what
  aliquot doctor                                      What works on this machine, and what to do about the rest
  aliquot submit --gpu-core 30 -- python train.py     Run a command somewhere in the cluster
  aliquot jobs                                        What runs and waits in the cluster
  aliquot dev                                         Try a whole cluster on this machine; needs no GPU

Exit status:
  0  done          1  failed          2  the command line is wrong
  `aliquot run` and `aliquot submit --wait` pass on the status of the command: see their help.

Environment:
  ALIQUOT_SOCKET      Unix socket of the node manager
  ALIQUOT_SCHEDULER   Unix socket of the cluster's scheduler, or a file of credentials for one elsewhere
  NO_COLOR            no colours"
)]
pub(crate) struct Cli {
    /// Unix socket of the node manager [default: $XDG_RUNTIME_DIR/aliquot/manager.sock, then /run/aliquot/manager.sock]
    #[arg(
        long,
        global = true,
        env = "ALIQUOT_SOCKET",
        value_name = "FILE",
        hide_env = true,
        help_heading = "Global options",
        value_parser = OsStringValueParser::new().try_map(socket_path)
    )]
    pub(crate) socket: Option<PathBuf>,
    /// Unix socket of the scheduler, or a file of credentials for one on another machine, which `aliquot users add` writes
    /// [default: $XDG_RUNTIME_DIR/aliquot/scheduler.sock, then ~/.config/aliquot/credentials.toml, then
    /// /run/aliquot/scheduler.sock]
    #[arg(
        long,
        global = true,
        env = "ALIQUOT_SCHEDULER",
        value_name = "FILE",
        hide_env = true,
        help_heading = "Global options",
        value_parser = OsStringValueParser::new().try_map(scheduler_path)
    )]
    pub(crate) scheduler: Option<PathBuf>,
    /// Give up if the node manager or the scheduler has not answered for this long [default: 5 for questions, 30 for changes]
    #[arg(long, global = true, value_name = "SECONDS", help_heading = "Global options", value_parser = interval)]
    pub(crate) timeout: Option<Duration>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn socket_path(path: OsString) -> Result<PathBuf, String> {
    path_or_unset(path, "ALIQUOT_SOCKET")
}

fn scheduler_path(path: OsString) -> Result<PathBuf, String> {
    path_or_unset(path, "ALIQUOT_SCHEDULER")
}

fn path_or_unset(path: OsString, variable: &str) -> Result<PathBuf, String> {
    match path.is_empty() {
        true => Err(format!("the path is empty; name the socket, or unset {variable} for the usual one")),
        false => Ok(path.into()),
    }
}

/// Accepts any name that is not empty: the manager checks the rest.
fn slice_name(name: &str) -> Result<String, String> {
    match name.is_empty() {
        true => {
            Err("a slice's name is not empty: write lower-case letters, digits, '-' and '.', such as train-1"
                .to_owned())
        }
        false => Ok(name.to_owned()),
    }
}

fn device_uuid(uuid: &str) -> Result<String, String> {
    match uuid.is_empty() {
        true => Err("a device's UUID is not empty: `aliquot nodes` shows those of this node".to_owned()),
        false => Ok(uuid.to_owned()),
    }
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Run(RunArgs),
    Exec(ExecArgs),
    #[command(subcommand)]
    Slice(SliceCommand),
    Ps(PsArgs),
    Top(TopArgs),
    Describe(DescribeArgs),
    Events(EventsArgs),
    Submit(Box<SubmitArgs>),
    Jobs(JobsArgs),
    Job(JobArgs),
    Logs(LogsArgs),
    Attach(AttachArgs),
    PortForward(PortForwardArgs),
    Cancel(CancelArgs),
    Explain(ExplainArgs),
    Queues(QueuesArgs),
    Nodes(NodesArgs),
    Token(TokenArgs),
    Users(UsersArgs),
    Doctor(DoctorArgs),
    Demo(DemoArgs),
    Dev(DevArgs),
    Load(LoadArgs),
    Completions(CompletionsArgs),
    /// A worker of `aliquot demo`: a plain driver-API program.
    #[command(hide = true)]
    DemoWorker(DemoWorkerArgs),
    /// The child of `aliquot doctor` that reports with which libraries it was started.
    #[command(hide = true)]
    DoctorProbe,
}

/// Run a command in a slice of its own.
///
/// Creates a slice, runs the command in it, and removes the slice when the command has ended, however it ends. Standard
/// input, output, the terminal, signals and the exit status pass through. If no node manager runs, one is embedded for
/// this run; its limits hold for everything that the command starts, and ALIQUOT_SOCKET tells the command where it is.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot run --gpu-core 30 --gpu-memory 4GiB -- python train.py
  aliquot run --gpu-core 30 --gpu-core-limit 60 --gpu-memory 25% -- ./serve
  aliquot run --gpu-core 50 --gpu-memory 8GiB --devices 2 -- torchrun --nproc-per-node 2 train.py
  aliquot run --gpu-core 30 --gpu-memory 4GiB --simulated -- python train.py

Exit status:
  125   aliquot itself failed          126   the command cannot be executed
  127   the command was not found      128+N the command was ended by signal N
  otherwise the status of the command")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) share: ShareArgs,
    /// Name of the slice [default: a generated name]
    #[arg(long, value_name = "NAME", value_parser = slice_name)]
    pub(crate) name: Option<String>,
    /// Let this user, by name or number, run programs in the slice too, for example programs that the command starts
    /// with su or that change their user; may be given several times. Other users are refused the GPU there
    #[arg(long, value_name = "USER")]
    pub(crate) allow_user: Vec<User>,
    /// Use a simulated GPU and an embedded node manager: kernels take their time and memory is counted, but nothing is
    /// computed
    #[arg(long)]
    pub(crate) simulated: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Run a command in an existing slice, or beside a running job.
///
/// The slice stays when the command has ended; its other programs share it with the command. A number such as 17 or 17.3
/// is a job or one of its tasks; any other name is a slice of this machine.
///
/// In a slice, standard input, output, the terminal, signals and the exit status pass through, as with `aliquot run`,
/// which makes a slice of its own. Beside a job the command runs on the job's node, as the job's user, in its working
/// directory, with its environment and in its slice; if the job has an image, in its container. What the command has
/// started ends with it, with the job, and with this program.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot exec train -- python train.py
  aliquot exec 17 -- nvidia-smi
  aliquot exec -t 17 -- bash
  aliquot exec -i 17.3 -- tar x < data.tar

Exit status: as of `aliquot run`")]
pub(crate) struct ExecArgs {
    /// Name of the slice, or a job or one of its tasks: 17 or 17.3
    #[arg(value_name = "NAME|JOB[.TASK]", value_parser = slice_name, add = ArgValueCompleter::new(slices_and_jobs))]
    pub(crate) name: String,
    /// Hand standard input to a command beside a job
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give a command beside a job a terminal like this one, and standard input
    #[arg(long, short)]
    pub(crate) terminal: bool,
    /// Member of a gang [default: 0]
    #[arg(long, value_name = "RANK")]
    pub(crate) rank: Option<u32>,
    /// The name is a slice's, although it is a number
    #[arg(long, conflicts_with_all = ["interactive", "terminal", "rank"])]
    pub(crate) slice: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl ExecArgs {
    /// The job that is meant; `None`: a slice is.
    pub(crate) fn job(&self) -> Option<TaskId> {
        self.name.parse().ok().filter(|_| !self.slice)
    }
}

/// Slices of this machine, and jobs of the cluster.
fn slices_and_jobs(begun: &OsStr) -> Vec<CompletionCandidate> {
    let mut candidates = slices(begun);
    candidates.extend(jobs(begun));
    candidates
}

/// The share that a slice is to have.
#[derive(Args, Debug)]
pub(crate) struct ShareArgs {
    /// Guaranteed share of each device's time, in percent: 30 or 30%
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(crate) gpu_core: CorePercent,
    /// Maximum share, which holds also when the device is idle [default: the same as --gpu-core]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(crate) gpu_core_limit: Option<CorePercent>,
    /// Maximum memory on each device: 4GiB, 512MiB, 4GB, or 25% of the device [default: the same percentage as
    /// --gpu-core]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) gpu_memory: Option<Memory>,
    /// Maximum page-locked host memory: 4GiB, 512MiB, 4GB [default: no limit]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) host_memory: Option<HostMemory>,
    /// Priority class. It decides who goes first among containers within their requests, and who gets what is left
    /// over; it never takes what another container has requested [default: standard, or what the manager's
    /// configuration says]
    #[arg(long, value_name = "CLASS")]
    pub(crate) priority: Option<Priority>,
    /// Number of devices to have this share of; the manager chooses devices that have room
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16), conflicts_with = "device")]
    pub(crate) devices: u8,
    /// UUID of a device, or its beginning if that is unique; may be given several times
    #[arg(long, value_name = "UUID", value_parser = device_uuid)]
    pub(crate) device: Vec<String>,
}

/// Create, change, remove and list slices.
#[derive(Subcommand, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot slice create train --gpu-core 30 --gpu-memory 4GiB
  aliquot slice resize train --gpu-core 50
  aliquot slice ls
  aliquot slice rm train")]
pub(crate) enum SliceCommand {
    Create(SliceCreateArgs),
    Resize(SliceResizeArgs),
    Rm(SliceRmArgs),
    Ls(SliceLsArgs),
}

/// Create a slice that stays until it is removed.
///
/// The slice is published as the CDI device aliquot.dev/slice=NAME, which podman, docker and containerd can give to a
/// container.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot slice create train --gpu-core 30 --gpu-memory 4GiB
  aliquot slice create serve --gpu-core 20 --gpu-core-limit 100 --priority latency-critical
  aliquot slice create big --gpu-core 50 --gpu-memory 20GiB --devices 2
  podman run --rm --device aliquot.dev/slice=train IMAGE")]
pub(crate) struct SliceCreateArgs {
    /// Name of the slice: lower-case letters, digits, '-' and '.'
    #[arg(value_name = "NAME", value_parser = slice_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) share: ShareArgs,
    /// Let this user, by name or number, run programs in the slice outside of containers, as the user who creates it
    /// can; may be given several times. In containers every user can
    #[arg(long, value_name = "USER")]
    pub(crate) allow_user: Vec<User>,
    /// What runs in it, for people to read
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) description: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change a slice, also while programs run in it.
///
/// Options that are not given change nothing, but a core limit equal to the guaranteed share changes with it. The
/// change is in force when the command ends. A memory limit below what is in use takes nothing away: nothing more is
/// given until less is in use.
#[derive(Args, Debug)]
#[command(
    override_usage = "aliquot slice resize [OPTIONS] <NAME>",
    group = ArgGroup::new("change")
        .args(["gpu_core", "gpu_core_limit", "gpu_memory", "host_memory", "priority", "allow_user"])
        .multiple(true).required(true),
    group = ArgGroup::new("change_of_parts").args(["gpu_core", "gpu_core_limit", "gpu_memory"]).multiple(true),
    after_long_help = "\
Examples:
  aliquot slice resize train --gpu-core 50
  aliquot slice resize train --gpu-core 20 --gpu-core-limit 100 --gpu-memory 8GiB
  aliquot slice resize train --host-memory 16GiB
  aliquot slice resize train --priority batch
  aliquot slice resize train --allow-user ada
  aliquot slice resize big --device GPU-7d3c --gpu-memory 30GiB"
)]
pub(crate) struct SliceResizeArgs {
    /// Name of the slice
    #[arg(value_name = "NAME", value_parser = slice_name, add = ArgValueCompleter::new(slices))]
    pub(crate) name: String,
    /// New guaranteed share in percent
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(crate) gpu_core: Option<CorePercent>,
    /// New maximum share, in percent
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(crate) gpu_core_limit: Option<CorePercent>,
    /// New limit on the memory of each device: 4GiB, 512MiB, 4GB, or 25% of the device
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) gpu_memory: Option<Memory>,
    /// New limit on page-locked host memory, or "none"
    #[arg(long, value_name = "SIZE|none", allow_hyphen_values = true)]
    pub(crate) host_memory: Option<HostMemory>,
    /// New priority class
    #[arg(long, value_name = "CLASS")]
    pub(crate) priority: Option<Priority>,
    /// Let this user too, by name or number, run programs in the slice outside of containers; may be given several
    /// times
    #[arg(long, value_name = "USER")]
    pub(crate) allow_user: Vec<User>,
    /// Change core and memory only of the slice's part of this device; may be given several times [default: of all its
    /// parts]
    #[arg(long, value_name = "UUID", value_parser = device_uuid, requires = "change_of_parts")]
    pub(crate) device: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove slices.
///
/// Refused while programs run in a slice, unless forced; these can then use no more memory and no more device time. Of
/// several slices, those that can be removed are removed, even if others cannot.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot slice rm train
  aliquot slice rm --force train serve")]
pub(crate) struct SliceRmArgs {
    /// Names of the slices
    #[arg(value_name = "NAME", value_parser = slice_name, add = ArgValueCompleter::new(slices), required = true)]
    pub(crate) names: Vec<String>,
    /// Remove them also while programs run in them
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List slices and what they may use.
#[derive(Args, Debug)]
#[command(
    visible_alias = "list",
    after_long_help = "\
Examples:
  aliquot slice ls
  aliquot slice ls --json | jq -r '.slices[].name'"
)]
pub(crate) struct SliceLsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show the slices, their devices, and what they use of them.
///
/// CORE is the share of the device's time in the last 10 seconds, in percent, with the guaranteed share and the limit.
/// WAIT P99 is the time within which 99 of 100 waits for a lease of the device ended, since the slice was made. The
/// wide table also shows the shares of the last 1, 10 and 60 seconds, the time for which threads were throttled, the
/// leases granted, and how often work outlasted its lease.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot ps
  aliquot ps train serve
  aliquot ps --wide
  aliquot ps --since 1h
  aliquot ps --json | jq '.slices[] | {name, used: .parts[0].memory_used_bytes}'")]
pub(crate) struct PsArgs {
    /// Only these slices
    #[arg(value_name = "NAME", value_parser = slice_name, add = ArgValueCompleter::new(slices))]
    pub(crate) names: Vec<String>,
    /// Show more columns
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) wide: bool,
    /// Name each process that uses a device outside of slices
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Show the use during this time instead of now: 10m, 1h; the manager keeps an hour
    #[arg(long, value_name = "TIME", conflicts_with_all = ["wide", "all"])]
    pub(crate) since: Option<Span>,
    /// Print JSON, with exact figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// Watch what slices use.
///
/// Draws, until q is pressed, the share of each slice over time, as far back as the terminal is wide, with its request
/// and its limit, and how much of the time it waits for the device. If standard output is not a terminal, prints a
/// table at each interval.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot top
  aliquot top --interval 0.5 train
  aliquot top --once
  aliquot top -n 60 > shares.txt

Keys:
  q, Esc, Ctrl-C   quit            p, Space   hold the picture
  Up, Down, j, k   scroll          s          sort by name, share, wait, memory")]
pub(crate) struct TopArgs {
    /// Only these slices
    #[arg(value_name = "NAME", value_parser = slice_name, add = ArgValueCompleter::new(slices))]
    pub(crate) names: Vec<String>,
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print one table and exit
    #[arg(long, conflicts_with = "iterations")]
    pub(crate) once: bool,
    /// Print this many tables and exit
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,
    /// Print JSON, with exact figures: one object per line at each interval
    #[arg(long)]
    pub(crate) json: bool,
}

/// Reads an interval in seconds, 0.1 to 3600.
fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds @ 0.1..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("write seconds from 0.1 to 3600, such as 1 or 0.5".to_owned()),
    }
}

/// Show events on this node.
///
/// Slices that were made, changed and removed, processes that attached, ended or were stopped, requests for memory that
/// were refused, findings of the audit, and the health of devices: since the manager was started, as far back as it
/// keeps them. If a slice has more events than that, its own oldest ones are left out, and their number is shown.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot events
  aliquot events --since 1h train
  aliquot events -f
  aliquot events --json | jq -r 'select(.kind == \"memory_refused\") | .slice'")]
pub(crate) struct EventsArgs {
    /// Only events of these slices, which need not exist any more
    #[arg(value_name = "NAME", value_parser = slice_name, add = ArgValueCompleter::new(slices))]
    pub(crate) names: Vec<String>,
    /// Continue with new events, until Ctrl-C
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only events of this time: 30s, 10m, 1h
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Span>,
    /// Print JSON, one object per line for each event
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show everything about a slice: its limits, its use, its processes, and how to run something in it.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot describe train
  aliquot describe train --json")]
pub(crate) struct DescribeArgs {
    /// Name of the slice
    #[arg(value_name = "NAME", value_parser = slice_name, add = ArgValueCompleter::new(slices))]
    pub(crate) name: String,
    /// Print JSON, with exact figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check what works on this machine, and say what to do about the rest.
///
/// Checks the driver, NVML, the shim, the C library, permissions, the kernel, the node manager and the container
/// runtimes. Changes nothing. Exits with 1 if something that is needed does not work.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot doctor
  aliquot doctor --json | jq '.findings[] | select(.status != \"ok\")'")]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// See it work: two programs share one GPU 30/70, and a third is refused memory beyond its limit.
///
/// Starts real programs, each in a slice of its own, measures independently of the manager what they get, and compares
/// it with their requests. Uses a real GPU if there is one, else a simulated one. Exits with 1 if a promise does not
/// hold.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot demo
  aliquot demo --seconds 30
  aliquot demo --simulated --json")]
pub(crate) struct DemoArgs {
    /// How long to measure
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(3..=600))]
    pub(crate) seconds: u64,
    /// Use the simulated GPU even if there is a real one
    #[arg(long)]
    pub(crate) simulated: bool,
    /// Print the result as JSON; progress goes to standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// Start a whole cluster on this machine, to try it out.
///
/// A scheduler, and nodes with simulated GPUs, each with a node manager. The command says how to submit jobs to it. A
/// daemon that ends, or is killed, is started anew. Ctrl-C ends all of it, and nothing remains.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot dev
  aliquot dev --nodes 4 --devices 8")]
pub(crate) struct DevArgs {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) nodes: u8,
    /// Number of simulated GPUs of each node
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) devices: u8,
}

/// Keep the device busy and hold some of its memory, to try slices out.
///
/// A plain CUDA program that uses the first device that it sees. Start it in a slice, with `aliquot run` or `aliquot
/// exec`, and watch with `aliquot top` what it gets. Its kernels take their time and compute nothing.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot run --simulated --gpu-core 30 --gpu-memory 4GiB -- aliquot load
  aliquot exec train -- aliquot load --busy 60 --memory 1GiB
  aliquot exec train -- aliquot load --kernel-ms 20 --seconds 30")]
pub(crate) struct LoadArgs {
    /// How much of the time it keeps the device busy, in percent
    #[arg(long, value_name = "PERCENT", default_value = "100", allow_hyphen_values = true)]
    pub(crate) busy: CorePercent,
    /// Device memory to hold: 1GiB, 512MiB, or 25% of what it sees [default: only its context]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory: Option<Memory>,
    /// How long each kernel takes, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) kernel_ms: u64,
    /// End after this many seconds [default: with Ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: Option<u64>,
}

/// Print the completion script for a shell.
///
/// With it the shell completes commands, options, and the names of slices, jobs, queues and nodes.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot completions bash > /etc/bash_completion.d/aliquot
  aliquot completions zsh > \"${fpath[1]}/_aliquot\"
  aliquot completions fish > ~/.config/fish/completions/aliquot.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// The arguments of a worker of the demonstration.
#[derive(Args, Debug)]
pub(crate) struct DemoWorkerArgs {
    /// Duration of one kernel
    #[arg(long, value_name = "NS")]
    pub(crate) kernel_ns: u64,
}

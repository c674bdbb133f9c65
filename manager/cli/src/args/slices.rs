//! The commands that make slices and run something in them.

use std::ffi::{OsStr, OsString};

use aliquot_terminal::number::{at_least, from_to};
use clap::{ArgGroup, Args, Subcommand};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use crate::cluster::TaskId;
use crate::cluster::completion::jobs;
use crate::completion::slices;
use crate::priority::Priority;
use crate::quantity::{CorePercent, HostMemory, Memory};
use crate::user::User;

/// Accepts any name that is not empty: the manager checks the rest.
pub(super) fn slice_name(name: &str) -> Result<String, String> {
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
    /// Let also this user (name or number) run programs in the slice, for example programs that the command starts with
    /// su; may be given several times. Programs of all other users get no GPU in the slice
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
/// The slice remains when the command has ended. The command shares the slice with its other programs. A number such as
/// 17 or 17.3 is a job or one of its tasks; any other name is a slice of this machine.
///
/// In a slice, standard input, output, the terminal, signals and the exit status pass through, as with `aliquot run`,
/// which makes a slice of its own. Beside a job the command runs on the job's node, as the job's user, in its working
/// directory, with its environment and in its slice; if the job has an image, in its container. When the command, the
/// job or this program ends, all processes of the command end too.
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
    /// Pass standard input to a command beside a job
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give a command beside a job a terminal and standard input
    #[arg(long, short)]
    pub(crate) terminal: bool,
    /// Member of a gang [default: 0]
    #[arg(long, value_name = "RANK", allow_negative_numbers = true, value_parser = at_least(0_u32))]
    pub(crate) rank: Option<u32>,
    /// Treat NAME as the name of a slice even if it is a number
    #[arg(long, conflicts_with_all = ["interactive", "terminal", "rank"])]
    pub(crate) slice: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl ExecArgs {
    /// The job in which the command runs; `None`: the name is a slice's.
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
    /// Maximum share of each device's time, in percent, also while the device is idle [default: the same as --gpu-core]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub(crate) gpu_core_limit: Option<CorePercent>,
    /// Maximum memory on each device: 4GiB, 512MiB, 4GB, or 25% of the device [default: the same percentage as
    /// --gpu-core]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) gpu_memory: Option<Memory>,
    /// Maximum page-locked host memory: 4GiB, 512MiB, 4GB [default: no limit]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) host_memory: Option<HostMemory>,
    /// Priority class. Among slices within their requests, a latency-critical one goes first and a batch one last; a
    /// batch slice is also the last to get idle time. No class takes time that another slice has requested [default:
    /// the manager's setting default_priority_class, or standard]
    #[arg(long, value_name = "CLASS")]
    pub(crate) priority: Option<Priority>,
    /// Number of devices; the slice gets this share of each. The manager chooses devices with enough free capacity
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = from_to(1_u8..=16), conflicts_with = "device")]
    pub(crate) devices: u8,
    /// UUID of a device, or a unique prefix of it; may be given several times
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
    /// Let also this user (name or number) run programs in the slice outside of containers; may be given several times.
    /// The user who creates the slice always can. In containers every user can
    #[arg(long, value_name = "USER")]
    pub(crate) allow_user: Vec<User>,
    /// Description of the slice for people
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(crate) description: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Change a slice, also while programs run in it.
///
/// Options that are not given change nothing, with one exception: a core limit that equals the guaranteed share changes
/// with it. The change is in force when the command ends. If the new memory limit is below the memory in use, programs
/// keep their memory, but get no more until they use less than the limit.
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
    /// Let also this user (name or number) run programs in the slice outside of containers; may be given several times
    #[arg(long, value_name = "USER")]
    pub(crate) allow_user: Vec<User>,
    /// Change the slice's core and memory only on this device; may be given several times [default: on all its devices]
    #[arg(long, value_name = "UUID", value_parser = device_uuid, requires = "change_of_parts")]
    pub(crate) device: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove slices.
///
/// While processes use CUDA in a slice, it is removed only with --force; these processes then get no more memory and no
/// more device time. If one of several slices cannot be removed, the others still are.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot slice rm train
  aliquot slice rm --force train serve")]
pub(crate) struct SliceRmArgs {
    /// Names of the slices
    #[arg(value_name = "NAME", value_parser = slice_name, add = ArgValueCompleter::new(slices), required = true)]
    pub(crate) names: Vec<String>,
    /// Remove the slices also while processes use CUDA in them
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the slices and their limits.
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

//! The commands that make slices and run something in them.

use std::ffi::{OsStr, OsString};

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

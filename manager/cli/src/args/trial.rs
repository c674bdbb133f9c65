//! The commands for trying Aliquot.

use aliquot_terminal::number::from_to;
use clap::Args;

use crate::quantity::{CorePercent, Memory};

/// Show slices at work: two programs share one GPU 30/70, and a third is refused memory beyond its limit.
///
/// Starts real programs, each in a slice of its own. Measures their shares independently of the manager, and compares
/// the shares with the requests. Uses a real GPU if there is one, else a simulated one. Exits with 1 if a share or a
/// limit is wrong.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot demo
  aliquot demo --seconds 30
  aliquot demo --simulated --json")]
pub(crate) struct DemoArgs {
    /// How long to measure
    #[arg(long, value_name = "N", default_value_t = 15, allow_negative_numbers = true, value_parser = from_to(3_u64..=600))]
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
/// The cluster has a scheduler, and nodes with simulated GPUs. Each node has a node manager. The command prints how to
/// submit jobs to the cluster. If a daemon ends or is killed, it is started again. Ctrl-C ends the cluster, and leaves
/// nothing behind.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot dev
  aliquot dev --nodes 4 --devices 8")]
pub(crate) struct DevArgs {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, value_parser = from_to(1_u8..=16))]
    pub(crate) nodes: u8,
    /// Number of simulated GPUs of each node
    #[arg(long, value_name = "N", default_value_t = 2, allow_negative_numbers = true, value_parser = from_to(1_u8..=8))]
    pub(crate) devices: u8,
}

/// Keep the device busy and hold some of its memory, to try slices out.
///
/// This is a plain CUDA program that uses its first visible device. Start it in a slice, with `aliquot run` or `aliquot
/// exec`, and watch its share with `aliquot top`. Its kernels keep the device busy and compute nothing.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot run --simulated --gpu-core 30 --gpu-memory 4GiB -- aliquot load
  aliquot exec train -- aliquot load --busy 60 --memory 1GiB
  aliquot exec train -- aliquot load --kernel-ms 20 --seconds 30")]
pub(crate) struct LoadArgs {
    /// Part of the time for which the program keeps the device busy, in percent
    #[arg(long, value_name = "PERCENT", default_value = "100", allow_hyphen_values = true)]
    pub(crate) busy: CorePercent,
    /// Device memory to hold: 1GiB, 512MiB, or 25% of the visible memory [default: only the context]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory: Option<Memory>,
    /// How long each kernel takes, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = from_to(1_u64..=10_000))]
    pub(crate) kernel_ms: u64,
    /// End after this many seconds [default: with Ctrl-C]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = from_to(1_u64..=86_400))]
    pub(crate) seconds: Option<u64>,
}

/// The arguments of a worker of the demonstration.
#[derive(Args, Debug)]
pub(crate) struct DemoWorkerArgs {
    /// Duration of one kernel
    #[arg(long, value_name = "NS")]
    pub(crate) kernel_ns: u64,
}

//! The commands that show what happens on this machine.

use std::time::Duration;

use aliquot_terminal::number::at_least;
use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::interval;
use super::slices::slice_name;
use crate::completion::slices;
use crate::quantity::Span;

/// Show the slices, their devices, and their use of these devices.
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
    /// List each process that uses a device outside of slices
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Show the use during the last 10m or 1h, instead of the present use. The manager keeps the last hour
    #[arg(long, value_name = "TIME", conflicts_with_all = ["wide", "all"])]
    pub(crate) since: Option<Span>,
    /// Print JSON, with exact figures
    #[arg(long)]
    pub(crate) json: bool,
}

/// Watch the use of slices.
///
/// Draws a chart until q is pressed. For each slice it shows the share over time, the request, the limit, and the part
/// of the time for which the slice waits for the device. A wider terminal shows a longer time. If standard output is
/// not a terminal, prints a table at each interval.
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
    #[arg(long, value_name = "SECONDS", default_value = "1", allow_negative_numbers = true, value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print one table and exit
    #[arg(long, conflicts_with = "iterations")]
    pub(crate) once: bool,
    /// Print this many tables and exit
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true, value_parser = at_least(1_u64))]
    pub(crate) iterations: Option<u64>,
    /// Print JSON, with exact figures: one object per line at each interval
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show events on this node.
///
/// There is an event when a slice is made, changed or removed; when a process attaches, ends or is stopped; when a
/// request for memory is refused; when the audit finds something; and when the health of a device changes. The manager
/// keeps a bounded number of events since its start. If a slice has more events, its oldest ones are left out, and
/// their number is shown.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  aliquot events
  aliquot events --since 1h train
  aliquot events -f
  aliquot events --json | jq -r 'select(.kind == \"memory_refused\") | .slice'")]
pub(crate) struct EventsArgs {
    /// Show only events of these slices; they may have been removed
    #[arg(value_name = "NAME", value_parser = slice_name, add = ArgValueCompleter::new(slices))]
    pub(crate) names: Vec<String>,
    /// Continue with new events, until Ctrl-C
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Show only events of the last 30s, 10m or 1h
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<Span>,
    /// Print JSON, one object per line for each event
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show all details of a slice: its limits, its use, its processes, and how to run a program in it.
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

/// Check this machine, and suggest a repair for each problem.
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

//! The commands that show what happens on this machine.

use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::interval;
use super::slices::slice_name;
use crate::completion::slices;
use crate::quantity::Span;

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

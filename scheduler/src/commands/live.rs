//! The common part of all commands with a live scheduler.

use std::io::IsTerminal;
use std::{panic, process};

use aliquot_scheduler::past_usage;
use aliquot_scheduler::policy::PolicyName;
use aliquot_scheduler_core::Settings;
use aliquot_scheduler_core::placement::Mix;
use aliquot_scheduler_engine::Decisions;
use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// How a live scheduler decides.
#[derive(clap::Args)]
pub(crate) struct DecisionArgs {
    /// Placement policy
    #[arg(long, value_enum, default_value_t)]
    policy: PolicyName,
    /// How strongly it counts against a queue what it has had lately, when what the quotas leave is divided. 0: not at
    /// all. With 1, a queue that has had twice its part by weight is given nothing beyond its quota while others ask
    /// for it
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = past_usage::weight)]
    usage_weight: u64,
    /// Time after which what a queue has had counts half, for example 12h
    #[arg(long, value_name = "TIME", default_value = "168h", value_parser = past_usage::half_life_ms)]
    usage_half_life: u64,
}

impl DecisionArgs {
    /// The policy and the settings of a live scheduler.
    pub(crate) fn decisions(&self) -> Decisions {
        Decisions {
            policy: self.policy.make(&Mix::of([]), 0),
            settings: Settings { usage_weight: self.usage_weight, ..Settings::default() },
            usage_half_life_ms: self.usage_half_life,
        }
    }
}

/// Logs to standard error from now on.
pub(crate) fn start_log(level: &str) -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(level)
        .with_context(|| format!("--log-level {level:?} is not a level or a filter"))?;
    let has_colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(has_colours).with_writer(std::io::stderr).init();
    Ok(())
}

/// Lets a panic in any thread end the whole process, as in the release profile: see `end_at_panics` of the manager.
pub(crate) fn end_at_panics() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
}

/// Blocks the signals that end the program, so that it can wait for them. Must be called before any thread starts,
/// because each thread inherits the blocked signals.
pub(crate) fn block_signals() -> Result<SigSet> {
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    signals.thread_block().context("cannot receive signals")?;
    Ok(signals)
}

//! The common part of all commands with a live scheduler.

use std::io::IsTerminal;
use std::{panic, process};

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};

/// Logs to standard error from now on. `name` is the option or the key that says the level.
pub(crate) fn start_log(name: &str, level: &str) -> Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_new(level)
        .with_context(|| format!("{name} {level:?} is not a level or a filter"))?;
    let has_colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(has_colours).with_writer(std::io::stderr);
    // If the log cannot be written, the library would report that to standard error, too, and panic.
    lines.log_internal_errors(false).init();
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

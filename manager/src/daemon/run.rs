//! The daemon's own process: from start to signal, with systemd told of both.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, info};
use tracing_subscriber::filter::ParseError;

use crate::config::Config;
use crate::daemon::{Daemon, StartError};
use crate::logging;

/// Why the daemon ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log level is none.
    #[error("log_level is {level:?}: {source}; use error, warn, info, debug, trace, or a filter")]
    LogLevel {
        /// What was given.
        level: String,
        /// Why.
        source: ParseError,
    },
    /// It does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(#[source] std::io::Error),
}

/// Runs a manager in this process until SIGTERM or SIGINT.
///
/// # Errors
/// See [`RunError`].
pub fn run(config: Config) -> Result<(), RunError> {
    let level = |source| RunError::LogLevel { level: config.log_level.clone(), source };
    logging::start(&config).map_err(level)?;
    let daemon = Daemon::start(config)?;
    tell_systemd(&[NotifyState::Ready]);
    let outcome = wait(&daemon);
    tell_systemd(&[NotifyState::Stopping]);
    daemon.stop();
    outcome.map_err(RunError::Signals)
}

fn wait(daemon: &Daemon) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Twice within the time that systemd allows.
    let watchdog = sd_notify::watchdog_enabled().map(|timeout| timeout / 2);
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut ticks = tokio::time::interval(watchdog.unwrap_or(Duration::from_secs(3600)));
        loop {
            tokio::select! {
                _ = terminate.recv() => break info!(signal = "SIGTERM", "ending"),
                _ = interrupt.recv() => break info!(signal = "SIGINT", "ending"),
                // If it does not answer, nothing is said, and systemd starts another one.
                _ = ticks.tick(), if watchdog.is_some() => {
                    daemon.answer();
                    tell_systemd(&[NotifyState::Watchdog]);
                }
            }
        }
        Ok(())
    })
}

fn tell_systemd(state: &[NotifyState]) {
    // Not an error where systemd does not listen.
    if let Err(error) = sd_notify::notify(state) {
        debug!(%error, "cannot tell systemd");
    }
}

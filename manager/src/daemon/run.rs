//! The daemon's own process: runs from start to signal, and notifies systemd of both.

use std::io;
use std::time::Duration;

use aliquot_node::aside;
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, info};

use crate::config::Config;
use crate::daemon::{Daemon, StartError};
use crate::logging::{self, LogLevelError};
use crate::manager::check_path;

/// Why the daemon ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log level or filter is invalid.
    #[error(transparent)]
    LogLevel(#[from] LogLevelError),
    /// The manager does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Signals cannot be received.
    #[error("cannot wait for signals: {0}")]
    Signals(#[source] io::Error),
    /// A relay was started, and the configuration has none.
    #[error("the configuration has no relay; set relay = true in the table [kubernetes]")]
    NoRelay,
}

/// Runs a manager in this process until SIGTERM or SIGINT.
///
/// # Errors
/// See [`RunError`].
pub fn run(config: Config) -> Result<(), RunError> {
    logging::start(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(RunError::Signals)?;
    runtime.block_on(async {
        // Done first: a client that has an answer from the daemon may already send it a signal.
        let mut end = End::listen().map_err(RunError::Signals)?;
        let daemon = tokio::select! {
            started = aside(move || Daemon::start(config)) => started.map_err(StartError::Runtime)??,
            // The process ends even if the driver never answers.
            () = end.asked_for() => std::process::exit(0),
        };
        tell_systemd(&[NotifyState::Ready]);
        wait(&daemon, &mut end).await;
        tell_systemd(&[NotifyState::Stopping]);
        daemon.stop();
        Ok(())
    })
}

/// Checks whether [`run`] could use `config`, as far as that is possible without changing anything.
///
/// # Errors
/// A value can never work.
pub fn check(config: &Config) -> Result<(), RunError> {
    check_path(&config.runtime_dir).map_err(|error| RunError::Start(error.into()))
}

/// The signals that ask this process to end.
pub(crate) struct End {
    terminate: Signal,
    interrupt: Signal,
}

impl End {
    pub(crate) fn listen() -> io::Result<End> {
        Ok(End { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn asked_for(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => info!(signal = "SIGTERM", "ending"),
            _ = self.interrupt.recv() => info!(signal = "SIGINT", "ending"),
        }
    }
}

/// Waits until a signal asks the process to end.
async fn wait(daemon: &Daemon, end: &mut End) {
    // Two notifications within systemd's timeout.
    let watchdog = sd_notify::watchdog_enabled().map(|timeout| timeout / 2);
    let mut ticks = tokio::time::interval(watchdog.unwrap_or(Duration::from_secs(3600)));
    loop {
        tokio::select! {
            () = end.asked_for() => return,
            // If the manager hangs here, no notification is sent, and systemd restarts the daemon.
            _ = ticks.tick(), if watchdog.is_some() => {
                daemon.answer();
                tell_systemd(&[NotifyState::Watchdog]);
            }
        }
    }
}

fn tell_systemd(state: &[NotifyState]) {
    // Not an error: systemd may not be listening.
    if let Err(error) = sd_notify::notify(state) {
        debug!(%error, "cannot tell systemd");
    }
}

//! Signals to a command that has something to do before its end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::{Failure, Result};

/// Signals of this kind, which do nothing else from now on.
pub(super) fn listen(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| Failure::new(format!("cannot receive signals: {error}")))
}

/// The signals that ask this program to end.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    quit: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Signals> {
        Ok(Signals {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            quit: listen(SignalKind::quit())?,
        })
    }

    /// Waits for such a signal, and returns its number.
    pub(super) async fn end(&mut self) -> u8 {
        use nix::sys::signal::Signal as Number;
        let number = tokio::select! {
            _ = self.interrupt.recv() => Number::SIGINT,
            _ = self.terminate.recv() => Number::SIGTERM,
            _ = self.hang_up.recv() => Number::SIGHUP,
            _ = self.quit.recv() => Number::SIGQUIT,
        };
        number as u8
    }
}

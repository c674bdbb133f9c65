//! This program's terminal, while a remote command uses it.

use std::panic;

use aliquot_proto::stream::v1::{Terminal, TerminalSize};
use ratatui::crossterm::terminal;

use crate::error::{Failure, Result};

/// While this lives, the terminal passes on each key unchanged and echoes nothing. It ends when this is dropped, and at
/// a panic.
#[derive(Debug)]
pub(super) struct Raw(());

impl Raw {
    /// Puts the terminal into this mode.
    pub(super) fn enter() -> Result<Raw> {
        terminal::enable_raw_mode()
            .map_err(|error| Failure::new(format!("cannot set the terminal to raw mode: {error}")))?;
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            let _ = terminal::disable_raw_mode();
            report(panic);
        }));
        Ok(Raw(()))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // If the terminal is gone, there is nothing to restore.
        let _ = terminal::disable_raw_mode();
    }
}

/// The present size of the terminal; 0 if the terminal does not tell it.
pub(super) fn size() -> TerminalSize {
    let (columns, rows) = terminal::size().unwrap_or_default();
    TerminalSize { rows: rows.into(), columns: columns.into() }
}

/// The description from which the node makes a terminal like this one.
pub(super) fn like_this() -> Terminal {
    Terminal { size: Some(size()), kind: std::env::var("TERM").unwrap_or_default() }
}

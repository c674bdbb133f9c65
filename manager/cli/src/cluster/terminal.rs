//! This program's terminal, while a command elsewhere has it.

use std::panic;

use aliquot_proto::stream::v1::{Terminal, TerminalSize};
use ratatui::crossterm::terminal;

use crate::error::{Failure, Result};

/// The terminal hands on each key as it is, and prints nothing by itself. Ends when this is dropped, and at a panic.
#[derive(Debug)]
pub(super) struct Raw(());

impl Raw {
    /// Begins to hand on keys.
    pub(super) fn enter() -> Result<Raw> {
        terminal::enable_raw_mode()
            .map_err(|error| Failure::new(format!("the terminal cannot hand on keys as they are: {error}")))?;
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

/// The size of the terminal now; 0 where it does not say it.
pub(super) fn size() -> TerminalSize {
    let (columns, rows) = terminal::size().unwrap_or_default();
    TerminalSize { rows: rows.into(), columns: columns.into() }
}

/// What the node is told to make a terminal like this one.
pub(super) fn like_this() -> Terminal {
    Terminal { size: Some(size()), kind: std::env::var("TERM").unwrap_or_default() }
}

//! The subcommands: their arguments, and what they print.

pub(crate) mod explain;
pub(crate) mod replay;
pub(crate) mod simulate;
mod trace;

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

/// Prints a report, as text or as JSON.
fn print(report: &(impl Display + Serialize), json: bool) -> Result<()> {
    let text = if json { serde_json::to_string_pretty(report)? } else { report.to_string() };
    print_text(&text)
}

/// Prints a text. Whoever stops reading has seen enough.
fn print_text(text: &str) -> Result<()> {
    match writeln!(io::stdout().lock(), "{}", text.trim_end()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

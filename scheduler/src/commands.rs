//! The subcommands: their arguments, and what they print.

pub(crate) mod explain;
pub(crate) mod replay;
pub(crate) mod simulate;
mod trace;

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;

/// Prints a report, as text or as JSON. Whoever stops reading has seen enough.
fn print(report: &(impl Display + Serialize), json: bool) -> Result<()> {
    let text = if json { serde_json::to_string_pretty(report)? } else { report.to_string() };
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

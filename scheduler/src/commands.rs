//! The subcommands: their arguments and their output.

pub(crate) mod backup;
pub(crate) mod dev;
pub(crate) mod explain;
pub(crate) mod kubernetes;
pub(crate) mod live;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod snapshot;
mod socket;
pub(crate) mod steady;
mod trace;

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

/// Prints a report, as text or as JSON.
fn print(report: &(impl Display + Serialize), json: bool) -> Result<()> {
    let text = if json { serde_json::to_string_pretty(report)? } else { report.to_string() };
    print_text(&text)
}

/// Writes a file completely, or leaves it unchanged, even if the program ends in between.
fn write_file(path: &Path, text: &str) -> Result<()> {
    let write = || {
        // A pipe or a device cannot be replaced by a new file.
        if fs::metadata(path).is_ok_and(|of| !of.is_file()) {
            return fs::write(path, text);
        }
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut unfinished = target.clone().into_os_string();
        unfinished.push(".unfinished");
        fs::write(&unfinished, text)?;
        fs::rename(&unfinished, target)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Prints a text. It is no error if the reader closes the pipe early.
fn print_text(text: &str) -> Result<()> {
    match writeln!(io::stdout().lock(), "{}", text.trim_end()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

//! Standard output and standard error: text for people and for programs.

use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};

use crate::error::{Failure, Result};

/// Prints `text` on standard output. A reader that has gone away, as `head` does, is no failure.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a JSON document on standard output.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&format!("{value:#}\n"))
}

/// A colour of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    /// Well.
    Green,
    /// To be looked at.
    Yellow,
    /// Wrong.
    Red,
}

/// Whether colours are wanted on standard output: it is a terminal and `NO_COLOR` is not set.
pub(crate) fn stdout_has_colours() -> bool {
    colours_wanted() && io::stdout().is_terminal()
}

/// Whether the environment lets programs use colours.
pub(crate) fn colours_wanted() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `text` in `colour` if `colours` are to be used.
pub(crate) fn paint(text: &str, colour: Colour, colours: bool) -> String {
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
    };
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

//! Standard output and standard error: text for people and for programs.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub(crate) use aliquot_terminal::look::{Colour, Look, colours_wanted, paint};

use crate::error::{Failure, Result};

/// Prints `text` on standard output. It is no failure if the reader is gone, for example `head`.
pub(crate) fn print(text: &str) -> Result<()> {
    print_to_reader(text).map(drop)
}

/// Whether output is still read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// The output is read, as far as is known.
    Reads,
    /// The reader is gone: further output would be lost.
    Gone,
}

/// Prints endless output. Returns whether to continue.
pub(crate) fn print_to_reader(text: &str) -> Result<Reader> {
    write_to_reader(text.as_bytes())
}

/// Prints endless output that need not be text, such as that of a job. Returns whether to continue.
pub(crate) fn write_to_reader(bytes: &[u8]) -> Result<Reader> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(Failure::new(format!("cannot write to standard output: {error}"))),
    }
}

/// Whether the reader of standard output is gone, as far as can be found out without printing.
pub(crate) fn has_no_reader() -> bool {
    let out = io::stdout();
    let mut asked = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let answered = poll(&mut asked, PollTimeout::ZERO).is_ok_and(|count| count > 0);
    answered && asked[0].revents().is_some_and(|found| found.intersects(PollFlags::POLLERR | PollFlags::POLLHUP))
}

/// Prints a line on standard error, if that is still there. A terminal is gone when its user closes it, and the reader
/// of a pipe often ends at the same Ctrl-C as this program, which then still has an end to bring about.
pub(crate) fn say(line: impl Display) {
    say_text(format_args!("{line}\n"));
}

/// The same with text that need not be a whole line.
pub(crate) fn say_text(text: impl Display) {
    // One write, so that the texts of several threads stay apart.
    let _ = io::stderr().write_all(text.to_string().as_bytes());
}

/// Prints a JSON document on standard output.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&format!("{value:#}\n"))
}

/// Whether colours are wanted on standard output: it is a terminal and `NO_COLOR` is not set.
pub(crate) fn stdout_has_colours() -> bool {
    colours_wanted() && io::stdout().is_terminal()
}

/// Whether colours are wanted on standard error: it is a terminal and `NO_COLOR` is not set.
pub(crate) fn stderr_has_colours() -> bool {
    colours_wanted() && io::stderr().is_terminal()
}

//! Standard output and standard error: text for people and for programs.

use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

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

/// The same for endless output: returns whether to continue.
pub(crate) fn print_to_reader(text: &str) -> Result<Reader> {
    write_to_reader(text.as_bytes())
}

/// The same for output that need not be text, such as that of a job.
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

/// Prints a JSON document on standard output.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&format!("{value:#}\n"))
}

/// A colour of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    /// All is well.
    Green,
    /// Needs attention.
    Yellow,
    /// Something is wrong.
    Red,
    /// A heading.
    Bold,
}

/// The style of output: for people at a terminal, or plain for pipes and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// With colours.
    pub(crate) colours: bool,
    /// With bars.
    pub(crate) bars: bool,
    /// Width of the terminal in columns, if known.
    pub(crate) width: Option<usize>,
}

/// The minimum width of a terminal for bars.
const WIDTH_WITH_BARS_MIN: usize = 120;

impl Look {
    /// For pipes and files.
    pub(crate) const PLAIN: Look = Look { colours: false, bars: false, width: None };

    /// The style for standard output.
    pub(crate) fn of_stdout() -> Look {
        if !io::stdout().is_terminal() {
            return Look::PLAIN;
        }
        let width = ratatui::crossterm::terminal::size().ok().map(|(width, _)| usize::from(width));
        let width = width.filter(|&width| width > 0);
        let bars = width.is_some_and(|width| width >= WIDTH_WITH_BARS_MIN);
        Look { colours: colours_wanted(), bars, width }
    }
}

/// Whether colours are wanted on standard output: it is a terminal and `NO_COLOR` is not set.
pub(crate) fn stdout_has_colours() -> bool {
    colours_wanted() && io::stdout().is_terminal()
}

/// The same of standard error.
pub(crate) fn stderr_has_colours() -> bool {
    colours_wanted() && io::stderr().is_terminal()
}

/// Whether the environment allows colours.
pub(crate) fn colours_wanted() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `text` in `colour`, if `colours` is true.
pub(crate) fn paint(text: &str, colour: Colour, colours: bool) -> String {
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
        Colour::Bold => 1,
    };
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

//! How text looks: for people at a terminal, or plain for pipes and files.

use std::env;
use std::io::{self, IsTerminal};

/// A colour of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// For a good state.
    Green,
    /// For a state that needs attention.
    Yellow,
    /// For a failure or a fault.
    Red,
    /// Bold text, for a heading.
    Bold,
}

/// The style of output: for people at a terminal, or plain for pipes and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Whether text may have colours.
    pub colours: bool,
    /// Whether amounts are also drawn as bars.
    pub bars: bool,
    /// Width of the terminal in columns, if known.
    pub width: Option<usize>,
}

/// The minimum width of a terminal for bars.
const WIDTH_WITH_BARS_MIN: usize = 120;

impl Look {
    /// For pipes and files.
    pub const PLAIN: Look = Look { colours: false, bars: false, width: None };

    /// The style for standard output.
    #[must_use]
    pub fn of_stdout() -> Look {
        if !io::stdout().is_terminal() {
            return Look::PLAIN;
        }
        let width = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        let width = width.filter(|&width| width > 0);
        let bars = width.is_some_and(|width| width >= WIDTH_WITH_BARS_MIN);
        Look { colours: colours_wanted(), bars, width }
    }
}

/// Whether the environment allows colours.
#[must_use]
pub fn colours_wanted() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `text` in `colour`, if `colours` is true.
#[must_use]
pub fn paint(text: &str, colour: Colour, colours: bool) -> String {
    let code = match colour {
        Colour::Green => 32,
        Colour::Yellow => 33,
        Colour::Red => 31,
        Colour::Bold => 1,
    };
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

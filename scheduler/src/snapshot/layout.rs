//! Writes JSON that can be read and compared line by line: one line for each node, queue, group and claim.

use std::io;

use serde_json::ser::Formatter;

/// Breaks lines between the entries of the outer lists, but not inside the entries.
#[derive(Debug, Default)]
pub(super) struct EntryPerLine {
    depth: usize,
    /// Whether the innermost list or object has any content yet.
    filled: bool,
}

/// The levels that are broken into lines: the outer object and the lists in it.
const BROKEN: usize = 2;

impl EntryPerLine {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled && self.depth < BROKEN {
            self.break_line(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.filled = true;
        match (first, self.depth <= BROKEN) {
            (true, true) => self.break_line(writer),
            (true, false) => Ok(()),
            (false, true) => {
                writer.write_all(b",")?;
                self.break_line(writer)
            }
            (false, false) => writer.write_all(b", "),
        }
    }

    fn break_line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(b"  "))
    }
}

impl Formatter for EntryPerLine {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

//! Tables of text with aligned columns.

use comfy_table::{CellAlignment, presets};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::look::{Colour, Look, paint};

/// The alignment of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// Left-aligned, for words and names.
    Left,
    /// Right-aligned, for numbers and amounts.
    Right,
}

/// A cell of a table.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    colour: Option<Colour>,
}

impl Cell {
    /// Text in a colour, if there is one.
    #[must_use]
    pub fn coloured(text: impl Into<String>, colour: impl Into<Option<Colour>>) -> Cell {
        Cell { text: printable(&text.into()), colour: colour.into() }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::coloured(text, None)
    }
}

/// A table: a heading and rows of cells.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<Cell>>,
}

/// Spaces between two columns.
const GAP: usize = 2;
/// The last column is not made narrower than this, nor than its heading.
const LAST_WIDTH_MIN: usize = 16;

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new(columns: impl IntoIterator<Item = (&'static str, Align)>) -> Table {
        Table { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row: one cell for each column.
    ///
    /// # Panics
    /// If there are more or fewer cells than columns.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<Cell>>) {
        let cells: Vec<Cell> = cells.into_iter().map(Into::into).collect();
        assert_eq!(cells.len(), self.columns.len(), "one cell for each column");
        self.rows.push(cells);
    }

    /// The table as plain text: a heading, then a line for each row; no trailing spaces.
    #[must_use]
    pub fn render(&self) -> String {
        self.render_as(Look::PLAIN)
    }

    /// The same as [`render_as`](Self::render_as), but on a narrow terminal columns from `optional` are left out, from
    /// the first on, until the table fits.
    #[must_use]
    pub fn render_narrowed(mut self, look: Look, optional: &[&str]) -> String {
        let mut optional = optional.iter();
        loop {
            let plain = self.render_as(Look { colours: false, ..look });
            let fits = look.width.is_none_or(|width_max| plain.lines().all(|line| width(line) <= width_max));
            match optional.next() {
                Some(heading) if !fits => self.remove(heading),
                _ => return self.render_as(look),
            }
        }
    }

    fn remove(&mut self, heading: &str) {
        if let Some(column) = self.columns.iter().position(|&(of_column, _)| of_column == heading) {
            self.columns.remove(column);
            self.rows.iter_mut().for_each(|row| drop(row.remove(column)));
        }
    }

    /// The table in the given style. On a terminal the last column is cut to the remaining width.
    #[must_use]
    pub fn render_as(&self, look: Look) -> String {
        let headings: Vec<Cell> =
            self.columns.iter().map(|&(heading, _)| Cell::coloured(heading, Colour::Bold)).collect();
        let rows = || std::iter::once(&headings).chain(&self.rows);
        let last = self.columns.len().saturating_sub(1);
        let before_last: usize =
            (0..last).map(|column| rows().map(|row| width(&row[column].text)).max().unwrap_or(0) + GAP).sum();
        let last_width_min = self.columns.last().map_or(0, |(heading, _)| width(heading)).max(LAST_WIDTH_MIN);
        let last_width = look.width.map(|width| width.saturating_sub(before_last).max(last_width_min));

        let mut table = comfy_table::Table::new();
        table.load_preset(presets::NOTHING);
        for row in rows() {
            table.add_row(row.iter().enumerate().map(|(column, cell)| {
                let text = match last_width {
                    Some(width_max) if column == last => cut(&cell.text, width_max),
                    _ => cell.text.clone(),
                };
                let is_painted = look.colours && !text.is_empty();
                cell.colour.map_or(text.clone(), |colour| paint(&text, colour, is_painted))
            }));
        }
        for (column, &(_, align)) in table.column_iter_mut().zip(&self.columns) {
            column.set_padding((0, GAP as u16));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        table.trim_fmt() + "\n"
    }
}

/// `text` cut to at most `width_max` columns.
#[must_use]
pub fn cut(text: &str, width_max: usize) -> String {
    if width(text) <= width_max {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut left = width_max.saturating_sub(1);
    for character in text.chars() {
        let Some(rest) = left.checked_sub(character.width().unwrap_or(0)) else { break };
        left = rest;
        shown.push(character);
    }
    shown + "…"
}

/// Columns of a terminal that `text` takes: two for each character of East Asian scripts.
#[must_use]
pub fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// `text` without control characters: command lines and descriptions are foreign text and could control the terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Lines of `name  value` with aligned values. A continuation line has an empty name.
#[must_use]
pub fn definitions(lines: &[(&str, String)]) -> String {
    let name_width = lines.iter().map(|(name, _)| width(name)).max().unwrap_or(0) + GAP;
    lines
        .iter()
        .map(|(name, value)| {
            let padding = " ".repeat(name_width - width(name));
            format!("{}\n", format!("{name}{padding}{}", printable(value)).trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_lines_end_clean() {
        let mut table = Table::new([("SLICE", Align::Left), ("CORE", Align::Right), ("DEVICE", Align::Left)]);
        table.row(["train".to_owned(), "30".to_owned(), "GPU-1".to_owned()]);
        table.row(["a-longer-name".to_owned(), "100".to_owned(), String::new()]);
        assert_eq!(
            table.render(),
            "SLICE          CORE  DEVICE\n\
             train            30  GPU-1\n\
             a-longer-name   100\n"
        );
    }

    #[test]
    fn colours_do_not_shift_columns_and_the_last_column_is_cut() {
        let mut table = Table::new([("SLICE", Align::Left), ("CORE", Align::Right), ("PROCESSES", Align::Left)]);
        let cell = |text: &str, colour| Cell::coloured(text, colour);
        table.row([cell("train", None), cell("30", Some(Colour::Green)), cell("4711 python train.py", None)]);
        assert_eq!(
            table.render_as(Look { colours: true, bars: false, width: Some(30) }),
            "\u{1b}[1mSLICE\u{1b}[0m  \u{1b}[1mCORE\u{1b}[0m  \u{1b}[1mPROCESSES\u{1b}[0m\n\
             train    \u{1b}[32m30\u{1b}[0m  4711 python trai…\n"
        );
        assert!(!table.render().contains('\u{1b}') && table.render().contains("train.py"));
        let narrow = table.render_as(Look { colours: false, bars: false, width: Some(5) });
        assert!(narrow.contains("  PROCESSES\n") && narrow.ends_with("4711 python tra…\n"), "{narrow}");
    }

    #[test]
    fn a_narrow_terminal_shows_fewer_columns() {
        let table = || {
            let mut table = Table::new(["ID", "USER", "QUEUE", "REASON"].map(|heading| (heading, Align::Left)));
            table.row(["17", "ada", "team-a", "no node has eight devices free"].map(ToOwned::to_owned));
            table
        };
        let shown = |width| {
            let look = Look { colours: true, bars: false, width };
            let text = table().render_narrowed(look, &["QUEUE", "NONE", "USER"]);
            text.lines().last().unwrap().to_owned()
        };
        assert_eq!(shown(None), "17  ada   team-a  no node has eight devices free");
        assert_eq!(shown(Some(40)), "17  ada   team-a  no node has eight dev…");
        assert_eq!(shown(Some(33)), "17  ada   no node has eight devi…");
        assert_eq!(shown(Some(24)), "17  no node has eight d…");
        assert_eq!(shown(Some(5)), "17  no node has eig…");
    }

    #[test]
    fn heading_alone() {
        assert_eq!(Table::new([("A", Align::Left), ("B", Align::Right)]).render(), "A  B\n");
    }

    #[test]
    fn width_counts_columns_of_the_terminal() {
        let mut table = Table::new([("X", Align::Left), ("Y", Align::Left)]);
        table.row(["µµ".to_owned(), "1".to_owned()]);
        assert_eq!(table.render(), "X   Y\nµµ  1\n");
        table.row(["训练".to_owned(), "2".to_owned()]);
        assert_eq!(table.render(), "X     Y\nµµ    1\n训练  2\n");
        assert_eq!(cut("训练", 4), "训练");
        assert_eq!(cut("训练", 3), "训…");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let mut table = Table::new([("COMMAND", Align::Left)]);
        table.row(["\u{1b}[2Jrm\n-rf".to_owned()]);
        assert_eq!(table.render(), "COMMAND\n?[2Jrm?-rf\n");
    }

    #[test]
    fn definitions_align() {
        let lines = [("Name", "train".to_owned()), ("Region", "/run/x".to_owned()), ("", "more".to_owned())];
        assert_eq!(definitions(&lines), "Name    train\nRegion  /run/x\n        more\n");
    }
}

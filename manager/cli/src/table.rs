//! Tables of text with aligned columns.

/// How the cells of a column are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// A table: a heading and rows of cells.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Spaces between two columns.
const GAP: usize = 2;

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: impl IntoIterator<Item = (&'static str, Align)>) -> Table {
        Table { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row: one cell for each column.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| printable(&cell)).collect();
        assert_eq!(cells.len(), self.columns.len(), "one cell for each column");
        self.rows.push(cells);
    }

    /// The table as text: a heading, then a line for each row; no trailing spaces.
    pub(crate) fn render(&self) -> String {
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(column, (heading, _))| {
                let cells = self.rows.iter().map(|row| width(&row[column]));
                cells.chain([width(heading)]).max().unwrap_or(0)
            })
            .collect();
        let headings: Vec<String> = self.columns.iter().map(|&(heading, _)| heading.to_owned()).collect();
        let mut text = String::new();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, &width_max), &(_, align)) in row.iter().zip(&widths).zip(&self.columns) {
                let padding = " ".repeat(width_max - width(cell));
                match align {
                    Align::Left => line.extend([cell.as_str(), &padding]),
                    Align::Right => line.extend([padding.as_str(), cell]),
                }
                line.push_str(&" ".repeat(GAP));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Width on a terminal. All that is printed here is one column wide for each character.
fn width(text: &str) -> usize {
    text.chars().count()
}

/// `text` without characters that steer a terminal: command lines and descriptions come from anybody.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Lines of `name  value`, the values aligned; an indented continuation has an empty name.
pub(crate) fn definitions(lines: &[(&str, String)]) -> String {
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
    fn heading_alone() {
        assert_eq!(Table::new([("A", Align::Left), ("B", Align::Right)]).render(), "A  B\n");
    }

    #[test]
    fn width_counts_characters_not_bytes() {
        let mut table = Table::new([("X", Align::Left), ("Y", Align::Left)]);
        table.row(["µµ".to_owned(), "1".to_owned()]);
        assert_eq!(table.render(), "X   Y\nµµ  1\n");
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

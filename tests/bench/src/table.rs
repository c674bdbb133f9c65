//! The printed tables, in Markdown.

use std::fmt;

use crate::statistics::Compared;

/// A table of figures.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(head: &[&'static str]) -> Table {
        Table { head: head.to_vec(), rows: Vec::new() }
    }

    /// A table of the costs of calls.
    pub(crate) fn of_costs(what: &'static str) -> Table {
        Table::new(&[what, "bare", "with the shim", "added", "aim", "met"])
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.head.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// Adds a call's cost in nanoseconds divided by `unit`, and the most that the shim may add.
    pub(crate) fn cost(&mut self, what: impl Into<String>, compared: Compared, unit: f64, aim: f64) {
        let Compared { bare, with } = compared;
        let number = |value: f64| if unit > 1.0 { format!("{:.3}", value / unit) } else { format!("{value:.1}") };
        let met = yes_or_no(compared.added() <= aim * unit);
        self.row(vec![what.into(), number(bare), number(with), number(compared.added()), format!("≤ {aim}"), met]);
    }
}

/// Whether an aim is met.
pub(crate) fn yes_or_no(met: bool) -> String {
    if met { "yes" } else { "**no**" }.to_owned()
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n| {} |", self.head.join(" | "))?;
        writeln!(f, "|{}", " --- |".repeat(self.head.len()))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

/// Prints when and where the figures were taken.
pub(crate) fn print_machine() {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("?", |(_, model)| model.trim());
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let today = jiff::Timestamp::now().strftime("%Y-%m-%d");
    println!("{today}, {count} × {model}, Linux {kernel}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aim_that_is_missed_is_said() {
        let mut table = Table::of_costs("ns");
        table.cost("a", Compared { bare: 3.0, with: 5.0 }, 1.0, 5.0);
        table.cost("b", Compared { bare: 3.0, with: 13.0 }, 1.0, 5.0);
        assert!(table.to_string().contains("| a | 3.0 | 5.0 | 2.0 | ≤ 5 | yes |"));
        assert!(table.to_string().contains("| b | 3.0 | 13.0 | 10.0 | ≤ 5 | **no** |"));
    }
}

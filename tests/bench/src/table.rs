//! The printed tables, in Markdown.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

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
    println!("{}, {count} × {model}, Linux {kernel}", today());
}

/// Today's date in UTC.
fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    let (year, month, day) = civil(days as i64);
    format!("{year}-{month:02}-{day:02}")
}

/// The date `days` days after 1970-01-01. Calculates in years that begin in March, so that leap days come last.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(DAYS_OF_400_YEARS), shifted.rem_euclid(DAYS_OF_400_YEARS));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_453), (2025, 12, 31));
    }

    #[test]
    fn an_aim_that_is_missed_is_said() {
        let mut table = Table::of_costs("ns");
        table.cost("a", Compared { bare: 3.0, with: 5.0 }, 1.0, 5.0);
        table.cost("b", Compared { bare: 3.0, with: 13.0 }, 1.0, 5.0);
        assert!(table.to_string().contains("| a | 3.0 | 5.0 | 2.0 | ≤ 5 | yes |"));
        assert!(table.to_string().contains("| b | 3.0 | 13.0 | 10.0 | ≤ 5 | **no** |"));
    }
}

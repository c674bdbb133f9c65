//! The printed tables, in Markdown.

use crate::statistics::Compared;

/// A table of figures. Each row is printed at once: a measurement may take minutes, and may be stopped.
pub(crate) struct Table {
    columns: usize,
}

impl Table {
    /// Prints the head of a table with these columns.
    pub(crate) fn new(head: &[&'static str]) -> Table {
        println!("\n| {} |\n|{}", head.join(" | "), " --- |".repeat(head.len()));
        Table { columns: head.len() }
    }

    /// A table of the costs of calls.
    pub(crate) fn of_costs(what: &'static str) -> Table {
        Table::new(&[what, "bare", "with the shim", "added", "aim", "met"])
    }

    /// Prints a row at once, so that a bench that is cut off has shown what it measured.
    pub(crate) fn row(&mut self, cells: &[String]) {
        assert_eq!(cells.len(), self.columns, "a cell for each column");
        println!("| {} |", cells.join(" | "));
    }

    /// Prints a call's cost in nanoseconds divided by `unit`, and the most that the shim may add.
    pub(crate) fn cost(&mut self, what: impl Into<String>, compared: Compared, unit: f64, aim: f64) {
        self.row(&cost(what.into(), compared, unit, aim));
    }
}

fn cost(what: String, compared: Compared, unit: f64, aim: f64) -> [String; 6] {
    let Compared { bare, with } = compared;
    let number = |value: f64| if unit > 1.0 { format!("{:.3}", value / unit) } else { format!("{value:.1}") };
    let met = yes_or_no(compared.added() <= aim * unit);
    [what, number(bare), number(with), number(compared.added()), format!("≤ {aim}"), met]
}

/// Whether an aim is met.
pub(crate) fn yes_or_no(met: bool) -> String {
    if met { "yes" } else { "**no**" }.to_owned()
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
        let met = cost("a".to_owned(), Compared { bare: 3.0, with: 5.0 }, 1.0, 5.0);
        assert_eq!(met, ["a", "3.0", "5.0", "2.0", "≤ 5", "yes"]);
        let missed = cost("b".to_owned(), Compared { bare: 3.0, with: 13.0 }, 1.0, 5.0);
        assert_eq!(missed, ["b", "3.0", "13.0", "10.0", "≤ 5", "**no**"]);
    }
}

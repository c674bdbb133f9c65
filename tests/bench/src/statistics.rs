//! Medians, and interleaved comparisons.

/// A figure measured without and with the shim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared {
    /// Without the shim.
    pub(crate) bare: f64,
    /// With the shim.
    pub(crate) with: f64,
}

impl Compared {
    /// The overhead of the shim.
    pub(crate) fn added(self) -> f64 {
        self.with - self.bare
    }
}

/// Measures both alternately, `runs` times each. Returns the medians.
pub(crate) fn compare(runs: usize, mut bare: impl FnMut() -> f64, mut with: impl FnMut() -> f64) -> Compared {
    let (bare, with): (Vec<f64>, Vec<f64>) = (0..runs).map(|_| (bare(), with())).unzip();
    Compared { bare: median(bare), with: median(with) }
}

/// The middle of `values`.
pub(crate) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value below which `part` of `values` lie.
pub(crate) fn quantile(mut values: Vec<f64>, part: f64) -> f64 {
    assert!(!values.is_empty(), "nothing was measured");
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_row_of_numbers() {
        let row = || (0..=100).rev().map(f64::from).collect();
        assert_eq!((median(row()), quantile(row(), 0.99), quantile(row(), 1.0)), (50.0, 99.0, 100.0));
    }

    #[test]
    fn both_are_measured_in_turn() {
        let order = std::cell::RefCell::new(String::new());
        let note = |name: char, value: f64| {
            order.borrow_mut().push(name);
            value
        };
        let compared = compare(3, || note('b', 1.0), || note('w', 3.5));
        assert_eq!((order.borrow().as_str(), compared.added()), ("bwbwbw", 2.5));
    }
}

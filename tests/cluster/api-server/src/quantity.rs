//! Kubernetes quantities, with the arithmetic of the API server and the scheduler.

/// A quantity in thousandths of its unit. No claim and no node uses smaller amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    thousandths: i128,
}

impl Quantity {
    /// Reads a quantity; `None` if the text is not one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Quantity> {
        let thousandths = aliquot_dialects::quantity::thousandths(text).ok()?;
        Some(Quantity { thousandths: i128::try_from(thousandths).ok()? })
    }

    /// A quantity of whole units.
    #[must_use]
    pub fn of(units: i128) -> Quantity {
        Quantity { thousandths: units * 1000 }
    }

    /// The value in whole units, rounded up.
    #[must_use]
    pub fn units(self) -> i128 {
        self.thousandths.div_euclid(1000) + i128::from(self.thousandths.rem_euclid(1000) != 0)
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Quantity) -> Quantity {
        Quantity { thousandths: self.thousandths + other.thousandths }
    }
}

#[cfg(test)]
mod tests {
    use super::Quantity;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, units) in
            [("0", 0), ("100", 100), ("1Mi", 1 << 20), ("1.5Gi", 3 << 29), ("2k", 2000), ("1e3", 1000), ("500m", 1)]
        {
            assert_eq!(Quantity::parse(text).map(Quantity::units), Some(units), "{text}");
        }
        assert!(Quantity::parse("500m") < Quantity::parse("1"));
        assert_eq!(Quantity::parse("1000m"), Quantity::parse("1"));
        for text in ["", "Mi", "1mi", "1 Gi", "abc", "--1", "NaN"] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }
}

//! Kubernetes quantities: `500m`, `40Gi`, `1e3`.

/// A quantity in thousandths of its unit, which is as fine as anything that claims and nodes ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    thousandths: i128,
}

impl Quantity {
    /// Reads a quantity; `None` if it is none.
    #[must_use]
    pub fn parse(text: &str) -> Option<Quantity> {
        let digits_end = text.find(|c: char| !(c.is_ascii_digit() || "+-.".contains(c))).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits_end);
        let (multiplier, divisor) = scale(suffix)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.len() > 9 {
            return None;
        }
        let negative = whole.starts_with('-');
        let whole: i128 = if matches!(whole, "" | "+" | "-") { 0 } else { whole.parse().ok()? };
        let parts = 10_i128.pow(fraction.len() as u32);
        let fraction: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        let number = whole.checked_mul(parts)?.checked_add(if negative { -fraction } else { fraction })?;
        let scaled = number.checked_mul(1000)?.checked_mul(multiplier)?;
        let unit = parts * divisor;
        // Rounded up, as everything is that is asked for.
        Some(Quantity { thousandths: scaled.div_euclid(unit) + i128::from(scaled.rem_euclid(unit) != 0) })
    }

    /// So many whole units.
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

/// What a suffix multiplies and divides by.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    if let Some(exponent) = suffix.strip_prefix(['e', 'E']).filter(|exponent| !exponent.is_empty()) {
        let exponent: i32 = exponent.parse().ok()?;
        let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
        return Some(if exponent < 0 { (1, power) } else { (power, 1) });
    }
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, 1_000_000_000),
        "u" => (1, 1_000_000),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => return None,
    })
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

//! Numbers of bytes, written for people.

use std::fmt;

/// A number of bytes, displayed in the greatest binary unit that is not greater than the number: exactly if it is a
/// whole number of units, otherwise with two decimals and the number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub u64);

const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((unit, name)) = UNITS.into_iter().find(|(unit, _)| self.0 >= *unit) else {
            return write!(f, "{} bytes", self.0);
        };
        let (whole, rest) = (self.0 / unit, self.0 % unit);
        if rest == 0 {
            return write!(f, "{whole} {name}");
        }
        let hundredths = u128::from(rest) * 100 / u128::from(unit);
        write!(f, "{whole}.{hundredths:02} {name} ({} bytes)", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (4 << 30, "4 GiB"),
            (3 << 29, "1.50 GiB (1610612736 bytes)"),
            (u64::MAX, "16777215.99 TiB (18446744073709551615 bytes)"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}

//! Quantities as Kubernetes writes them: `4`, `2k`, `1.5Gi`, `3e2`, `2000m`. This is the one place where they are read.
//!
//! The command line has a language of its own, which is stricter: there `4G` and `4m` are refused, because people mean
//! different things by them.

use crate::decimal::Decimal;

/// A text that is not a quantity, or not one that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a whole number, for example 4 or 2Gi, that is not negative and below 2^64")]
pub struct QuantityError;

/// The whole number that a quantity stands for.
///
/// # Errors
/// It is no quantity, is negative, has a fraction, or does not fit.
pub fn whole(text: &str) -> Result<u64, QuantityError> {
    let (number, suffix) = Decimal::parse_prefix(text).ok_or(QuantityError)?;
    let (multiplier, divisor) = scale(suffix).ok_or(QuantityError)?;
    match number.times(multiplier) {
        Some((value, true)) if value % divisor == 0 => Ok(value / divisor),
        _ => Err(QuantityError),
    }
}

/// A quantity of bytes, rounded down to whole ones: `1.1Gi` is not a whole number of them. Only a quantity of 0 is 0,
/// which often has a meaning of its own.
///
/// # Errors
/// It is no quantity, is negative, is more than 0 and less than a byte, or does not fit.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    let (number, suffix) = Decimal::parse_prefix(text).ok_or(QuantityError)?;
    let (multiplier, divisor) = scale(suffix).ok_or(QuantityError)?;
    let (value, is_exact) = number.times(multiplier).ok_or(QuantityError)?;
    match value / divisor {
        0 if value > 0 || !is_exact => Err(QuantityError),
        bytes => Ok(bytes),
    }
}

/// The quantity in thousandths, rounded up, as Kubernetes rounds what is asked for.
///
/// # Errors
/// It is no quantity, is negative, or does not fit.
pub fn thousandths(text: &str) -> Result<u128, QuantityError> {
    let (number, suffix) = Decimal::parse_prefix(text).ok_or(QuantityError)?;
    let (multiplier, divisor) = scale(suffix).ok_or(QuantityError)?;
    number.times_rounded_up(u128::from(multiplier) * 1000, u128::from(divisor)).ok_or(QuantityError)
}

/// The multiplier and the divisor that a suffix stands for.
fn scale(suffix: &str) -> Option<(u64, u64)> {
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
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, value) in [
            ("0", 0),
            ("30", 30),
            ("2k", 2000),
            ("1.5Gi", 3 << 29),
            ("3e2", 300),
            ("2000m", 2),
            ("5000000000n", 5),
            ("1E", 1_000_000_000_000_000_000),
            ("1Ei", 1 << 60),
            ("0.5k", 500),
        ] {
            assert_eq!(whole(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn bytes_are_rounded_down_to_whole_ones() {
        for (text, value) in [
            ("0", 0),
            ("0Gi", 0),
            ("4Gi", 4 << 30),
            ("1.1Gi", 1_181_116_006),
            ("0.1Gi", 107_374_182),
            ("1500m", 1),
            ("1.5", 1),
            ("0.001Ki", 1),
        ] {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
        for text in ["", "0.5", "999m", "1n", "1e-24", "-1Gi", "4GB", "NaN", "16Ei"] {
            assert_eq!(bytes(text), Err(QuantityError), "{text}");
        }
    }

    #[test]
    fn thousandths_are_rounded_up() {
        for (text, value) in [
            ("0", 0),
            ("500m", 500),
            ("1.5", 1500),
            ("1", 1000),
            ("1u", 1),
            ("0.0001", 1),
            ("2k", 2_000_000),
            ("3e2", 300_000),
            ("16Ei", (16 << 60) * 1000),
        ] {
            assert_eq!(thousandths(text), Ok(value), "{text}");
        }
        for text in ["", "-1", "1mi", "1 Gi", "NaN", "100000000000000000000000E"] {
            assert_eq!(thousandths(text), Err(QuantityError), "{text}");
        }
    }

    #[test]
    fn quantities_that_are_not_whole_numbers_are_refused() {
        for text in ["", "1.5", "-1", "100m", "NaN", "4 Gi", "4GB", "4gi", "16Ei", "1Ki2", "０"] {
            assert_eq!(whole(text), Err(QuantityError), "{text}");
        }
    }
}

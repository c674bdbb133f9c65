//! Decimal numbers as people write them, read without floating point.

/// The most digits that a number may have, leading zeros not counted. More digits cannot change an amount given out.
const DIGITS_MAX: usize = 24;
/// The largest exponent that a number may have.
const EXPONENT_MAX: i32 = 24;

/// A non-negative number: `digits · 10^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    digits: u128,
    exponent: i32,
}

impl Decimal {
    /// The number that `text` begins with, and the rest of the text: `1.5Gi` is 1.5 and `Gi`. An exponent is part of
    /// the number (`5e-1`); a lone `E` is not, it is a suffix.
    pub(crate) fn parse_prefix(text: &str) -> Option<(Decimal, &str)> {
        let text = text.strip_prefix('+').unwrap_or(text);
        let (whole, rest) = split_digits(text);
        let (fraction, rest) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let (written, rest) = split_exponent(rest)?;
        let fraction = fraction.trim_end_matches('0');
        let digits = [whole, fraction].concat();
        let digits = digits.trim_start_matches('0');
        if digits.len() > DIGITS_MAX {
            return None;
        }
        let exponent = written.checked_sub(i32::try_from(fraction.len()).ok()?)?;
        let digits = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        Some((Decimal { digits, exponent }, rest))
    }

    /// The number times `factor`, rounded down, and whether the result is exact; `None` if it is too large.
    pub(crate) fn times(self, factor: u64) -> Option<(u64, bool)> {
        let product = self.digits.checked_mul(u128::from(factor))?;
        if self.exponent >= 0 {
            let power = 10_u128.checked_pow(self.exponent.unsigned_abs());
            let value = if product == 0 { 0 } else { product.checked_mul(power?)? };
            return Some((u64::try_from(value).ok()?, true));
        }
        let Some(power) = 10_u128.checked_pow(self.exponent.unsigned_abs()) else {
            return Some((0, product == 0));
        };
        Some((u64::try_from(product / power).ok()?, product % power == 0))
    }

    /// The number times `factor`, divided by `divisor`, rounded up; `None` if it is too large.
    pub(crate) fn times_rounded_up(self, factor: u128, divisor: u128) -> Option<u128> {
        let product = self.digits.checked_mul(factor)?;
        if product == 0 {
            return Some(0);
        }
        let power = 10_u128.checked_pow(self.exponent.unsigned_abs());
        if self.exponent >= 0 {
            return Some(product.checked_mul(power?)?.div_ceil(divisor));
        }
        // A divisor that is too large to count leaves less than one.
        Some(power.and_then(|power| power.checked_mul(divisor)).map_or(1, |divisor| product.div_ceil(divisor)))
    }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(u8::is_ascii_digit).count())
}

/// The exponent that `text` begins with (0 if it has none), and the rest.
fn split_exponent(text: &str) -> Option<(i32, &str)> {
    let Some(rest) = text.strip_prefix(['e', 'E']) else { return Some((0, text)) };
    let (negative, unsigned) = match rest.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, rest.strip_prefix('+').unwrap_or(rest)),
    };
    let (digits, behind) = split_digits(unsigned);
    if digits.is_empty() {
        return Some((0, text));
    }
    let size: i32 = digits.parse().ok().filter(|size| *size <= EXPONENT_MAX)?;
    Some((if negative { -size } else { size }, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(text: &str, factor: u64) -> Option<(u64, bool)> {
        let (number, rest) = Decimal::parse_prefix(text)?;
        assert_eq!(rest, "", "{text}");
        number.times(factor)
    }

    #[test]
    fn numbers_are_read_to_the_last_digit() {
        for (text, factor, found) in [
            ("0", 1, (0, true)),
            ("30", 1, (30, true)),
            ("+7", 1, (7, true)),
            ("0.5", 1_000_000, (500_000, true)),
            (".25", 100, (25, true)),
            ("1.", 1, (1, true)),
            ("0.333333333333", 1_000_000, (333_333, false)),
            ("5e-1", 10, (5, true)),
            ("2E3", 1, (2000, true)),
            ("1.50", 2, (3, true)),
            ("0.0000000000000000000000001", 1, (0, false)),
            ("0e24", 1, (0, true)),
            ("18446744073709551615", 1, (u64::MAX, true)),
        ] {
            assert_eq!(times(text, factor), Some(found), "{text}");
        }
    }

    #[test]
    fn texts_without_a_number_or_with_too_large_a_one_are_not_read() {
        for text in ["", ".", "-1", "NaN", "inf", "e3", "x", "1e25", "1e99999999999", "1234567890123456789012345"] {
            assert_eq!(Decimal::parse_prefix(text), None, "{text}");
        }
        assert_eq!(times("18446744073709551616", 1), None);
        assert_eq!(times("1e24", 1), None);
    }

    #[test]
    fn a_suffix_is_left_over() {
        for (text, suffix) in [("1Ei", "Ei"), ("1E", "E"), ("4Gi", "Gi"), ("1e2Gi", "Gi"), ("3 ", " "), ("1_0", "_0")] {
            assert_eq!(Decimal::parse_prefix(text).map(|(_, rest)| rest), Some(suffix), "{text}");
        }
    }
}

//! Whole numbers in options, with a message that says which are allowed.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Reads a number within a range.
pub fn from_to<N>(allowed: RangeInclusive<N>) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| allowed.contains(number));
        number.ok_or_else(|| format!("write a number from {} to {}", allowed.start(), allowed.end()))
    }
}

/// Reads a number that is not less than `least`.
pub fn at_least<N>(least: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| *number >= least);
        number.ok_or_else(|| format!("write a whole number, {least} or more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_such_number_is_told_which_are() {
        assert_eq!(from_to(1_u8..=16)("16"), Ok(16));
        for text in ["0", "17", "-1", "1000", "", "1.5", "x"] {
            assert_eq!(from_to(1_u8..=16)(text), Err("write a number from 1 to 16".to_owned()), "{text}");
        }
        assert_eq!(at_least(1_u32)("7"), Ok(7));
        for text in ["0", "-1", "99999999999", "x"] {
            assert_eq!(at_least(1_u32)(text), Err("write a whole number, 1 or more".to_owned()), "{text}");
        }
    }
}

//! How much it counts against a queue what it has had lately, as an operator writes it.

use jiff::SignedDuration;

/// The greatest weight of past usage, in thousandths. Greater ones would change nothing.
const WEIGHT_MAX: u64 = 1_000_000;
/// The longest half-life of past usage: ten years.
const HALF_LIFE_MAX_MS: u64 = 10 * 366 * 24 * 3_600_000;

/// Reads a weight: a number with at most three decimals. Returns it in thousandths.
///
/// # Errors
/// A sentence that says what it must be.
pub fn weight(text: &str) -> Result<u64, String> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    let thousandths = (!whole.is_empty() && part.len() <= 3 && is_number(whole) && is_number(part))
        .then(|| format!("{whole}{part:0<3}").parse::<u64>().ok())
        .flatten();
    thousandths.filter(|thousandths| *thousandths <= WEIGHT_MAX).ok_or_else(|| {
        format!("it must be a number from 0 to {} with at most three decimals, as in 0.5", WEIGHT_MAX / 1000)
    })
}

/// Reads a half-life, such as `12h`. Returns it in milliseconds.
///
/// # Errors
/// A sentence that says what it must be.
pub fn half_life_ms(text: &str) -> Result<u64, String> {
    let time = text.parse::<SignedDuration>().ok().and_then(|time| u64::try_from(time.as_millis()).ok());
    time.filter(|ms| (1000..=HALF_LIFE_MAX_MS).contains(ms))
        .ok_or_else(|| "it must be a time from 1s to ten years, as in 12h or 30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_read_to_thousandths() {
        for (text, thousandths) in [("0", 0), ("1", 1000), ("0.5", 500), ("2.125", 2125), ("1000", 1_000_000)] {
            assert_eq!(weight(text), Ok(thousandths), "{text}");
        }
        for text in ["", "-1", ".5", "1.2345", "1e3", "NaN", "1000.001", "99999999999999999999999"] {
            let refused = weight(text).expect_err(text);
            assert_eq!(refused, "it must be a number from 0 to 1000 with at most three decimals, as in 0.5");
        }
    }

    #[test]
    fn half_lives_are_times() {
        for (text, hours) in [("168h", 168), ("12h", 12), ("90m", 1)] {
            assert_eq!(half_life_ms(text).map(|ms| ms / 3_600_000), Ok(hours), "{text}");
        }
        for text in ["", "0s", "-1h", "7", "200000000h", "a week"] {
            half_life_ms(text).expect_err(text);
        }
    }
}

//! Spans of time on the command line, such as `1h30m`.

use std::str::FromStr;
use std::time::Duration;

use super::QuantityError;

const MIN_RUNTIME_ACCEPTED: &str = "write a number with its unit, such as 30s, 10m or 1h30m, or 0, or none";
const SPAN_ACCEPTED: &str = "write a number with its unit, such as 30s, 10m, 1h or 1h30m";
/// A century, which is more than any manager keeps.
const SPAN_SECONDS_MAX: u64 = 100 * 366 * 86_400;

/// A span of time, in whole seconds: `90s`, `10m`, `1h`, `1h30m`, `2d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(Duration);

impl Span {
    pub(crate) fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let refuse = |problem: String| QuantityError { problem, accepted: SPAN_ACCEPTED };
        let (mut seconds, mut rest) = (0u64, text);
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (number, unit) = rest.split_at(digits);
            let unit_seconds = match unit.chars().next() {
                Some('s') => 1,
                Some('m') => 60,
                Some('h') => 3600,
                Some('d') => 86_400,
                None => return Err(refuse(format!("{text:?} has no unit at its end"))),
                Some(_) => return Err(refuse(format!("{text:?} is not a length of time"))),
            };
            if number.is_empty() {
                return Err(refuse(format!("{text:?} has a unit without a number")));
            }
            let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_seconds));
            let sum = part.and_then(|part| seconds.checked_add(part)).filter(|&sum| sum <= SPAN_SECONDS_MAX);
            seconds = sum.ok_or_else(|| refuse(format!("{text:?} is too long")))?;
            rest = &unit[1..];
        }
        match seconds {
            0 => Err(refuse(format!("{text:?} is not a length of time"))),
            seconds => Ok(Span(Duration::from_secs(seconds))),
        }
    }
}

/// A time that a queue sets, which may be 0, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MinRuntime(Option<Duration>);

impl MinRuntime {
    /// In milliseconds; `None` if none is set.
    pub(crate) fn millis(self) -> Option<u64> {
        self.0.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

impl FromStr for MinRuntime {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match text {
            "none" => Ok(MinRuntime(None)),
            "0" | "0s" => Ok(MinRuntime(Some(Duration::ZERO))),
            _ => match text.parse() {
                Ok(Span(time)) => Ok(MinRuntime(Some(time))),
                Err(error) => Err(QuantityError { accepted: MIN_RUNTIME_ACCEPTED, ..error }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spans_of_time() {
        let span =
            |text: &str| text.parse().map(|span: Span| span.duration().as_secs()).map_err(|error| error.to_string());
        for (text, seconds) in [("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("2d", 172_800), ("0h5s", 5)]
        {
            assert_eq!(span(text), Ok(seconds), "{text}");
        }
        for (text, problem) in [
            ("", "is not a length of time"),
            ("0s", "is not a length of time"),
            ("10", "has no unit"),
            ("1h30", "has no unit"),
            ("h", "without a number"),
            ("-1h", "is not a length of time"),
            ("1.5h", "is not a length of time"),
            ("1 h", "is not a length of time"),
            ("10ms", "without a number"),
            ("1µs", "is not a length of time"),
            ("99999999999999999999s", "is too long"),
            ("999999999999999999d", "is too long"),
        ] {
            let error = span(text).expect_err(text);
            assert!(error.contains(problem) && error.contains("10m"), "{text}: {error}");
        }
    }

    #[test]
    fn the_time_of_a_queue_may_be_nothing_or_none() {
        let millis = |text: &str| text.parse::<MinRuntime>().map(MinRuntime::millis);
        assert_eq!([millis("none"), millis("0"), millis("10m")], [Ok(None), Ok(Some(0)), Ok(Some(600_000))]);
        let error = millis("10").unwrap_err().to_string();
        assert!(error.contains("has no unit") && error.ends_with("or none"), "{error}");
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = (text.parse::<Span>(), text.parse::<MinRuntime>());
        }
    }
}

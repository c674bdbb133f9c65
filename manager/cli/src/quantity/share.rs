//! Shares of a device's time.

use std::str::FromStr;

use super::QuantityError;

const CORE_ACCEPTED: &str = "write a whole percent of one device from 1 to 100, such as 30 or 30%";

/// A share of one device's time, in whole percent from 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CorePercent(u32);

impl CorePercent {
    /// The share in percent.
    pub(crate) fn percent(self) -> u32 {
        self.0
    }
}

impl FromStr for CorePercent {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let refuse = |problem: String| QuantityError { problem, accepted: CORE_ACCEPTED };
        let digits = text.strip_suffix('%').unwrap_or(text);
        if let Some(positive) = digits.strip_prefix('-') {
            return Err(refuse(match positive.bytes().all(|byte| byte.is_ascii_digit()) && !positive.is_empty() {
                true => format!("{text:?} is negative"),
                false => format!("{text:?} is not a percentage"),
            }));
        }
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(refuse(format!("{text:?} is not a whole percentage")));
        }
        match digits.parse() {
            Ok(0) => Err(refuse("0 percent is not a valid share".to_owned())),
            Ok(percent @ 1..=100) => Ok(CorePercent(percent)),
            _ => Err(QuantityError {
                problem: format!("{text:?} is more than one device has"),
                accepted: "write a whole percent of one device from 1 to 100, and --devices N (a job: --gpus N) for a part of several devices",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn core(text: &str) -> Result<u32, String> {
        text.parse::<CorePercent>().map(CorePercent::percent).map_err(|error| error.to_string())
    }

    #[test]
    fn core_percent() {
        assert_eq!(core("30"), Ok(30));
        assert_eq!(core("30%"), Ok(30));
        assert_eq!(core("100"), Ok(100));
        for (text, problem) in [
            ("", "not a whole percentage"),
            ("%", "not a whole percentage"),
            ("0", "not a valid share"),
            ("0%", "not a valid share"),
            ("-5", "negative"),
            ("--", "not a percentage"),
            ("NaN", "not a whole percentage"),
            ("12.5", "not a whole percentage"),
            ("+5", "not a whole percentage"),
            ("30 %", "not a whole percentage"),
            ("30%%", "not a whole percentage"),
            ("101", "more than one device has"),
            ("250", "--devices N"),
            ("99999999999999999999", "more than one device has"),
        ] {
            let error = core(text).expect_err(text);
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = text.parse::<CorePercent>();
        }
    }
}

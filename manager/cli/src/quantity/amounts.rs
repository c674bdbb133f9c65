//! Amounts that jobs and queues ask for.

use std::str::FromStr;

use super::decimal::Decimal;
use super::{Memory, QuantityError};

const BYTES_ACCEPTED: &str = "write a number with its unit, such as 512MiB, 1.5GiB or 4GB";
const THOUSANDTHS_ACCEPTED: &str = "write a number with at most three digits after the point, such as 2 or 0.5";
const LIMIT_ACCEPTED: &str = "write a number with at most three digits after the point, such as 4 or 0.5, or none";
const MEMORY_LIMIT_ACCEPTED: &str = "write a number with its unit, such as 512GiB or 1.5TiB, or none";

/// An amount of memory in bytes, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(u64);

impl Bytes {
    /// The number of bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match text.parse() {
            Ok(Memory::Bytes(bytes)) => Ok(Bytes(bytes)),
            Ok(Memory::Part { .. }) => Err(QuantityError {
                problem: format!("{text:?} is a part, and devices differ"),
                accepted: BYTES_ACCEPTED,
            }),
            Err(error) => Err(QuantityError { accepted: BYTES_ACCEPTED, ..error }),
        }
    }
}

/// A number of CPUs or devices in exact thousandths, never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thousandths(u64);

impl Thousandths {
    /// The number of thousandths.
    pub(crate) fn millis(self) -> u64 {
        self.0
    }
}

impl FromStr for Thousandths {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match thousandths(text, THOUSANDTHS_ACCEPTED)? {
            0 => Err(QuantityError { problem: format!("{text:?} is nothing"), accepted: THOUSANDTHS_ACCEPTED }),
            millis => Ok(Thousandths(millis)),
        }
    }
}

/// The quota or limit of a queue: a number of devices or CPUs, which may be 0, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CountLimit(Option<u64>);

impl CountLimit {
    /// In thousandths of a device or CPU; `None` if none is set.
    pub(crate) fn millis(self) -> Option<u64> {
        self.0
    }
}

impl FromStr for CountLimit {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match text {
            "none" => Ok(CountLimit(None)),
            _ => thousandths(text, LIMIT_ACCEPTED).map(|millis| CountLimit(Some(millis))),
        }
    }
}

/// The quota or limit of a queue: an amount of memory, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryLimit(Option<u64>);

impl MemoryLimit {
    /// In bytes; `None` if none is set.
    pub(crate) fn bytes(self) -> Option<u64> {
        self.0
    }
}

impl FromStr for MemoryLimit {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        match text {
            "none" => Ok(MemoryLimit(None)),
            _ => match text.parse() {
                Ok(Bytes(bytes)) => Ok(MemoryLimit(Some(bytes))),
                Err(error) => Err(QuantityError { accepted: MEMORY_LIMIT_ACCEPTED, ..error }),
            },
        }
    }
}

fn thousandths(text: &str, accepted: &'static str) -> Result<u64, QuantityError> {
    let refuse = |problem: String| QuantityError { problem, accepted };
    if text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(refuse(format!("{text:?} is negative")));
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(refuse(format!("{text:?} is not a number")));
    }
    let number =
        Decimal::parse(text).ok_or_else(|| refuse(format!("{text:?} is not a number that can be read exactly")))?;
    match number.times(1000) {
        Some(_) if number.decimals > 3 => Err(refuse(format!("{text:?} is finer than a thousandth"))),
        Some(millis) => Ok(millis),
        None => Err(refuse(format!("{text:?} is too much"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::thousandths_human;
    use super::*;

    #[test]
    fn thousandths_are_exact() {
        for (text, millis) in [("2", 2000), ("0.5", 500), ("1.125", 1125), ("0.001", 1), ("64", 64_000)] {
            assert_eq!(text.parse(), Ok(Thousandths(millis)), "{text}");
            assert_eq!(thousandths_human(millis), text);
        }
        for (text, problem) in [
            ("", "cannot be read exactly"),
            ("0", "is nothing"),
            ("0.0", "is nothing"),
            ("-1", "is negative"),
            ("1.2345", "finer than a thousandth"),
            ("500m", "is not a number"),
            ("1e3", "is not a number"),
            (".5", "cannot be read exactly"),
            ("99999999999999999999", "cannot be read exactly"),
            ("18446744073709551615", "is too much"),
        ] {
            let error = text.parse::<Thousandths>().expect_err(text).to_string();
            let problem = problem.replace("cannot be read exactly", "is not a number that can be read exactly");
            assert!(error.contains(&problem) && error.contains("such as 2 or 0.5"), "{text}: {error}");
        }
    }

    #[test]
    fn a_limit_may_be_nothing_or_none() {
        assert_eq!("none".parse(), Ok(CountLimit(None)));
        assert_eq!("0".parse(), Ok(CountLimit(Some(0))));
        assert_eq!("0.5".parse(), Ok(CountLimit(Some(500))));
        assert!("None".parse::<CountLimit>().unwrap_err().to_string().ends_with("or none"));
        assert_eq!("none".parse(), Ok(MemoryLimit(None)));
        assert_eq!("1TiB".parse(), Ok(MemoryLimit(Some(1 << 40))));
        assert!("64".parse::<MemoryLimit>().unwrap_err().to_string().ends_with("1.5TiB, or none"));
    }

    #[test]
    fn bytes_are_no_part_of_a_device() {
        assert_eq!("8GiB".parse(), Ok(Bytes(8 << 30)));
        let error = "25%".parse::<Bytes>().unwrap_err().to_string();
        assert!(error.contains("devices differ") && error.ends_with("4GB"), "{error}");
        assert!("8".parse::<Bytes>().unwrap_err().to_string().contains("has no unit"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = (text.parse::<Bytes>(), text.parse::<MemoryLimit>(), text.parse::<Thousandths>(), text.parse::<CountLimit>());
        }

        #[test]
        fn what_is_shown_is_read_back(millis in 1u64..1 << 50) {
            prop_assert_eq!(thousandths_human(millis).parse(), Ok(Thousandths(millis)));
        }
    }
}

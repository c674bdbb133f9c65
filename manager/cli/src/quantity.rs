//! Quantities as people write them: `30`, `30%`, `4GiB`, `25%`.
//!
//! This is the one place where they are parsed. Parsing is strict: a quantity with two possible meanings is refused,
//! and the error says what is accepted. There is no floating point: a fraction such as `1.1GiB` is rounded down to
//! whole bytes exactly.
//!
//! The quantities of Kubernetes are another language, which `aliquot_dialects::quantity` reads: there `4G` is 4·1000³
//! bytes and `4m` four thousandths, and both are refused here.

mod amounts;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub(crate) use aliquot_terminal::human::{bytes_human, span_human, thousandths_human};
pub(crate) use amounts::{Bytes, DeviceLimit, Thousandths};

/// What is wrong with a quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QuantityError {
    /// What was wrong, with the value.
    problem: String,
    /// What is accepted.
    accepted: &'static str,
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.accepted)
    }
}

impl std::error::Error for QuantityError {}

const CORE_ACCEPTED: &str = "write a whole percent of one device from 1 to 100, such as 30 or 30%";
const MEMORY_ACCEPTED: &str =
    "write a number with its unit, such as 512MiB, 1.5GiB or 4GB, or a part of the device, such as 25%";

const HOST_MEMORY_ACCEPTED: &str = "write a number with its unit, such as 512MiB, 1.5GiB or 4GB, or none";

const SPAN_ACCEPTED: &str = "write a number with its unit, such as 30s, 10m, 1h or 1h30m";
/// A century, which is more than any manager keeps.
const SPAN_SECONDS_MAX: u64 = 100 * 366 * 86_400;

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
            Ok(0) => Err(refuse("0 percent is no share".to_owned())),
            Ok(percent @ 1..=100) => Ok(CorePercent(percent)),
            _ => Err(QuantityError {
                problem: format!("{text:?} is more than one device has"),
                accepted: "write a whole percent of one device from 1 to 100, and --devices N (a job: --gpus N) for a part of several devices",
            }),
        }
    }
}

/// An amount of one device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// This many bytes, never 0.
    Bytes(u64),
    /// A part of the device's memory, in billionths: more than 0, at most the whole.
    Part {
        /// Billionths of the device's memory.
        billionths: u64,
    },
}

/// Billionths in the whole.
const WHOLE_BILLIONTHS: u64 = 1_000_000_000;

impl Memory {
    /// The amount in bytes on a device with `device_bytes`.
    ///
    /// # Errors
    /// It exceeds the device's memory, or is a part of less than one byte.
    pub(crate) fn of_device(self, device_bytes: u64) -> Result<u64, QuantityError> {
        let refuse = |problem: String| QuantityError { problem, accepted: MEMORY_ACCEPTED };
        match self {
            Memory::Bytes(bytes) if bytes > device_bytes => Err(refuse(format!(
                "{} is more than the device has, which is {}",
                bytes_exact(bytes),
                bytes_exact(device_bytes)
            ))),
            Memory::Bytes(bytes) => Ok(bytes),
            Memory::Part { billionths } => {
                let bytes = u128::from(device_bytes) * u128::from(billionths) / u128::from(WHOLE_BILLIONTHS);
                match u64::try_from(bytes) {
                    Ok(bytes) if bytes > 0 => Ok(bytes),
                    _ => Err(refuse(format!(
                        "this part of a device of {} is less than a byte",
                        bytes_exact(device_bytes)
                    ))),
                }
            }
        }
    }
}

impl FromStr for Memory {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let refuse = |problem: String| QuantityError { problem, accepted: MEMORY_ACCEPTED };
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        if number.is_empty() {
            let negative = text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            return Err(refuse(match negative {
                true => format!("{text:?} is negative"),
                false => format!("{text:?} does not begin with a number"),
            }));
        }
        let Some(number) = Decimal::parse(number) else {
            return Err(refuse(format!("{number:?} in {text:?} is not a number that can be read exactly")));
        };
        if number.is_zero() {
            return Err(refuse(format!("{text:?} is no memory")));
        }
        if unit == "%" {
            return match number.times(WHOLE_BILLIONTHS / 100) {
                Some(0) => Err(refuse(format!("{text:?} is too small a part"))),
                Some(billionths @ 1..=WHOLE_BILLIONTHS) => Ok(Memory::Part { billionths }),
                _ => Err(refuse(format!("{text:?} is more than the device has"))),
            };
        }
        let unit_bytes = unit_bytes(unit).map_err(|problem| refuse(problem.describe(text, unit)))?;
        match number.times(unit_bytes) {
            Some(0) => Err(refuse(format!("{text:?} is less than a byte"))),
            Some(bytes) => Ok(Memory::Bytes(bytes)),
            None => Err(refuse(format!("{text:?} is more than any device has"))),
        }
    }
}

/// A limit on page-locked host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostMemory {
    /// No limit.
    Unlimited,
    /// This many bytes, never 0.
    Bytes(u64),
}

impl HostMemory {
    /// The limit in the manager's API: 0 for none.
    pub(crate) fn limit_bytes(self) -> u64 {
        match self {
            HostMemory::Unlimited => 0,
            HostMemory::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for HostMemory {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if text == "none" {
            return Ok(HostMemory::Unlimited);
        }
        match text.parse() {
            Ok(Memory::Bytes(bytes)) => Ok(HostMemory::Bytes(bytes)),
            Ok(Memory::Part { .. }) => Err(QuantityError {
                problem: format!("{text:?} is a part, and it does not say of what"),
                accepted: HOST_MEMORY_ACCEPTED,
            }),
            Err(error) => Err(QuantityError { accepted: HOST_MEMORY_ACCEPTED, ..error }),
        }
    }
}

/// A span of time, in whole seconds: `90s`, `10m`, `1h`, `1h30m`, `2d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(Duration);

impl Span {
    /// Its length.
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
                Some(_) => return Err(refuse(format!("{text:?} is no time"))),
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
            0 => Err(refuse(format!("{text:?} is no time"))),
            seconds => Ok(Span(Duration::from_secs(seconds))),
        }
    }
}

/// Why a unit is refused.
enum UnitProblem {
    /// It is missing.
    Missing,
    /// It has two meanings; the field holds both ways to write them.
    Ambiguous(&'static str),
    /// It is not a known unit.
    Unknown,
}

impl UnitProblem {
    fn describe(&self, text: &str, unit: &str) -> String {
        match self {
            UnitProblem::Missing => format!("{text:?} has no unit"),
            UnitProblem::Ambiguous(meanings) => format!("{unit:?} in {text:?} could mean {meanings}"),
            UnitProblem::Unknown => format!("{unit:?} in {text:?} is not a known unit"),
        }
    }
}

/// Bytes in one `unit`.
fn unit_bytes(unit: &str) -> Result<u64, UnitProblem> {
    Ok(match unit {
        "" => return Err(UnitProblem::Missing),
        "B" => 1,
        "KiB" | "Ki" => 1 << 10,
        "MiB" | "Mi" => 1 << 20,
        "GiB" | "Gi" => 1 << 30,
        "TiB" | "Ti" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "k" | "K" => return Err(UnitProblem::Ambiguous("KiB (1024) or kB (1000)")),
        "m" | "M" => return Err(UnitProblem::Ambiguous("MiB (1024²) or MB (1000²)")),
        "g" | "G" => return Err(UnitProblem::Ambiguous("GiB (1024³) or GB (1000³)")),
        "t" | "T" => return Err(UnitProblem::Ambiguous("TiB (1024⁴) or TB (1000⁴)")),
        _ => return Err(UnitProblem::Unknown),
    })
}

/// An exact decimal number: `digits / 10^decimals`.
struct Decimal {
    digits: u64,
    decimals: u32,
}

impl Decimal {
    /// Maximum digits after the point: enough for a billionth of a device.
    const DECIMALS_MAX: usize = 9;

    fn parse(text: &str) -> Option<Decimal> {
        let (whole, fraction) = match text.split_once('.') {
            Some((whole, fraction)) if !whole.is_empty() && !fraction.is_empty() => (whole, fraction),
            Some(_) => return None,
            None => (text, ""),
        };
        if fraction.len() > Self::DECIMALS_MAX || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = format!("{whole}{fraction}").parse().ok()?;
        Some(Decimal { digits, decimals: fraction.len() as u32 })
    }

    fn is_zero(&self) -> bool {
        self.digits == 0
    }

    /// The number times `factor`, rounded down.
    fn times(&self, factor: u64) -> Option<u64> {
        u64::try_from(u128::from(self.digits) * u128::from(factor) / 10u128.pow(self.decimals)).ok()
    }
}

/// The same where the exact number matters: followed by the number of bytes if the text is rounded.
pub(crate) fn bytes_exact(bytes: u64) -> String {
    let text = bytes_human(bytes);
    let read_back = text.replace(' ', "").parse();
    if bytes == 0 || read_back == Ok(Memory::Bytes(bytes)) { text } else { format!("{text} ({bytes} bytes)") }
}

/// Thousandths of a percent for people: `29.9`.
pub(crate) fn millipercent_human(millipercent: u64) -> String {
    let tenths = (millipercent + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A time span for people: `0 s`, `3.2 ms`, `4.5 s`, `2 min 5 s`.
pub(crate) fn duration_human(ns: u64) -> String {
    match ns {
        0 => "0 s".to_owned(),
        1..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.1} s", ns as f64 / 1e9),
        _ => {
            let seconds = ns / 1_000_000_000;
            match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
                (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
                (hours, minutes, _) => format!("{hours} h {minutes} min"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memory(text: &str) -> Result<Memory, String> {
        text.parse::<Memory>().map_err(|error| error.to_string())
    }

    fn core(text: &str) -> Result<u32, String> {
        text.parse::<CorePercent>().map(CorePercent::percent).map_err(|error| error.to_string())
    }

    #[test]
    fn a_host_memory_limit_is_bytes_or_none() {
        assert_eq!("4GiB".parse(), Ok(HostMemory::Bytes(4 << 30)));
        assert_eq!("none".parse(), Ok(HostMemory::Unlimited));
        for text in ["25%", "0GiB", "4", "", "-1GiB", "NONE"] {
            let error = text.parse::<HostMemory>().unwrap_err().to_string();
            assert!(error.ends_with("or none"), "{error}");
        }
    }

    #[test]
    fn memory_units() {
        for (text, bytes) in [
            ("1B", 1),
            ("4GiB", 4 << 30),
            ("4Gi", 4 << 30),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("4GB", 4_000_000_000),
            ("0.5kB", 500),
            ("1TiB", 1 << 40),
            ("0.3GiB", 322_122_547),
        ] {
            assert_eq!(memory(text), Ok(Memory::Bytes(bytes)), "{text}");
        }
        assert_eq!(memory("25%"), Ok(Memory::Part { billionths: 250_000_000 }));
        assert_eq!(memory("12.5%"), Ok(Memory::Part { billionths: 125_000_000 }));
        assert_eq!(memory("100%"), Ok(Memory::Part { billionths: WHOLE_BILLIONTHS }));
    }

    #[test]
    fn memory_refused() {
        for (text, problem) in [
            ("", "does not begin with a number"),
            ("GiB", "does not begin with a number"),
            ("NaN", "does not begin with a number"),
            ("nanGiB", "does not begin with a number"),
            ("inf", "does not begin with a number"),
            ("+4GiB", "does not begin with a number"),
            (" 4GiB", "does not begin with a number"),
            ("-4GiB", "is negative"),
            ("0GiB", "is no memory"),
            ("0.0%", "is no memory"),
            ("4096", "has no unit"),
            ("4G", "could mean GiB"),
            ("4m", "could mean MiB"),
            ("4 GiB", "is not a known unit"),
            ("4gib", "is not a known unit"),
            ("4GiBs", "is not a known unit"),
            ("4e9B", "is not a known unit"),
            ("1x10MiB", "is not a known unit"),
            ("0x10MiB", "is no memory"),
            ("1..5GiB", "is not a number"),
            (".5GiB", "is not a number"),
            ("5.GiB", "is not a number"),
            ("0.4B", "is less than a byte"),
            ("101%", "is more than the device has"),
            ("100.1%", "is more than the device has"),
            ("18446744073709551616B", "is not a number that can be read exactly"),
            ("16777216TiB", "is more than any device has"),
            ("٤GiB", "does not begin with a number"),
        ] {
            let error = memory(text).expect_err(text);
            assert!(error.contains(problem) && error.contains("512MiB"), "{text}: {error}");
        }
    }

    #[test]
    fn memory_on_a_device() {
        let of = |text: &str, device_bytes| memory(text)?.of_device(device_bytes).map_err(|error| error.to_string());
        assert_eq!(of("4GiB", 80 << 30), Ok(4 << 30));
        assert_eq!(of("25%", 80 << 30), Ok(20 << 30));
        assert_eq!(of("100%", u64::MAX), Ok(u64::MAX));
        assert!(
            of("81GiB", 80 << 30)
                .expect_err("too much")
                .contains("81 GiB is more than the device has, which is 80 GiB")
        );
        assert!(of("0.000001%", 1 << 20).expect_err("too little").contains("less than a byte"));
    }

    #[test]
    fn spans_of_time() {
        let span =
            |text: &str| text.parse().map(|span: Span| span.duration().as_secs()).map_err(|error| error.to_string());
        for (text, seconds) in [("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("2d", 172_800), ("0h5s", 5)]
        {
            assert_eq!(span(text), Ok(seconds), "{text}");
        }
        for (text, problem) in [
            ("", "is no time"),
            ("0s", "is no time"),
            ("10", "has no unit"),
            ("1h30", "has no unit"),
            ("h", "without a number"),
            ("-1h", "is no time"),
            ("1.5h", "is no time"),
            ("1 h", "is no time"),
            ("10ms", "without a number"),
            ("1µs", "is no time"),
            ("99999999999999999999s", "is too long"),
            ("999999999999999999d", "is too long"),
        ] {
            let error = span(text).expect_err(text);
            assert!(error.contains(problem) && error.contains("10m"), "{text}: {error}");
        }
    }

    #[test]
    fn core_percent() {
        assert_eq!(core("30"), Ok(30));
        assert_eq!(core("30%"), Ok(30));
        assert_eq!(core("100"), Ok(100));
        for (text, problem) in [
            ("", "not a whole percentage"),
            ("%", "not a whole percentage"),
            ("0", "no share"),
            ("0%", "no share"),
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

    #[test]
    fn sizes_are_readable() {
        assert_eq!(bytes_exact(4 << 30), "4 GiB");
        assert_eq!(bytes_exact(3 << 29), "1.5 GiB");
        assert_eq!(bytes_exact(0), "0 B");
        // Read back, this text gives the same number.
        assert_eq!(bytes_exact(858_993_459), "819.2 MiB");
        assert_eq!(bytes_exact(858_993_460), "819.2 MiB (858993460 bytes)");
        assert_eq!(bytes_exact((1 << 30) - 1), "1 GiB (1073741823 bytes)");
        assert_eq!(millipercent_human(29_949), "29.9");
        assert_eq!(millipercent_human(29_950), "30.0");
        assert_eq!(duration_human(0), "0 s");
        assert_eq!(duration_human(3_200_000), "3.2 ms");
        assert_eq!(duration_human(125_000_000_000), "2 min 5 s");
        assert_eq!(duration_human(7_380_000_000_000), "2 h 3 min");
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*", device_bytes in any::<u64>()) {
            let _ = text.parse::<CorePercent>();
            let _ = text.parse::<Span>();
            if let Ok(memory) = text.parse::<Memory>() {
                let _ = memory.of_device(device_bytes);
            }
        }

        #[test]
        fn exact_text_is_the_bytes_or_has_them(bytes in 1u64..) {
            let text = bytes_exact(bytes);
            let is_it = text.replace(' ', "").parse() == Ok(Memory::Bytes(bytes));
            prop_assert!(is_it || text.ends_with(&format!(" ({bytes} bytes)")), "{}", text);
        }

        #[test]
        fn never_more_than_written(whole in 0u64..1 << 20, fraction in 0u64..1000, device_bytes in any::<u64>()) {
            if let Ok(Memory::Bytes(bytes)) = format!("{whole}.{fraction:03}GiB").parse::<Memory>() {
                let exact_thousandths = u128::from(whole * 1000 + fraction) << 30;
                prop_assert!(u128::from(bytes) * 1000 <= exact_thousandths);
                prop_assert!((u128::from(bytes) + 1) * 1000 > exact_thousandths);
            }
            if let Ok(part) = format!("{}.{fraction:03}%", whole % 100).parse::<Memory>()
                && let Ok(bytes) = part.of_device(device_bytes)
            {
                prop_assert!(bytes <= device_bytes);
            }
        }
    }
}

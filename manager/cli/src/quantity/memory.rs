//! Amounts of memory, of a device and of the host.

use std::str::FromStr;

use super::decimal::Decimal;
use super::{QuantityError, bytes_human};

const MEMORY_ACCEPTED: &str =
    "write a number with its unit, such as 512MiB, 1.5GiB or 4GB, or a part of the device, such as 25%";

const HOST_MEMORY_ACCEPTED: &str = "write a number with its unit, such as 512MiB, 1.5GiB or 4GB, or none";

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
            return Err(refuse(format!("{text:?} is not an amount of memory")));
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
    /// The container may lock what the machine allows.
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
                problem: format!("{text:?} is a percentage, and host memory needs an amount"),
                accepted: HOST_MEMORY_ACCEPTED,
            }),
            Err(error) => Err(QuantityError { accepted: HOST_MEMORY_ACCEPTED, ..error }),
        }
    }
}

/// Why a unit is refused.
enum UnitProblem {
    /// The number has no unit.
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

/// Bytes for people where the exact number matters: followed by the number of bytes if the text is rounded.
pub(crate) fn bytes_exact(bytes: u64) -> String {
    let text = bytes_human(bytes);
    let read_back = text.replace(' ', "").parse();
    if bytes == 0 || read_back == Ok(Memory::Bytes(bytes)) { text } else { format!("{text} ({bytes} bytes)") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn memory(text: &str) -> Result<Memory, String> {
        text.parse::<Memory>().map_err(|error| error.to_string())
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
            ("0GiB", "is not an amount of memory"),
            ("0.0%", "is not an amount of memory"),
            ("4096", "has no unit"),
            ("4G", "could mean GiB"),
            ("4m", "could mean MiB"),
            ("4 GiB", "is not a known unit"),
            ("4gib", "is not a known unit"),
            ("4GiBs", "is not a known unit"),
            ("4e9B", "is not a known unit"),
            ("1x10MiB", "is not a known unit"),
            ("0x10MiB", "is not an amount of memory"),
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
    fn sizes_are_readable() {
        assert_eq!(bytes_exact(4 << 30), "4 GiB");
        assert_eq!(bytes_exact(3 << 29), "1.5 GiB");
        assert_eq!(bytes_exact(0), "0 B");
        // Read back, this text gives the same number.
        assert_eq!(bytes_exact(858_993_459), "819.2 MiB");
        assert_eq!(bytes_exact(858_993_460), "819.2 MiB (858993460 bytes)");
        assert_eq!(bytes_exact((1 << 30) - 1), "1 GiB (1073741823 bytes)");
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*", device_bytes in any::<u64>()) {
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

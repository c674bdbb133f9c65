//! How amounts are written for people: exact, and in the unit that the field uses.

use std::fmt::{self, Display, Formatter};

use crate::vocabulary::resource::Resource;

/// Units of bytes, the largest first.
const BYTE_UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// An amount of a resource with its unit and its name, such as `250 % gpu-core`.
pub(crate) struct Amount<'a>(pub(crate) &'a Resource, pub(crate) u64);

impl Display for Amount<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(resource, amount) = self;
        match resource {
            Resource::Cpu => write!(f, "{}", Cores(*amount)),
            Resource::Memory => write!(f, "{} of memory", ByteCount(*amount)),
            Resource::DeviceCore => write!(f, "{} gpu-core", Percent(*amount)),
            Resource::DeviceMemory => write!(f, "{} of gpu-memory", ByteCount(*amount)),
            Resource::ModelCore(model) => write!(f, "{} gpu-core of {model}", Percent(*amount)),
        }
    }
}

/// CPU that is given in thousandths of a core.
pub(crate) struct Cores(pub(crate) u64);

impl Display for Cores {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        thousandths(f, self.0)?;
        f.write_str(if self.0 == 1000 { " CPU core" } else { " CPU cores" })
    }
}

/// Device time, given in thousandths of one device and written in percent of one device.
pub(crate) struct Percent(pub(crate) u64);

impl Display for Percent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{} %", self.0 / 10),
            tenths => write!(f, "{}.{tenths} %", self.0 / 10),
        }
    }
}

/// Bytes, in the largest unit in which at most two decimal places write the amount exactly.
pub(crate) struct ByteCount(pub(crate) u64);

impl Display for ByteCount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        // Two decimal places are exact for whole quarters of a unit.
        let fits = |(_, unit): &&(&str, u64)| bytes >= *unit && bytes.is_multiple_of(unit / 4);
        match BYTE_UNITS.iter().find(fits) {
            Some((name, unit)) => {
                let decimals = ["", ".25", ".5", ".75"][usize::try_from(bytes % unit / (unit / 4)).unwrap_or(0)];
                write!(f, "{}{decimals} {name}", bytes / unit)
            }
            None => write!(f, "{bytes} bytes"),
        }
    }
}

/// A length of time in milliseconds, written in whole seconds. It is rounded up: after the time that is written, the
/// wait is over.
pub(crate) struct Span(pub(crate) u64);

impl Display for Span {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_ceil(1000);
        let parts =
            [("d", seconds / 86_400), ("h", seconds / 3600 % 24), ("min", seconds / 60 % 60), ("s", seconds % 60)];
        let shown = parts.iter().filter(|(_, count)| *count > 0).map(|(unit, count)| format!("{count} {unit}"));
        match seconds {
            0 => f.write_str("0 s"),
            _ => f.write_str(&shown.collect::<Vec<_>>().join(" ")),
        }
    }
}

/// A count with its noun: `1 node`, `3 nodes`.
pub(crate) struct Count(pub(crate) u64, pub(crate) &'static str);

impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{}", self.0, self.1, if self.0 == 1 { "" } else { "s" })
    }
}

/// A number of repetitions in words: `once`, `3 times`.
pub(crate) struct Times(pub(crate) u32);

impl Display for Times {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("once"),
            times => write!(f, "{times} times"),
        }
    }
}

/// Parts of a sentence with commas between them and `and` before the last.
pub(crate) struct Listed<'a, T>(pub(crate) &'a [T]);

impl<T: Display> Display for Listed<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let last = self.0.len().saturating_sub(1);
        for (index, part) in self.0.iter().enumerate() {
            match index {
                0 => {}
                _ if index == last => f.write_str(" and ")?,
                _ => f.write_str(", ")?,
            }
            part.fmt(f)?;
        }
        Ok(())
    }
}

/// An amount in thousandths, without zeros at the end.
fn thousandths(f: &mut Formatter<'_>, amount: u64) -> fmt::Result {
    write!(f, "{}", amount / 1000)?;
    match amount % 1000 {
        0 => Ok(()),
        part => write!(f, ".{}", format!("{part:03}").trim_end_matches('0')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_exactly_and_in_the_unit_of_their_field() {
        let amount = |resource: Resource, amount: u64| Amount(&resource, amount).to_string();
        assert_eq!(amount(Resource::Cpu, 1000), "1 CPU core");
        assert_eq!(amount(Resource::Cpu, 3500), "3.5 CPU cores");
        assert_eq!(amount(Resource::Cpu, 62), "0.062 CPU cores");
        assert_eq!(amount(Resource::Memory, 16 << 30), "16 GiB of memory");
        assert_eq!(amount(Resource::DeviceCore, 2500), "250 % gpu-core");
        assert_eq!(amount(Resource::DeviceCore, 333), "33.3 % gpu-core");
        assert_eq!(amount(Resource::DeviceMemory, 46_068 << 20), "46068 MiB of gpu-memory");
        assert_eq!(amount(Resource::ModelCore("A100".to_owned()), 500), "50 % gpu-core of A100");
    }

    #[test]
    fn bytes_are_never_rounded() {
        assert_eq!(ByteCount(0).to_string(), "0 bytes");
        assert_eq!(ByteCount(1).to_string(), "1 bytes");
        assert_eq!(ByteCount(1 << 40).to_string(), "1 TiB");
        assert_eq!(ByteCount((1 << 40) + (1 << 30)).to_string(), "1025 GiB");
        assert_eq!(ByteCount((3 << 30) / 2).to_string(), "1.5 GiB");
        assert_eq!(ByteCount((1 << 30) + 1).to_string(), "1073741825 bytes");
    }

    #[test]
    fn spans_are_rounded_up_to_whole_seconds() {
        assert_eq!(Span(0).to_string(), "0 s");
        assert_eq!(Span(1).to_string(), "1 s");
        assert_eq!(Span(61_000).to_string(), "1 min 1 s");
        assert_eq!(Span(90_000_000).to_string(), "1 d 1 h");
    }

    #[test]
    fn lists_have_an_and_before_the_last_part() {
        assert_eq!(Listed(&[Count(1, "node")]).to_string(), "1 node");
        assert_eq!(Listed(&["a", "b"]).to_string(), "a and b");
        assert_eq!(Listed(&["a", "b", "c"]).to_string(), "a, b and c");
    }
}

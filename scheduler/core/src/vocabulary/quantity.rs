//! Amounts of resources, each in a type of its own. They are integers, with the unit in the name.

use std::iter::Sum;

/// Declares an amount: an integer that can be compared and added, and subtracted only if there is enough.
macro_rules! quantity {
    ($(#[$meta:meta])* $name:ident($int:ty), $unit:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        pub struct $name($int);

        impl $name {
            /// An amount of 0.
            pub const ZERO: Self = Self(0);

            #[doc = concat!("An amount in ", $unit, ".")]
            #[must_use]
            pub const fn new(amount: $int) -> Self {
                Self(amount)
            }

            #[doc = concat!("The amount in ", $unit, ".")]
            #[must_use]
            pub const fn get(self) -> $int {
                self.0
            }

            /// The sum; `None` if it is out of range.
            #[must_use]
            pub fn checked_add(self, other: Self) -> Option<Self> {
                self.0.checked_add(other.0).map(Self)
            }

            /// The difference; `None` if it would be below 0.
            #[must_use]
            pub fn checked_sub(self, other: Self) -> Option<Self> {
                self.0.checked_sub(other.0).map(Self)
            }

            /// The difference, or 0 if it would be below 0.
            #[must_use]
            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
                Self(amounts.fold(0, |sum, amount| sum.saturating_add(amount.0)))
            }
        }
    };
}

quantity!(
    /// CPU time, in thousandths of a core.
    MilliCpu(u64),
    "thousandths of a CPU core"
);
quantity!(
    /// Memory, of a node or of a device.
    Bytes(u64),
    "bytes"
);
quantity!(
    /// A part of one device's time, in thousandths: a percent is 10.
    DeviceCore(u32),
    "thousandths of one device's time"
);

impl DeviceCore {
    /// All of one device's time.
    pub const WHOLE: Self = Self(1000);

    /// A part of a device's time in percent.
    #[must_use]
    pub const fn from_percent(percent: u32) -> Self {
        Self(percent.saturating_mul(10))
    }
}

impl Bytes {
    /// An amount in MiB.
    #[must_use]
    pub const fn from_mib(mib: u64) -> Self {
        Self(mib.saturating_mul(1 << 20))
    }

    /// This many thousandths of the amount, rounded down. So parts with a sum of at most 1000 always fit into the
    /// whole.
    #[must_use]
    pub fn thousandths(self, thousandths: u32) -> Self {
        let part = u128::from(self.0) * u128::from(thousandths) / 1000;
        Self(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// How many whole thousandths of `whole` this is; 1000 if `whole` is 0.
    #[must_use]
    pub fn thousandths_of(self, whole: Self) -> u32 {
        if whole.0 == 0 {
            return 1000;
        }
        // Memory sizes times a thousand fit into 64 bits up to 16 PiB.
        let part = match self.0.checked_mul(1000) {
            Some(scaled) => scaled / whole.0,
            None => self.0 / (whole.0 / 1000).max(1),
        };
        u32::try_from(part).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousandths_that_add_up_to_the_whole_fit_into_it() {
        let memory = Bytes::new(46_068 * 1024 * 1024 + 7);
        let parts: Bytes = [333, 333, 334].into_iter().map(|part| memory.thousandths(part)).sum();
        assert!(parts <= memory);
        assert_eq!(memory.thousandths(1000), memory);
    }

    #[test]
    fn thousandths_are_rounded_down_and_defined_for_nothing() {
        assert_eq!(Bytes::new(999).thousandths_of(Bytes::new(1000)), 999);
        assert_eq!(Bytes::new(1).thousandths_of(Bytes::new(3)), 333);
        assert_eq!(Bytes::ZERO.thousandths_of(Bytes::ZERO), 1000);
        assert_eq!(Bytes::new(u64::MAX).thousandths_of(Bytes::new(u64::MAX)), 1000);
    }
}

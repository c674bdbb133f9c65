//! Decimal numbers that lose nothing, unlike floats: shares and amounts are kept to the last digit.

/// An exact decimal number: `digits / 10^decimals`.
pub(super) struct Decimal {
    digits: u64,
    /// Digits after the point, as they were written.
    pub(super) decimals: u32,
}

impl Decimal {
    /// Maximum digits after the point: enough for a billionth of a device.
    const DECIMALS_MAX: usize = 9;

    /// Parses a number, if its value is exact.
    pub(super) fn parse(text: &str) -> Option<Decimal> {
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

    /// Whether it is 0.
    pub(super) fn is_zero(&self) -> bool {
        self.digits == 0
    }

    /// The number times `factor`, rounded down.
    pub(super) fn times(&self, factor: u64) -> Option<u64> {
        u64::try_from(u128::from(self.digits) * u128::from(factor) / 10u128.pow(self.decimals)).ok()
    }
}

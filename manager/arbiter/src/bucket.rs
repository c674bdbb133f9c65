//! A token bucket of device time.

/// Device time that may be used, earned at a rate in percent. A negative balance is debt.
///
/// The balance is stored in hundredths of a nanosecond, so that a percentage of any time is exact.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    rate_percent: u32,
    balance: i64,
}

/// Hundredths of a nanosecond in a nanosecond.
const SCALE: i64 = 100;

impl Bucket {
    pub(crate) fn new(rate_percent: u32, balance_ns: u64) -> Self {
        Self { rate_percent, balance: scaled(balance_ns) }
    }

    pub(crate) fn set_rate(&mut self, rate_percent: u32) {
        self.rate_percent = rate_percent;
    }

    /// The time earned in `elapsed_ns`.
    pub(crate) fn earned_ns(&self, elapsed_ns: u64) -> u64 {
        elapsed_ns / 100 * u64::from(self.rate_percent) + elapsed_ns % 100 * u64::from(self.rate_percent) / 100
    }

    /// Earns for `elapsed_ns`; afterwards the balance is at most `capacity_ns`.
    pub(crate) fn refill(&mut self, elapsed_ns: u64, capacity_ns: u64) {
        let earned = i64::try_from(elapsed_ns).unwrap_or(i64::MAX).saturating_mul(i64::from(self.rate_percent));
        self.balance = self.balance.saturating_add(earned).min(scaled(capacity_ns));
    }

    pub(crate) fn spend(&mut self, ns: u64) {
        self.balance = self.balance.saturating_sub(scaled(ns));
    }

    /// Forgives debt beyond `debt_ns`.
    pub(crate) fn forgive_beyond(&mut self, debt_ns: u64) {
        self.balance = self.balance.max(-scaled(debt_ns));
    }

    /// The time that may be used; 0 if there is debt.
    pub(crate) fn balance_ns(&self) -> u64 {
        u64::try_from(self.balance / SCALE).unwrap_or(0)
    }

    pub(crate) fn in_debt(&self) -> bool {
        self.balance < 0
    }

    /// Time until the balance is `target_ns`: 0 if it is already, `None` if it never will be.
    pub(crate) fn time_to_ns(&self, target_ns: u64) -> Option<u64> {
        let missing = u64::try_from(scaled(target_ns).saturating_sub(self.balance)).unwrap_or(0);
        missing.checked_add(u64::from(self.rate_percent).saturating_sub(1))?.checked_div(u64::from(self.rate_percent))
    }
}

fn scaled(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX).saturating_mul(SCALE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_exact_in_steps_of_any_length() {
        let mut bucket = Bucket::new(33, 0);
        for _ in 0..1_000_003 {
            bucket.refill(7, u64::MAX);
        }
        assert_eq!(bucket.balance_ns(), 7 * 1_000_003 * 33 / 100);
    }

    #[test]
    fn debt_is_paid_before_there_is_a_balance() {
        let mut bucket = Bucket::new(10, 50);
        bucket.spend(150);
        assert!(bucket.in_debt());
        assert_eq!((bucket.balance_ns(), bucket.time_to_ns(20)), (0, Some(1200)));
        bucket.refill(1199, 1000);
        assert_eq!(bucket.time_to_ns(20), Some(1));
        bucket.refill(1, 1000);
        assert_eq!((bucket.balance_ns(), bucket.time_to_ns(20)), (20, Some(0)));
    }

    #[test]
    fn no_more_than_the_capacity_is_saved_and_no_more_than_the_bound_is_owed() {
        let mut bucket = Bucket::new(50, 0);
        bucket.refill(u64::MAX, 40);
        assert_eq!(bucket.balance_ns(), 40);
        bucket.spend(u64::MAX);
        bucket.forgive_beyond(60);
        assert_eq!(bucket.time_to_ns(0), Some(120));
    }

    #[test]
    fn a_rate_of_zero_refills_nothing() {
        let bucket = Bucket::new(0, 5);
        assert_eq!((bucket.time_to_ns(5), bucket.time_to_ns(6), bucket.earned_ns(100)), (None, None, 0));
    }
}

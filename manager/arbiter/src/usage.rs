//! A container's use of the device, its waits and its overruns.

/// Inclusive upper bounds of the buckets of [`Usage::waits`]. Longer waits have a bucket of their own.
pub const WAIT_BOUNDS_NS: [u64; 13] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];

/// A container's use of the device, its waits and its overruns, since it was added.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Charged device time, in nanoseconds.
    pub charged_ns: u64,
    /// When its present wait for a lease began, if it waits.
    pub waiting_since_ns: Option<u64>,
    /// Time that it waited for leases, in nanoseconds, without the present wait.
    pub waited_ns: u64,
    /// The longest wait for a lease, in nanoseconds.
    pub longest_wait_ns: u64,
    /// Number of waits for leases by length, without the present wait; see [`WAIT_BOUNDS_NS`].
    pub waits: [u64; WAIT_BOUNDS_NS.len() + 1],
    /// Leases granted; a renewal does not count.
    pub leases: u64,
    /// Leases whose work lasted longer than [`OVERRUN_REPORTED_NS`](crate::timing::OVERRUN_REPORTED_NS) after the gate
    /// was closed.
    pub overruns: u64,
    /// The total excess over that time, in nanoseconds.
    pub overrun_ns: u64,
}

impl Usage {
    pub(crate) fn begin_wait(&mut self, now_ns: u64) {
        self.waiting_since_ns.get_or_insert(now_ns);
    }

    pub(crate) fn end_wait(&mut self, now_ns: u64) {
        let Some(since_ns) = self.waiting_since_ns.take() else { return };
        let waited_ns = now_ns.saturating_sub(since_ns);
        self.waited_ns += waited_ns;
        self.longest_wait_ns = self.longest_wait_ns.max(waited_ns);
        let bucket = WAIT_BOUNDS_NS.partition_point(|&bound_ns| bound_ns < waited_ns);
        if let Some(count) = self.waits.get_mut(bucket) {
            *count += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_counted_once_in_the_first_bucket_that_holds_it() {
        let mut usage = Usage::default();
        for (waited_ns, bucket) in [(0, 0), (100_000, 0), (100_001, 1), (1_000_000_000, 12), (1_000_000_001, 13)] {
            let before = usage.waits[bucket];
            usage.begin_wait(0);
            // A wait counts from its beginning, however often it is reported.
            usage.begin_wait(waited_ns);
            usage.end_wait(waited_ns);
            usage.end_wait(waited_ns);
            assert_eq!(usage.waits[bucket], before + 1, "{waited_ns}");
        }
        assert_eq!(usage.waits.iter().sum::<u64>(), 5);
        assert_eq!(usage.longest_wait_ns, 1_000_000_001);
    }
}

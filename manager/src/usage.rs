//! Computes figures from the use of slices: shares of time from a history, and the use in the last hour in intervals.
//! Pure: [`measure`](crate::measure) reads the use, and time comes from the caller.

use std::collections::VecDeque;
use std::time::Duration;

use aliquot_node::MemoryUsage;

use crate::size::Bytes;

mod past;
pub(crate) use past::{Past, Totals};

/// Time between two entries of the history.
pub(crate) const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);

/// A second in nanoseconds.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;
/// The longest time over which a share is computed.
const HISTORY_NS: u64 = 60 * SECOND_NS;

/// Device time used up to certain moments in the past.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Pairs of time and use, both in nanoseconds and never decreasing; the oldest first.
    samples: VecDeque<(u64, u64)>,
}

impl History {
    /// Records that `used_ns` had been used by `now_ns`.
    pub(crate) fn record(&mut self, now_ns: u64, used_ns: u64) {
        self.samples.push_back((now_ns, used_ns));
        // One entry from before the longest window stays, as the base of the computation.
        while self.samples.get(1).is_some_and(|(at_ns, _)| at_ns + HISTORY_NS <= now_ns) {
            self.samples.pop_front();
        }
    }

    /// The share of the last `window_ns` in thousandths of a percent, with `used_ns` used by `now_ns`. If the history
    /// is shorter than the window, the share since its beginning.
    #[must_use]
    pub(crate) fn share_millipercent(&self, now_ns: u64, used_ns: u64, window_ns: u64) -> u32 {
        let before = self.samples.iter().rev().find(|(at_ns, _)| at_ns + window_ns <= now_ns);
        let Some(&(then_ns, then_used_ns)) = before.or(self.samples.front()) else { return 0 };
        let elapsed_ns = u128::from(now_ns.saturating_sub(then_ns));
        if elapsed_ns == 0 {
            return 0;
        }
        let share = u128::from(used_ns.saturating_sub(then_used_ns)) * 100_000 / elapsed_ns;
        u32::try_from(share.min(100_000)).unwrap_or(100_000)
    }
}

/// A warning for a slice's user, given although nothing is wrong: the slice holds more of `of` than its limit, which
/// was lowered.
#[must_use]
pub(crate) fn beyond_limit(memory: &MemoryUsage, of: &str) -> Option<String> {
    (memory.used_bytes > memory.limit_bytes).then(|| {
        format!(
            "{} of {of} are in use, and the limit is {}: nothing is taken away, and nothing more is given until less is in use",
            Bytes(memory.used_bytes),
            Bytes(memory.limit_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_averaged_over_the_window() {
        let mut history = History::default();
        assert_eq!(history.share_millipercent(SECOND_NS, 5, SECOND_NS), 0);
        // Half of the device for 100 s, then nothing for 5 s, with a sample every 250 ms.
        let used = |at_ns: u64| at_ns.min(100 * SECOND_NS) / 2;
        let end = 105 * SECOND_NS;
        for step in 0..=420 {
            let now_ns = step * SECOND_NS / 4;
            history.record(now_ns, used(now_ns));
        }
        assert_eq!(history.share_millipercent(end, used(end), SECOND_NS), 0);
        assert_eq!(history.share_millipercent(end, used(end), 10 * SECOND_NS), 25_000);
        assert_eq!(history.share_millipercent(end, used(end), 60 * SECOND_NS), 45_833);
        assert!(history.samples.len() <= 242);
    }

    #[test]
    fn the_share_of_a_young_slice_is_averaged_over_its_life() {
        let mut history = History::default();
        history.record(1000, 0);
        assert_eq!(history.share_millipercent(1000, 0, SECOND_NS), 0);
        assert_eq!(history.share_millipercent(2000, 300, 60 * SECOND_NS), 30_000);
        // A share above 100 % is a measurement error.
        assert_eq!(history.share_millipercent(2000, 3000, 60 * SECOND_NS), 100_000);
    }

    #[test]
    fn a_limit_below_what_is_in_use_is_a_warning() {
        let memory = MemoryUsage { limit_bytes: 1 << 30, used_bytes: 1 << 30, ..MemoryUsage::default() };
        assert_eq!(beyond_limit(&memory, "x"), None);
        let warning = beyond_limit(&MemoryUsage { used_bytes: 3 << 30, ..memory }, "the memory of y").unwrap();
        assert!(warning.starts_with("3 GiB of the memory of y are in use, and the limit is 1 GiB:"), "{warning}");
    }
}

//! The use of the slices over time, with as many points as a wide terminal can show.

use std::collections::{HashMap, VecDeque};

use aliquot_proto::node::v1::{GetUsageResponse, PartUsage};
use prost_types::Timestamp;

/// Maximum points kept for each slice and device.
const POINTS_MAX: usize = 512;
/// From this interval on, a share is computed over the whole interval, because the manager's own figure covers only the
/// last second.
const LONG_INTERVAL_NS: u64 = 2_000_000_000;

/// A slice's part of a device: the slice's id, and the device's UUID.
type PartKey = (String, String);

/// The manager's answers so far.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The newest answer of the manager.
    pub(super) newest: GetUsageResponse,
    parts: HashMap<PartKey, Past>,
}

/// The history of one slice's part of a device.
#[derive(Debug, Default)]
struct Past {
    /// Device time used, in thousandths of a percent, the oldest first.
    shares: VecDeque<u64>,
    /// Part of the last interval in which it waited for leases, in thousandths.
    waited_permille: u64,
    core_used_ns: u64,
    waited_ns: u64,
}

impl History {
    /// Adds an answer. Slices that are no longer in it are forgotten.
    pub(super) fn add(&mut self, answer: GetUsageResponse) {
        let elapsed_ns = match (&self.newest.time, &answer.time) {
            (Some(before), Some(now)) => u64::try_from(nanoseconds(now) - nanoseconds(before)).unwrap_or(0),
            _ => 0,
        };
        let mut before = std::mem::take(&mut self.parts);
        for slice in &answer.slices {
            for part in &slice.parts {
                let key = (slice.id.clone(), part.device_uuid.clone());
                let past = before.remove(&key);
                let elapsed_ns = if past.is_some() { elapsed_ns } else { 0 };
                self.parts.insert(key, past.unwrap_or_default().and(part, elapsed_ns));
            }
        }
        self.newest = answer;
    }

    /// The newest `count` shares of a slice's part in thousandths of a percent, the oldest first.
    pub(super) fn newest_shares(&self, slice_id: &str, device_uuid: &str, count: usize) -> Vec<u64> {
        let skip = |past: &Past| past.shares.len().saturating_sub(count);
        self.part(slice_id, device_uuid)
            .map_or_else(Vec::new, |past| past.shares.iter().skip(skip(past)).copied().collect())
    }

    /// The part of the last interval, in thousandths, in which a slice's part waited for leases.
    pub(super) fn waited_permille(&self, slice_id: &str, device_uuid: &str) -> u64 {
        self.part(slice_id, device_uuid).map_or(0, |past| past.waited_permille)
    }

    fn part(&self, slice_id: &str, device_uuid: &str) -> Option<&Past> {
        self.parts.get(&(slice_id.to_owned(), device_uuid.to_owned()))
    }
}

impl Past {
    /// Adds the figures of `part`, `elapsed_ns` after the previous answer; 0 if there was none.
    fn and(mut self, part: &PartUsage, elapsed_ns: u64) -> Past {
        let waited_ns = part.lease_waits.as_ref().map_or(0, |waits| waits.total_ns);
        let of_elapsed = |ns: u64, whole: u64| {
            let part = u128::from(ns) * u128::from(whole) / u128::from(elapsed_ns.max(1));
            u64::try_from(part).map_or(whole, |part| part.min(whole))
        };
        self.waited_permille = match elapsed_ns {
            0 => 0,
            _ => of_elapsed(waited_ns.saturating_sub(self.waited_ns), 1000),
        };
        let share = match elapsed_ns {
            LONG_INTERVAL_NS.. => of_elapsed(part.core_used_ns.saturating_sub(self.core_used_ns), 100_000),
            _ => part.core_used_1s_millipercent.into(),
        };
        if self.shares.len() == POINTS_MAX {
            self.shares.pop_front();
        }
        self.shares.push_back(share);
        (self.core_used_ns, self.waited_ns) = (part.core_used_ns, waited_ns);
        self
    }
}

fn nanoseconds(time: &Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos)
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::{SliceUsage, WaitHistogram};

    use super::*;

    fn answer_at(seconds: i64, part: PartUsage) -> GetUsageResponse {
        let part = PartUsage { device_uuid: "GPU-a".to_owned(), ..part };
        let slice = SliceUsage { id: "1".to_owned(), parts: vec![part], ..SliceUsage::default() };
        GetUsageResponse { slices: vec![slice], time: Some(Timestamp { seconds, nanos: 0 }) }
    }

    fn used(share: u32) -> PartUsage {
        PartUsage { core_used_1s_millipercent: share, ..PartUsage::default() }
    }

    #[test]
    fn the_newest_points_are_kept_and_a_removed_slice_is_forgotten() {
        let mut history = History::default();
        for share in 0..POINTS_MAX as u32 + 10 {
            history.add(answer_at(share.into(), used(share)));
        }
        let newest = POINTS_MAX as u64 + 9;
        assert_eq!(history.newest_shares("1", "GPU-a", 3), [newest - 2, newest - 1, newest]);
        assert_eq!(history.newest_shares("1", "GPU-a", usize::MAX).len(), POINTS_MAX);
        assert!(history.newest_shares("1", "GPU-b", 3).is_empty());
        history.add(GetUsageResponse::default());
        assert!(history.newest_shares("1", "GPU-a", 3).is_empty());
    }

    #[test]
    fn over_a_long_interval_a_share_is_that_of_all_of_it() {
        let mut history = History::default();
        let part = |core_used_ns, share| PartUsage { core_used_ns, ..used(share) };
        history.add(answer_at(0, part(5_000_000_000, 30_000)));
        history.add(answer_at(10, part(7_000_000_000, 40_000)));
        history.add(answer_at(11, part(7_900_000_000, 90_000)));
        assert_eq!(history.newest_shares("1", "GPU-a", 9), [30_000, 20_000, 90_000]);
    }

    #[test]
    fn how_much_of_the_time_was_waited_is_told_from_the_second_answer_on() {
        let mut history = History::default();
        let part = |total_ns| PartUsage {
            lease_waits: Some(WaitHistogram { total_ns, ..WaitHistogram::default() }),
            ..PartUsage::default()
        };
        for (seconds, total_ns, permille) in
            [(0, 9_000_000_000, 0), (1, 9_700_000_000, 700), (2, 19_000_000_000, 1000), (3, 0, 0), (3, 1, 0)]
        {
            history.add(answer_at(seconds, part(total_ns)));
            assert_eq!(history.waited_permille("1", "GPU-a"), permille, "{seconds}");
        }
    }
}

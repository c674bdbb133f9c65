//! Shares over time, as far back as a wide terminal shows.

use std::collections::{HashMap, VecDeque};

use aliquot_proto::node::v1::GetUsageResponse;

/// Points that are kept of each slice and device.
const POINTS_MAX: usize = 512;

/// A slice's part of a device, for as long as the slice lives.
type PartKey = (String, String);

/// What the manager has answered.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The newest answer.
    pub(super) newest: GetUsageResponse,
    /// Device time used in thousandths of a percent, oldest first.
    shares: HashMap<PartKey, VecDeque<u64>>,
}

impl History {
    /// Takes in an answer. What is not in it any more is forgotten.
    pub(super) fn add(&mut self, answer: GetUsageResponse) {
        let mut before = std::mem::take(&mut self.shares);
        for slice in &answer.slices {
            for part in &slice.parts {
                let key = (slice.id.clone(), part.device_uuid.clone());
                let mut points = before.remove(&key).unwrap_or_default();
                if points.len() == POINTS_MAX {
                    points.pop_front();
                }
                points.push_back(part.core_used_1s_millipercent.into());
                self.shares.insert(key, points);
            }
        }
        self.newest = answer;
    }

    /// The newest `count` points of a slice's part, oldest first.
    pub(super) fn newest_shares(&self, slice_id: &str, device_uuid: &str, count: usize) -> Vec<u64> {
        let points = self.shares.get(&(slice_id.to_owned(), device_uuid.to_owned()));
        points.map_or_else(Vec::new, |points| points.iter().skip(points.len().saturating_sub(count)).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use aliquot_proto::node::v1::{PartUsage, SliceUsage};

    use super::*;

    fn answer(share: u32) -> GetUsageResponse {
        let part =
            PartUsage { device_uuid: "GPU-a".to_owned(), core_used_1s_millipercent: share, ..PartUsage::default() };
        let slice = SliceUsage { id: "1".to_owned(), parts: vec![part], ..SliceUsage::default() };
        GetUsageResponse { slices: vec![slice], ..GetUsageResponse::default() }
    }

    #[test]
    fn the_newest_points_are_kept_and_a_removed_slice_is_forgotten() {
        let mut history = History::default();
        for share in 0..POINTS_MAX as u32 + 10 {
            history.add(answer(share));
        }
        let newest = POINTS_MAX as u64 + 9;
        assert_eq!(history.newest_shares("1", "GPU-a", 3), [newest - 2, newest - 1, newest]);
        assert_eq!(history.newest_shares("1", "GPU-a", usize::MAX).len(), POINTS_MAX);
        assert!(history.newest_shares("1", "GPU-b", 3).is_empty());
        history.add(GetUsageResponse::default());
        assert!(history.newest_shares("1", "GPU-a", 3).is_empty());
    }
}

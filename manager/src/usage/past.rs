//! The use of slices in the last hour, in intervals of ten seconds.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use aliquot_node::UsagePoint;

use super::SECOND_NS;

/// The length of an interval.
const PAST_INTERVAL_NS: u64 = 10 * SECOND_NS;
/// Maximum intervals kept: one hour.
const POINTS_MAX: usize = 360;

/// Totals of a part of a slice at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Device time used, in nanoseconds.
    pub core_used_ns: u64,
    /// Time that threads waited in launches.
    pub throttled_ns: u64,
    /// Time that the slice waited for leases.
    pub waited_ns: u64,
    /// Requests for memory that were refused.
    pub memory_refused: u64,
    /// Memory in use now, with that beyond the ledger.
    pub memory_used_bytes: u64,
    /// The greatest memory in its ledger since the slice was made.
    pub ledger_peak_bytes: u64,
    /// Its memory beyond the ledger.
    pub memory_overhead_bytes: u64,
}

/// The use in one interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    begin_ns: u64,
    end_ns: u64,
    core_used_ns: u64,
    throttled_ns: u64,
    waited_ns: u64,
    memory_peak_bytes: u64,
    memory_refused: u64,
}

impl Point {
    /// The use between two moments.
    fn between((begin_ns, before): (u64, Totals), (end_ns, now): (u64, Totals)) -> Point {
        // If the ledger's peak has grown, the peak was in this interval. Otherwise only the values at both ends are
        // known.
        let new_peak_bytes = match now.ledger_peak_bytes > before.ledger_peak_bytes {
            true => now.ledger_peak_bytes.saturating_add(now.memory_overhead_bytes),
            false => 0,
        };
        Point {
            begin_ns,
            end_ns,
            core_used_ns: now.core_used_ns.saturating_sub(before.core_used_ns),
            throttled_ns: now.throttled_ns.saturating_sub(before.throttled_ns),
            waited_ns: now.waited_ns.saturating_sub(before.waited_ns),
            memory_peak_bytes: new_peak_bytes.max(before.memory_used_bytes).max(now.memory_used_bytes),
            memory_refused: now.memory_refused.saturating_sub(before.memory_refused),
        }
    }

    /// Converts the interval to the adapters' type. `now_ns` and `now` are the same moment.
    #[must_use]
    pub(crate) fn usage(self, now_ns: u64, now: SystemTime) -> UsagePoint {
        UsagePoint {
            begin: now.checked_sub(Duration::from_nanos(now_ns.saturating_sub(self.begin_ns))),
            length_ns: self.end_ns.saturating_sub(self.begin_ns),
            core_used_ns: self.core_used_ns,
            throttled_ns: self.throttled_ns,
            waited_ns: self.waited_ns,
            memory_peak_bytes: self.memory_peak_bytes,
            memory_refused: self.memory_refused,
        }
    }

    /// Joins two consecutive intervals.
    fn and(self, next: Point) -> Point {
        Point {
            begin_ns: self.begin_ns,
            end_ns: next.end_ns,
            core_used_ns: self.core_used_ns.saturating_add(next.core_used_ns),
            throttled_ns: self.throttled_ns.saturating_add(next.throttled_ns),
            waited_ns: self.waited_ns.saturating_add(next.waited_ns),
            memory_peak_bytes: self.memory_peak_bytes.max(next.memory_peak_bytes),
            memory_refused: self.memory_refused.saturating_add(next.memory_refused),
        }
    }
}

/// The recorded intervals of a part.
#[derive(Debug, Default)]
pub(crate) struct Past {
    points: VecDeque<Point>,
    /// The beginning of the incomplete interval.
    begun: Option<(u64, Totals)>,
}

impl Past {
    /// Whether an interval is complete at `now_ns`, and must be recorded.
    #[must_use]
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.begun.is_none_or(|(begin_ns, _)| now_ns.saturating_sub(begin_ns) >= PAST_INTERVAL_NS)
    }

    /// Ends an interval with the totals `now`, and begins the next one.
    pub(crate) fn record(&mut self, now_ns: u64, now: Totals) {
        let end = (now_ns, now);
        if let Some(begin) = self.begun.replace(end) {
            self.points.push_back(Point::between(begin, end));
            if self.points.len() > POINTS_MAX {
                self.points.pop_front();
            }
        }
    }

    /// The use in the last `since_ns` before `now_ns`, up to the totals `now`, in at most `points_max` intervals.
    #[must_use]
    pub(crate) fn told(&self, now_ns: u64, now: Totals, since_ns: u64, points_max: usize) -> Vec<Point> {
        let begun = self.begun.map(|begin| Point::between(begin, (now_ns, now)));
        let first_end_ns = now_ns.saturating_sub(since_ns);
        let points = self.points.iter().copied().chain(begun).filter(|point| point.end_ns > first_end_ns);
        let points: Vec<Point> = points.collect();
        let together = points.len().div_ceil(points_max.max(1)).max(1);
        points.chunks(together).filter_map(|pieces| pieces.iter().copied().reduce(Point::and)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE_NS: u64 = PAST_INTERVAL_NS;

    fn totals(core_used_ns: u64, memory_used_bytes: u64, ledger_peak_bytes: u64) -> Totals {
        Totals { core_used_ns, memory_used_bytes, ledger_peak_bytes, ..Totals::default() }
    }

    /// A past with `n` nanoseconds used in interval number `n`.
    fn past(pieces: u64) -> Past {
        let (mut past, mut used_ns) = (Past::default(), 0);
        for piece in 0..=pieces {
            used_ns += piece;
            past.record(piece * PIECE_NS, totals(used_ns, 0, 0));
        }
        past
    }

    fn used(points: &[Point]) -> Vec<u64> {
        points.iter().map(|point| point.core_used_ns).collect()
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let past = past(1000);
        let now = past.begun.unwrap();
        let points = past.told(now.0, now.1, u64::MAX, usize::MAX);
        // The points include the interval that has just begun.
        assert_eq!(points.len(), POINTS_MAX + 1);
        assert_eq!((points[0].core_used_ns, points[359].core_used_ns, points[360].core_used_ns), (641, 1000, 0));
        assert_eq!(points[359].end_ns - points[0].begin_ns, 3600 * SECOND_NS);
    }

    #[test]
    fn the_history_covers_the_requested_time_up_to_now() {
        let past = past(5);
        let now_ns = 5 * PIECE_NS + PIECE_NS / 2;
        let points = past.told(now_ns, totals(15 + 7, 0, 0), 2 * PIECE_NS, usize::MAX);
        assert_eq!(used(&points), [4, 5, 7]);
        assert_eq!(points.last().unwrap().end_ns, now_ns);
    }

    #[test]
    fn pieces_are_merged_without_loss() {
        let past = past(5);
        let now = past.begun.unwrap();
        let points = past.told(now.0, now.1, u64::MAX, 2);
        assert_eq!(used(&points), [1 + 2 + 3, 4 + 5]);
        assert_eq!((points[0].begin_ns, points[1].begin_ns), (0, 3 * PIECE_NS));
    }

    #[test]
    fn a_peak_between_two_observations_is_known_if_it_is_the_greatest() {
        let point = |before, now| Point::between((0, before), (PIECE_NS, now)).memory_peak_bytes;
        assert_eq!(point(totals(0, 10, 10), totals(0, 20, 90)), 90);
        assert_eq!(point(totals(0, 10, 90), totals(0, 20, 90)), 20);
        assert_eq!(point(totals(0, 30, 90), totals(0, 20, 90)), 30);
    }

    #[test]
    fn counters_that_decrease_count_as_unused() {
        // The tenant has overwritten its ledger.
        let point = Point::between((0, totals(9, 9, 9)), (1, totals(0, 0, 0)));
        assert_eq!((point.core_used_ns, point.memory_refused), (0, 0));
        assert!(Past::default().told(7, Totals::default(), u64::MAX, 3).is_empty());
    }
}

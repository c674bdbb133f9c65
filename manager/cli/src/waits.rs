//! Percentiles and bars of the waits for leases.

use aliquot_proto::node::v1::{PartUsage, WaitHistogram};

use crate::quantity::duration_human;

/// Width of the longest bar in characters.
const BAR_WIDTH: u64 = 32;

/// The number of all waits.
pub(crate) fn count(waits: &WaitHistogram) -> u64 {
    waits.counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
}

/// The time that `percent` percent of the waits did not exceed, estimated by assuming that waits are spread evenly
/// within a bucket. `None` without waits.
pub(crate) fn percentile_ns(waits: &WaitHistogram, percent: u64) -> Option<u64> {
    let total = u128::from(count(waits));
    let rank = (total * u128::from(percent)).div_ceil(100).max(1);
    let mut before = 0;
    for (index, &count) in waits.counts.iter().enumerate() {
        let count = u128::from(count);
        if count > 0 && before + count >= rank {
            let (from_ns, to_ns) = bounds_ns(waits, index);
            let into_ns = u128::from(to_ns.saturating_sub(from_ns)) * (rank - before) / count;
            return Some(from_ns.saturating_add(u64::try_from(into_ns).unwrap_or(u64::MAX)));
        }
        before += count;
    }
    None
}

/// The bounds of the waits in bucket `index`.
fn bounds_ns(waits: &WaitHistogram, index: usize) -> (u64, u64) {
    let from_ns = index.checked_sub(1).and_then(|index| waits.bounds_ns.get(index)).copied().unwrap_or(0);
    let to_ns = waits.bounds_ns.get(index).copied().unwrap_or(u64::MAX);
    (from_ns.min(waits.longest_ns), to_ns.min(waits.longest_ns))
}

/// The 99th percentile for a table; `-` without waits.
pub(crate) fn p99(part: &PartUsage) -> String {
    let p99_ns = part.lease_waits.as_ref().and_then(|waits| percentile_ns(waits, 99));
    p99_ns.map_or_else(|| "-".to_owned(), duration_human)
}

/// Number, percentiles and maximum in one line.
pub(crate) fn summary(waits: &WaitHistogram) -> String {
    let percentile = |percent| percentile_ns(waits, percent).map(duration_human).unwrap_or_default();
    match count(waits) {
        0 => "none".to_owned(),
        count => format!(
            "{count}; p50 {}, p90 {}, p99 {}, longest {}",
            percentile(50),
            percentile(90),
            percentile(99),
            duration_human(waits.longest_ns)
        ),
    }
}

/// A line with a bar for each bucket, from the first to the last one that is not empty.
pub(crate) fn bars(waits: &WaitHistogram) -> Vec<String> {
    let used = |count: &u64| *count > 0;
    let (Some(first), Some(last)) = (waits.counts.iter().position(used), waits.counts.iter().rposition(used)) else {
        return Vec::new();
    };
    let most = waits.counts.iter().copied().max().unwrap_or(1);
    let digits = most.to_string().len();
    let line = |index: usize, count: u64| {
        let bound = match waits.bounds_ns.get(index) {
            Some(&bound_ns) => format!("≤ {}", bound(bound_ns)),
            None => format!("> {}", bound(waits.bounds_ns.last().copied().unwrap_or(0))),
        };
        let full = u128::from(count) * u128::from(BAR_WIDTH);
        let bar = "█".repeat(full.div_ceil(u128::from(most)) as usize);
        format!("{bound:>8}  {count:>digits$}  {bar}").trim_end().to_owned()
    };
    (first..=last).map(|index| line(index, waits.counts[index])).collect()
}

/// A bound, without a decimal that is 0.
fn bound(ns: u64) -> String {
    duration_human(ns).replace(".0 ", " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(counts: [u64; 4], longest_ns: u64) -> WaitHistogram {
        WaitHistogram {
            bounds_ns: vec![100_000, 1_000_000, 2_500_000],
            counts: counts.to_vec(),
            total_ns: 0,
            longest_ns,
        }
    }

    #[test]
    fn percentiles_lie_in_their_bucket_and_never_beyond_the_longest() {
        let spread = waits([10, 80, 10, 0], 2_000_000);
        assert_eq!(percentile_ns(&spread, 10), Some(100_000));
        assert_eq!(percentile_ns(&spread, 50), Some(550_000));
        assert_eq!(percentile_ns(&spread, 90), Some(1_000_000));
        assert_eq!(percentile_ns(&spread, 100), Some(2_000_000));
        assert_eq!(percentile_ns(&waits([0, 0, 0, 4], 10_500_000), 50), Some(6_500_000));
        assert_eq!(percentile_ns(&waits([1, 0, 0, 0], 7_000), 99), Some(7_000));
        assert_eq!(percentile_ns(&waits([0; 4], 0), 99), None);
    }

    #[test]
    fn figures_of_any_kind_end_in_a_percentile() {
        let odd = waits([u64::MAX, u64::MAX, 0, u64::MAX], u64::MAX);
        assert!(percentile_ns(&odd, 99).is_some());
        assert!(percentile_ns(&WaitHistogram { counts: vec![1, 2], ..WaitHistogram::default() }, 50).is_some());
        assert_eq!(bars(&odd).len(), 4);
    }

    #[test]
    fn a_picture_has_a_bar_for_each_length() {
        let spread = waits([0, 64, 0, 1], 3_000_000);
        assert_eq!(bars(&spread), [&format!("  ≤ 1 ms  64  {}", "█".repeat(32)), "≤ 2.5 ms   0", "> 2.5 ms   1  █"]);
        assert!(bars(&waits([0; 4], 0)).is_empty());
        assert_eq!(summary(&waits([0; 4], 0)), "none");
        assert_eq!(summary(&spread), "65; p50 564.1 µs, p90 929.7 µs, p99 3.0 ms, longest 3.0 ms");
    }
}

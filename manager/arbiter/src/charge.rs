//! Splits the charge for time in which one or several containers had work on the device.

use crate::container::ContainerId;

/// A container had work on the device from `start_ns` to `end_ns`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) container: ContainerId,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    /// Number of the container's processes with work there. The device gives each process the same time.
    pub(crate) processes: u32,
    /// The work should have ended long ago, and may not be work at all: other containers do not pay less because of it.
    pub(crate) overdue: bool,
}

/// Calls `charge` with each container and the time that it must pay.
///
/// A container pays fully for time in which only it had work. Other time is split by numbers of processes. The sum of
/// all charges is exactly the time in which any container had work; overdue work pays in addition.
pub(crate) fn split(spans: &[Span], mut charge: impl FnMut(ContainerId, u64)) {
    if let [only] = spans {
        return charge(only.container, only.end_ns.saturating_sub(only.start_ns));
    }
    let mut edges: Vec<u64> = spans.iter().flat_map(|span| [span.start_ns, span.end_ns]).collect();
    edges.sort_unstable();
    for (&from, &to) in edges.iter().zip(edges.iter().skip(1)).filter(|(from, to)| from < to) {
        let present = |span: &&Span| span.start_ns <= from && span.end_ns >= to;
        split_evenly(to - from, spans.iter().filter(present).filter(|span| !span.overdue), &mut charge);
        if spans.iter().filter(present).any(|span| span.overdue) {
            split_evenly(to - from, spans.iter().filter(present), &mut |container, ns| {
                if spans.iter().any(|span| span.container == container && span.overdue) {
                    charge(container, ns);
                }
            });
        }
    }
}

/// Splits a stretch of time between the containers that had work throughout it.
fn split_evenly<'a>(
    length_ns: u64,
    present: impl Iterator<Item = &'a Span> + Clone,
    charge: &mut impl FnMut(ContainerId, u64),
) {
    let mut processes: u64 = present.clone().map(|span| u64::from(span.processes.max(1))).sum();
    let mut rest = length_ns;
    for span in present {
        let own = u64::from(span.processes.max(1));
        // Dividing the remaining time among the remaining processes loses nothing to rounding.
        let part = u64::try_from(u128::from(rest) * u128::from(own) / u128::from(processes)).unwrap_or(rest);
        processes -= own;
        rest -= part;
        charge(span.container, part);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    fn charges(spans: &[Span]) -> BTreeMap<u64, u64> {
        let mut charges = BTreeMap::new();
        split(spans, |container, ns| *charges.entry(container.0).or_default() += ns);
        charges
    }

    fn span(container: u64, start_ns: u64, end_ns: u64, processes: u32) -> Span {
        Span { container: ContainerId(container), start_ns, end_ns, processes, overdue: false }
    }

    #[test]
    fn overdue_work_is_charged_and_reduces_no_other_charge() {
        let stuck = Span { overdue: true, ..span(2, 0, 100, 3) };
        assert_eq!(charges(&[span(1, 0, 100, 1), stuck]), BTreeMap::from([(1, 100), (2, 75)]));
        assert_eq!(charges(&[stuck]), BTreeMap::from([(2, 100)]));
    }

    #[test]
    fn time_alone_is_charged_in_full_and_common_time_by_processes() {
        let charges = charges(&[span(1, 0, 100, 1), span(2, 60, 100, 3), span(3, 200, 210, 1)]);
        assert_eq!(charges, BTreeMap::from([(1, 60 + 10), (2, 30), (3, 10)]));
    }

    proptest! {
        #[test]
        fn the_charges_sum_to_the_time_in_use(
            parts in proptest::collection::vec((0_u64..200, 0_u64..200, 0_u32..5), 0..6),
        ) {
            let spans: Vec<Span> = parts
                .iter()
                .enumerate()
                .map(|(id, &(start, length, processes))| span(id as u64, start, start + length, processes))
                .collect();
            let used = (0..400).filter(|&t| spans.iter().any(|span| span.start_ns <= t && t < span.end_ns)).count();
            let charges = charges(&spans);
            prop_assert_eq!(charges.values().sum::<u64>(), used as u64);
            for span in &spans {
                prop_assert!(charges.get(&span.container.0).copied().unwrap_or(0) <= span.end_ns - span.start_ns);
            }
        }
    }
}

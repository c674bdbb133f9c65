//! What managers have reported, and how long ago.

use std::collections::BTreeMap;
use std::time::Duration;

use aliquot_api_server::questions::ContainerName;
use aliquot_proto::reports::v1::{Consumer, NodeReport};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::INTERVAL;

/// What was reported longer ago is not known any more.
const FRESH: Duration = Duration::from_secs(3 * INTERVAL.as_secs());

/// The last report of each node.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<BTreeMap<String, Heard>>);

/// What was heard of a node.
#[derive(Debug, Default)]
struct Heard {
    /// Counts the calls of the node's manager.
    call: u64,
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    at: Instant,
    parts: Vec<PartUse>,
}

/// What a slice uses of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartUse {
    /// The slice, by an id that is never used again.
    pub(crate) slice: String,
    pub(crate) device: String,
    /// The containers that run in the slice.
    pub(crate) consumers: Vec<ContainerName>,
    /// Thousandths of the device's time, in the last seconds.
    pub(crate) core_thousandths: u32,
    /// Device time since the slice was made.
    pub(crate) core_ns: u64,
    pub(crate) memory_bytes: u64,
}

impl Known {
    /// A manager begins a call, and ends the one before. Answers the number of the call.
    pub(super) fn begin(&self, node: &str) -> u64 {
        let mut nodes = self.0.lock();
        let heard = nodes.entry(node.to_owned()).or_default();
        heard.call += 1;
        heard.call
    }

    /// Takes a report, unless the manager has begun another call since.
    pub(super) fn take(&self, node: &str, call: u64, report: NodeReport) -> bool {
        let mut nodes = self.0.lock();
        let Some(heard) = nodes.get_mut(node).filter(|heard| heard.call == call) else { return false };
        heard.last = Some(Last { at: Instant::now(), parts: parts(report) });
        true
    }

    /// How old the last report of each node is, and what its slices use. What is too old is left out.
    pub(crate) fn fresh<T>(&self, mut each: impl FnMut(&str, Duration, &[PartUse]) -> T) -> Vec<T> {
        let nodes = self.0.lock();
        let known = nodes.iter().filter_map(|(node, heard)| {
            let last = heard.last.as_ref()?;
            let age = last.at.elapsed();
            (age <= FRESH).then_some((node, age, last))
        });
        known.map(|(node, age, last)| each(node, age, &last.parts)).collect()
    }
}

/// What a report says of slices.
fn parts(report: NodeReport) -> Vec<PartUse> {
    let mut parts = Vec::new();
    for slice in report.slices {
        let consumer = |of: Consumer| ContainerName { namespace: of.namespace, pod: of.pod, container: of.container };
        let consumers: Vec<ContainerName> = slice.consumers.into_iter().map(consumer).collect();
        parts.extend(slice.parts.into_iter().map(|part| PartUse {
            slice: slice.id.clone(),
            device: part.device_uuid,
            consumers: consumers.clone(),
            core_thousandths: (part.core_used_millipercent.min(100_000) + 50) / 100,
            core_ns: part.core_used_ns,
            memory_bytes: part.memory_used_bytes,
        }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use aliquot_proto::reports::v1::{Part, Slice};

    use super::*;

    fn report(core_used_ns: u64) -> NodeReport {
        let consumer = Consumer { namespace: "team".into(), pod: "a".into(), container: "main".into() };
        let part =
            Part { device_uuid: "GPU-1".into(), core_used_millipercent: 30_050, core_used_ns, memory_used_bytes: 7 };
        let slice = Slice { id: "s".into(), consumers: vec![consumer], parts: vec![part] };
        NodeReport { slices: vec![slice], ..NodeReport::default() }
    }

    fn used(known: &Known) -> Vec<(String, u64)> {
        let of_node = |node: &str, _, parts: &[PartUse]| (node.to_owned(), parts.iter().map(|part| part.core_ns).sum());
        known.fresh(of_node)
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_node_is_as_one_that_never_reports() {
        let known = Known::default();
        let (a, b) = (known.begin("a"), known.begin("b"));
        assert!(known.take("a", a, report(1)) && known.take("b", b, report(2)));
        assert_eq!(used(&known), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        tokio::time::advance(FRESH).await;
        known.take("b", b, report(3));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(used(&known), [("b".to_owned(), 3)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_s_last_call_counts() {
        let known = Known::default();
        let first = known.begin("a");
        assert!(known.take("a", first, report(1)));
        let second = known.begin("a");
        assert!(!known.take("a", first, report(9)));
        assert!(known.take("a", second, report(2)));
        assert!(!known.take("b", 1, report(1)), "it has not begun a call");
        assert_eq!(used(&known), [("a".to_owned(), 2)]);
        let parts = known.fresh(|_, _, parts| parts.to_vec()).remove(0);
        assert_eq!(parts[0].core_thousandths, 301);
        assert_eq!((parts[0].consumers[0].pod.as_str(), parts[0].memory_bytes), ("a", 7));
    }
}

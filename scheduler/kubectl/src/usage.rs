//! The use of parts of devices, from the managers' reports to the scheduler. The managers of nodes without a report are
//! asked directly.

use std::collections::BTreeMap;

use aliquot_api_server::questions::{ContainerName, NodeUsage, UsageAnswer};

use crate::cluster::Cluster;
use crate::{leader, managers};

/// A container, with the device and the slice by which it uses that device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartKey {
    /// The name or id of the slice. Several containers of a pod may share one slice.
    pub(crate) slice: String,
    /// The UUID of the device.
    pub(crate) device: String,
    pub(crate) container: ContainerName,
}

/// The use of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// The used device time, in thousandths of the device.
    pub(crate) core_thousandths: Option<u32>,
    pub(crate) memory_bytes: Option<u64>,
}

/// The use of all parts.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    used: BTreeMap<PartKey, Used>,
    /// The age of each node's report to the scheduler.
    ages_ms: BTreeMap<String, u64>,
    /// The queue of each pod, by its namespace and name.
    queues: BTreeMap<(String, String), String>,
    /// The managers that could not be asked, with the reasons.
    pub(crate) notes: Vec<String>,
}

impl Usage {
    /// The use of a part. `container` is empty for a part of a claim: then all containers of the pod are added up.
    pub(crate) fn of(&self, namespace: &str, pod: &str, container: &str, device: &str) -> Option<Used> {
        let is_it = |key: &PartKey| {
            let of = &key.container;
            let is_container = container.is_empty() || of.container == container;
            // A device of a claim is called as in the resource slices if these cannot be read: its UUID in small letters.
            let is_device = key.device.eq_ignore_ascii_case(device);
            of.namespace == namespace && of.pod == pod && is_container && is_device
        };
        let parts = self.used.iter().filter(|(key, _)| is_it(key));
        // Containers that share a slice report the same usage, so each slice counts once.
        let of_slices: BTreeMap<&str, Used> = parts.map(|(key, used)| (key.slice.as_str(), *used)).collect();
        let sum = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b).or(a).or(b);
        of_slices.into_values().reduce(|a, b| Used {
            core_thousandths: sum(a.core_thousandths.map(u64::from), b.core_thousandths.map(u64::from))
                .and_then(|sum| u32::try_from(sum).ok()),
            memory_bytes: sum(a.memory_bytes, b.memory_bytes),
        })
    }

    /// The age of a node's report; `None`: its manager was asked directly, or does not answer.
    pub(crate) fn age_ms(&self, node: &str) -> Option<u64> {
        self.ages_ms.get(node).copied()
    }

    pub(crate) fn queue(&self, namespace: &str, pod: &str) -> Option<&String> {
        self.queues.get(&(namespace.to_owned(), pod.to_owned()))
    }

    fn heard(answer: UsageAnswer) -> Usage {
        let mut usage = Usage::default();
        for NodeUsage { node, age_ms, parts } in answer.nodes {
            usage.ages_ms.insert(node, age_ms);
            for part in parts {
                let used =
                    Used { core_thousandths: Some(part.core_thousandths), memory_bytes: Some(part.memory_bytes) };
                let key = |container| PartKey { slice: part.slice.clone(), device: part.device.clone(), container };
                usage.used.extend(part.consumers.into_iter().map(|container| (key(container), used)));
            }
        }
        let queues = answer.queues.into_iter();
        usage.queues = queues.map(|of| ((of.namespace, of.pod), of.queue)).collect();
        usage
    }
}

/// The use on the nodes for which `is_asked` is true.
pub(crate) async fn usage(cluster: &Cluster, is_asked: impl Fn(&str) -> bool) -> Usage {
    // A cluster may have managers without Aliquot's scheduler, and the user may have no right to ask the scheduler.
    let answer = leader::ask_once::<UsageAnswer>(cluster, "/v1/usage", None).await;
    let mut usage = answer.map(Usage::heard).unwrap_or_default();
    let heard = &usage.ages_ms;
    let (used, notes) = managers::ask(cluster, |node| is_asked(node) && !heard.contains_key(node)).await;
    usage.used.extend(used);
    usage.notes = notes;
    usage
}

#[cfg(test)]
mod tests {
    use aliquot_api_server::questions::{PartUsage, PodQueue};

    use super::*;

    #[test]
    fn containers_that_share_a_slice_count_once() {
        let container =
            |name: &str| ContainerName { namespace: "team".into(), pod: "a".into(), container: name.into() };
        let part = |slice: &str, consumers: &[&str], core_thousandths| PartUsage {
            slice: slice.into(),
            device: "GPU-1".into(),
            consumers: consumers.iter().map(|name| container(name)).collect(),
            core_thousandths,
            memory_bytes: 1 << 30,
        };
        let parts = vec![part("s", &["main", "side"], 300), part("t", &["third"], 100)];
        let usage = Usage::heard(UsageAnswer {
            nodes: vec![NodeUsage { node: "n".into(), age_ms: 1200, parts }],
            queues: vec![PodQueue { namespace: "team".into(), pod: "a".into(), queue: "vision".into() }],
        });
        let used = |core, gib: u64| Some(Used { core_thousandths: Some(core), memory_bytes: Some(gib << 30) });
        assert_eq!(usage.of("team", "a", "main", "GPU-1"), used(300, 1));
        assert_eq!(usage.of("team", "a", "", "GPU-1"), used(400, 2));
        assert_eq!(usage.of("team", "a", "other", "GPU-1"), None);
        assert_eq!((usage.age_ms("n"), usage.age_ms("m")), (Some(1200), None));
        assert_eq!(usage.queue("team", "a"), Some(&"vision".to_owned()));
    }
}

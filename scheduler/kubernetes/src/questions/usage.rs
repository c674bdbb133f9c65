//! What is used of devices.

use std::time::Duration;

use aliquot_api_server::questions::{NodeUsage, PartUsage, PodQueue, UsageAnswer};

use crate::reports::PartUse;
use crate::serve::Shared;

pub(super) fn answer(shared: &Shared) -> UsageAnswer {
    let part = |part: &PartUse| PartUsage {
        slice: part.slice.clone(),
        device: part.device.clone(),
        consumers: part.consumers.clone(),
        core_thousandths: part.core_thousandths,
        memory_bytes: part.memory_bytes,
    };
    let node = |node: &str, age: Duration, parts: &[PartUse]| NodeUsage {
        node: node.to_owned(),
        age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
        parts: parts.iter().map(part).collect(),
    };
    let of_pod = |(namespace, pod, queue): (&str, &str, String)| PodQueue {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        queue,
    };
    UsageAnswer {
        nodes: shared.reports.fresh(node),
        queues: shared.read(|mirror| mirror.queues_of_holders().map(of_pod).collect()),
    }
}

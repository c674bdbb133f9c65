//! The labels of pods and namespaces that name their queue.

use std::collections::BTreeMap;

/// The label that names the queue.
pub const QUEUE: &str = "aliquot.dev/queue";
/// KAI's label for it.
const KAI_QUEUE: &str = "kai.scheduler/queue";

/// The queue that the labels of a pod or a namespace name. A pod without one is in its namespace's queue.
#[must_use]
pub fn queue_of(labels: &BTreeMap<String, String>) -> Option<&String> {
    labels.get(QUEUE).or_else(|| labels.get(KAI_QUEUE))
}

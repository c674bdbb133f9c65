//! The labels and annotations of pods, of what makes them and of namespaces that name their queue.

use std::collections::BTreeMap;

/// The label that names the queue.
pub const QUEUE: &str = "aliquot.dev/queue";
/// KAI's label for it.
const KAI_QUEUE: &str = "kai.scheduler/queue";
/// Volcano's annotation for it.
const VOLCANO_QUEUE: &str = "scheduling.volcano.sh/queue-name";

/// The queue that an object names. A pod without one is in the queue of its namespace.
#[must_use]
pub fn queue_of<'a>(
    labels: &'a BTreeMap<String, String>,
    annotations: &'a BTreeMap<String, String>,
) -> Option<&'a String> {
    labels.get(QUEUE).or_else(|| labels.get(KAI_QUEUE)).or_else(|| annotations.get(VOLCANO_QUEUE))
}

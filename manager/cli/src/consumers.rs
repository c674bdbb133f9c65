//! The containers of pods that run in a slice, on Kubernetes.

use aliquot_proto::node::v1::{Consumer, SliceUsage};

/// A container: its namespace, pod, and name.
pub(crate) fn name(consumer: &Consumer) -> String {
    format!("{}/{}/{}", consumer.namespace, consumer.pod, consumer.container)
}

/// The containers in a slice, in short; `None` if none is known.
pub(crate) fn summary(slice: &SliceUsage) -> Option<String> {
    match slice.consumers.as_slice() {
        [] => None,
        [only] => Some(name(only)),
        [first, others @ ..] => Some(format!("{} and {} more", name(first), others.len())),
    }
}

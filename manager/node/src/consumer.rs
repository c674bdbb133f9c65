//! The containers that run in a slice.

use std::fmt;

/// A container that runs in a slice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Consumer {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The container's name in the pod.
    pub container: String,
}

impl fmt::Display for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.pod, self.container)
    }
}

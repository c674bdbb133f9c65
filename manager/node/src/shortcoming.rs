//! What a cluster lacks.

/// Why the cluster cannot use all that the node offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortcoming {
    /// What the cluster lacks, and what follows from that.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

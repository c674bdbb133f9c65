//! Reasons that protect placed units from eviction.

/// What keeps a unit from being evicted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Protection {
    /// It may not be evicted at all.
    NonPreemptible,
    /// It has not run long enough yet.
    MinRuntime {
        /// How much longer the first of them is protected, in milliseconds.
        left_ms: u64,
    },
    /// A node has refused to evict one of its claims, which is left alone for a while.
    EvictionRefused {
        /// How much longer, in milliseconds.
        left_ms: u64,
    },
    /// Too few of a disruption budget's claims would be left.
    DisruptionBudget {
        /// The budget.
        name: String,
    },
}

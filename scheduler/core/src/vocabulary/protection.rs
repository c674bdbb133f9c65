//! Reasons that protect placed units from eviction.

/// What keeps a unit from being evicted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Protection {
    /// It may not be evicted at all.
    NonPreemptible,
    /// It has not run long enough yet.
    MinRuntime {
        /// How much longer the first of its members is protected, in milliseconds.
        left_ms: u64,
    },
    /// A node has refused to evict one of its claims, so the claim is left alone for a while.
    EvictionRefused {
        /// How much longer it is left alone, in milliseconds.
        left_ms: u64,
    },
    /// A disruption budget would have too few claims left.
    DisruptionBudget {
        /// The name of the budget.
        name: String,
    },
}

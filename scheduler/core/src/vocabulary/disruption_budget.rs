//! Disruption budgets as they are configured.

/// Says that some claims of a namespace, those that name it, are evicted only as long as enough of them stay placed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DisruptionBudget {
    /// Its name; no two budgets of a namespace share one.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// So many of its claims stay placed.
    pub min_available: u32,
}

//! Disruption budgets as they are configured.

/// Protects the claims of a namespace that name it: they are evicted only as long as enough of them stay placed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DisruptionBudget {
    /// Its name; no two budgets of a namespace share one.
    pub name: String,
    /// The namespace that it belongs to.
    pub namespace: String,
    /// At least this many of its claims stay placed.
    pub min_available: u32,
}

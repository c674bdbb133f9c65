//! Disruption budgets: how many of some claims must be there at any time.

use std::collections::BTreeMap;

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

/// The budgets of a cluster, and how many claims of each are placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budgets {
    budgets: BTreeMap<(String, String), Budget>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    /// `None`: claims name it, but nobody has said yet what it is.
    min_available: Option<u32>,
    placed: u32,
}

impl Budgets {
    pub(crate) fn change(&mut self, budget: DisruptionBudget) {
        self.budgets.entry((budget.namespace, budget.name)).or_default().min_available = Some(budget.min_available);
    }

    /// Forgets a budget; whether there was one.
    pub(crate) fn remove(&mut self, namespace: String, name: String) -> bool {
        let Some(budget) = self.budgets.get_mut(&(namespace, name)) else { return false };
        budget.min_available.take().is_some()
    }

    /// Notes that a claim which names a budget was placed, or is no longer.
    pub(crate) fn note(&mut self, namespace: &str, name: &str, placed: bool) {
        let budget = self.budgets.entry((namespace.to_owned(), name.to_owned())).or_default();
        budget.placed = if placed { budget.placed + 1 } else { budget.placed.saturating_sub(1) };
    }

    /// How many claims of a budget may be evicted now.
    pub(crate) fn spare(&self, namespace: &str, name: &str) -> u32 {
        let budget = self.budgets.get(&(namespace.to_owned(), name.to_owned())).copied().unwrap_or_default();
        budget.min_available.map_or(u32::MAX, |min_available| budget.placed.saturating_sub(min_available))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = DisruptionBudget> + '_ {
        self.budgets.iter().filter_map(|((namespace, name), budget)| {
            Some(DisruptionBudget {
                name: name.clone(),
                namespace: namespace.clone(),
                min_available: budget.min_available?,
            })
        })
    }
}

//! Disruption budgets: how many claims of a budget must be placed at any time.

use std::collections::{BTreeMap, BTreeSet};

use crate::vocabulary::claim::ClaimId;
use crate::vocabulary::disruption_budget::DisruptionBudget;

/// The budgets of a cluster, and which claims of each are placed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budgets {
    /// By namespace and name.
    budgets: BTreeMap<String, BTreeMap<String, Budget>>,
}

#[derive(Clone, Debug, Default)]
struct Budget {
    /// `None`: claims name the budget, but it has not been configured yet.
    min_available: Option<u32>,
    placed: BTreeSet<ClaimId>,
}

impl Budgets {
    pub(crate) fn change(&mut self, budget: DisruptionBudget) {
        self.get_mut(&budget.namespace, &budget.name).min_available = Some(budget.min_available);
    }

    /// Forgets a budget. Returns whether there was one.
    pub(crate) fn remove(&mut self, namespace: &str, name: &str) -> bool {
        let budget = self.budgets.get_mut(namespace).and_then(|budgets| budgets.get_mut(name));
        budget.is_some_and(|budget| budget.min_available.take().is_some())
    }

    /// Notes that a claim that names a budget was placed, or that it is no longer placed.
    pub(crate) fn note(&mut self, namespace: &str, name: &str, claim: ClaimId, placed: bool) {
        let claims = &mut self.get_mut(namespace, name).placed;
        match placed {
            true => claims.insert(claim),
            false => claims.remove(&claim),
        };
    }

    /// How many claims of a budget must be placed, and which are placed; `None` if there is no such budget.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<(u32, impl Iterator<Item = ClaimId> + '_)> {
        let budget = self.budgets.get(namespace)?.get(name)?;
        Some((budget.min_available?, budget.placed.iter().copied()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = DisruptionBudget> + '_ {
        let of_namespace = |(namespace, budgets): (&'_ String, &'_ BTreeMap<String, Budget>)| {
            let budget = |(name, budget): (&String, &Budget)| {
                Some(DisruptionBudget {
                    name: name.clone(),
                    namespace: namespace.clone(),
                    min_available: budget.min_available?,
                })
            };
            budgets.iter().filter_map(budget).collect::<Vec<_>>()
        };
        self.budgets.iter().flat_map(of_namespace)
    }

    fn get_mut(&mut self, namespace: &str, name: &str) -> &mut Budget {
        self.budgets.entry(namespace.to_owned()).or_default().entry(name.to_owned()).or_default()
    }
}

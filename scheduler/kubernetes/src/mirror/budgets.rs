//! PodDisruptionBudgets, and which of our pods each protects, so that no victims are chosen that may not be evicted.
//!
//! The API server has the last word on each eviction. What is known here can be a moment old.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::DisruptionBudget;
use aliquot_scheduler_engine::{ClaimUid, Observation};

use super::{KnownPod, Mirror};
use crate::budget::{BudgetFacts, Standing};
use crate::pod::PodFacts;

/// The namespace and the name of a budget, as the engine knows it.
type Key = (String, String);

/// What is known of budgets, and what the engine was told of them.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    /// By namespace and name.
    known: BTreeMap<String, BTreeMap<String, BudgetFacts>>,
    /// The claims of each budget, as the engine was told.
    protected: BTreeMap<Key, u32>,
    /// How many claims of each budget have to stay, as the engine was told.
    told: BTreeMap<Key, u32>,
    changed: BTreeSet<Key>,
}

impl Budgets {
    /// The budgets of a namespace that are about pods with these labels.
    fn about<'a>(
        &'a self,
        namespace: &str,
        labels: &'a BTreeMap<String, String>,
    ) -> impl Iterator<Item = &'a BudgetFacts> {
        let of_namespace = self.known.get(namespace).into_iter().flat_map(BTreeMap::values);
        of_namespace.filter(|budget| budget.is_about(labels))
    }

    /// What protects a pod: the name of its budget. The API server evicts no pod of several budgets, whatever they
    /// allow. To the engine, such budgets are one, with all their names.
    fn protecting(&self, facts: &PodFacts) -> Option<String> {
        if facts.standing == Standing::Idle {
            return None;
        }
        let about: Vec<&BudgetFacts> = self.about(&facts.namespace, &facts.labels).collect();
        match about.as_slice() {
            [] => None,
            [budget] => {
                let is_given_up = facts.standing == Standing::Unready && budget.gives_up_unready;
                (!is_given_up).then(|| budget.name.clone())
            }
            several => Some(several.iter().map(|budget| budget.name.as_str()).collect::<Vec<_>>().join(", ")),
        }
    }

    fn count(&mut self, namespace: &str, name: &str, is_protected: bool) {
        let key = (namespace.to_owned(), name.to_owned());
        let claims = self.protected.entry(key.clone()).or_default();
        *claims = if is_protected { *claims + 1 } else { claims.saturating_sub(1) };
        if *claims == 0 {
            self.protected.remove(&key);
        }
        self.changed.insert(key);
    }

    /// How many claims of a budget have to stay; `None`: the budget protects none.
    ///
    /// The budget also counts pods that are no claims. As many of its claims may go as it allows:
    /// `min_available = claims − disruptionsAllowed`.
    fn min_available(&self, key: &Key) -> Option<u32> {
        let claims = self.protected.get(key)?;
        let budget = self.known.get(&key.0).and_then(|of_namespace| of_namespace.get(&key.1));
        Some(budget.map_or(u32::MAX, |budget| claims.saturating_sub(budget.disruptions_allowed)))
    }
}

impl Mirror {
    pub(crate) fn budget(&mut self, facts: BudgetFacts) {
        let (namespace, name) = (facts.namespace.clone(), facts.name.clone());
        let before = self.budgets.known.entry(namespace.clone()).or_default().insert(name.clone(), facts.clone());
        if before.is_none_or(|before| before.protects_others_than(&facts)) {
            self.budgets_of_namespace_changed(&namespace);
        }
        self.budgets.changed.insert((namespace, name));
    }

    /// `key`: NAMESPACE/NAME.
    pub(crate) fn budget_gone(&mut self, key: &str) {
        let Some((namespace, name)) = key.split_once('/') else { return };
        let Some(of_namespace) = self.budgets.known.get_mut(namespace) else { return };
        of_namespace.remove(name);
        if of_namespace.is_empty() {
            self.budgets.known.remove(namespace);
        }
        self.budgets_of_namespace_changed(namespace);
    }

    /// NAMESPACE/NAME of each budget.
    pub(crate) fn budget_keys(&self) -> BTreeSet<String> {
        let of_namespace = |(namespace, budgets): (&String, &BTreeMap<String, BudgetFacts>)| {
            budgets.keys().map(|name| format!("{namespace}/{name}")).collect::<Vec<_>>()
        };
        self.budgets.known.iter().flat_map(of_namespace).collect()
    }

    /// The budget that protects a pod from eviction, as the engine is told.
    pub(super) fn budget_of(&self, facts: &PodFacts) -> Option<String> {
        self.budgets.protecting(facts)
    }

    /// Tells the engine which budget protects the claim of a bound pod, if that has changed.
    pub(super) fn tell_budget_of(&mut self, uid: &str) {
        let Some(KnownPod { claim: Some(told), facts, .. }) = self.pods.get_mut(uid) else { return };
        let budget = self.budgets.protecting(facts);
        if told.claim.disruption_budget != budget {
            let before = std::mem::replace(&mut told.claim.disruption_budget, budget.clone());
            let namespace = facts.namespace.clone();
            self.count_in_budget(&namespace, before.as_deref(), false);
            self.count_in_budget(&namespace, budget.as_deref(), true);
            self.told.push(Observation::ClaimBudget(ClaimUid::from(uid), budget));
        }
    }

    /// Notes that the engine was told that a budget protects one more claim, or one less.
    pub(super) fn count_in_budget(&mut self, namespace: &str, budget: Option<&str>, is_protected: bool) {
        budget.into_iter().for_each(|name| self.budgets.count(namespace, name, is_protected));
    }

    /// Tells the engine how many claims of each changed budget have to stay.
    pub(super) fn tell_budgets(&mut self) {
        for key in std::mem::take(&mut self.budgets.changed) {
            let min_available = self.budgets.min_available(&key);
            if self.budgets.told.get(&key).copied() == min_available {
                continue;
            }
            let (namespace, name) = key.clone();
            self.told.push(match min_available {
                Some(min_available) => {
                    self.budgets.told.insert(key, min_available);
                    Observation::Budget(DisruptionBudget { name, namespace, min_available })
                }
                None => {
                    self.budgets.told.remove(&key);
                    Observation::BudgetRemoved(namespace, name)
                }
            });
        }
    }

    fn budgets_of_namespace_changed(&mut self, namespace: &str) {
        let is_concerned = |pod: &KnownPod| pod.claim.is_some() && pod.facts.namespace == namespace;
        let concerned = self.pods.iter().filter(|(_, pod)| is_concerned(pod)).map(|(uid, _)| uid.clone());
        self.changed_pods.extend(concerned);
    }
}

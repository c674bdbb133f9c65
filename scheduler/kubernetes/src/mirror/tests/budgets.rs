//! PodDisruptionBudgets decide which victims are chosen, so that the API server has to refuse no eviction.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{World, typed};
use crate::budget::{BudgetFacts, Standing};
use crate::pod::PodFacts;

impl World {
    /// A budget of the pods with this `app` that allows so many evictions now.
    pub(super) fn budget(&mut self, name: &str, app: &str, allowed: u32) {
        let object = json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 0, "desiredHealthy": 2, "expectedPods": 2},
        });
        self.mirror.budget(BudgetFacts::of(typed(&object)).unwrap());
        self.budgets.insert(name.into(), object);
    }

    fn budget_gone(&mut self, name: &str) {
        self.budgets.remove(name);
        self.mirror.budget_gone(&format!("default/{name}"));
    }

    /// What the API server does before it evicts a pod. Pods with the label `protected` are refused for a reason that
    /// the scheduler does not know.
    pub(super) fn may_be_evicted(&mut self, name: &str) -> bool {
        let pod = &self.pods[name];
        let facts = PodFacts::of(typed(pod), "aliquot").unwrap();
        if facts.labels.get("protected").is_some_and(|text| text == "true") {
            return false;
        }
        let of = |budget: &Value| BudgetFacts::of(typed(budget)).unwrap();
        let about: Vec<BudgetFacts> =
            self.budgets.values().map(of).filter(|budget| budget.is_about(&facts.labels)).collect();
        match (facts.standing, about.as_slice()) {
            (Standing::Idle, _) | (_, []) => true,
            (Standing::Unready, [budget]) if budget.gives_up_unready => true,
            (_, [budget]) if budget.disruptions_allowed > 0 => {
                let object = self.budgets.get_mut(&budget.name).unwrap();
                object["status"]["disruptionsAllowed"] = (budget.disruptions_allowed - 1).into();
                let changed = typed(object);
                self.mirror.budget(BudgetFacts::of(changed).unwrap());
                true
            }
            _ => false,
        }
    }

    /// The claims of each budget that have to stay, as the pods and the budgets say.
    pub(super) fn stay_by_budget(&self) -> BTreeMap<String, u32> {
        let mut stay = BTreeMap::new();
        for (name, budget) in &self.budgets {
            let budget = BudgetFacts::of(typed(budget)).unwrap();
            let is_protected = |pod: &&Value| {
                let facts = PodFacts::of(typed(pod), "aliquot").unwrap();
                let is_ours = facts.node.is_some() && facts.generation.is_some() && !facts.is_leaving;
                is_ours && facts.standing == Standing::Ready && budget.is_about(&facts.labels)
            };
            let claims = u32::try_from(self.pods.values().filter(is_protected).count()).unwrap();
            if claims > 0 {
                stay.insert(name.clone(), claims.saturating_sub(budget.disruptions_allowed));
            }
        }
        stay
    }

    /// The same as the engine knows it.
    pub(super) fn stay_as_told(&self) -> BTreeMap<String, u32> {
        let budgets = self.view.as_ref().unwrap().cluster().dump().budgets;
        budgets.into_iter().map(|budget| (budget.name, budget.min_available)).collect()
    }

    /// Kubelet says that a pod runs, and whether it is ready.
    pub(super) fn runs(&mut self, name: &str, is_ready: bool) {
        let condition = json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }});
        self.pods.get_mut(name).unwrap()["status"] = json!({"phase": "Running", "conditions": [condition]});
        self.show(name);
    }

    /// A pod that takes a whole GPU.
    fn whole(&mut self, name: &str, app: &str, priority: i32) {
        self.pod(name, 100, with(app, priority));
    }

    fn evicted(&self) -> Vec<&str> {
        assert!(self.log.iter().all(|line| !line.ends_with(" refused")), "{:#?}", self.log);
        self.log.iter().filter_map(|line| line.strip_suffix(" evicted")).collect()
    }
}

fn with(app: &str, priority: i32) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"priority": priority}})
}

/// Two GPUs with a pod on each, `a` and `b`, both ready.
fn two() -> World {
    let mut world = World::new();
    world.node("n", 2);
    world.whole("a", "a", 40);
    world.whole("b", "b", 50);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.runs("a", true);
    world.runs("b", true);
    world.reconcile();
    world
}

#[test]
fn a_victim_without_budget_is_chosen_before_a_protected_one() {
    let mut world = two();
    world.budget("of-a", "a", 0);
    world.whole("urgent", "urgent", 90);
    world.reconcile();
    assert_eq!(world.evicted(), ["b"], "a has the lower priority, but its budget allows nothing");
    assert_eq!(world.names_of_bound(), ["a", "urgent"]);
}

#[test]
fn a_pod_waits_until_a_budget_allows() {
    let mut world = two();
    world.budget("of-a", "a", 0);
    world.budget("of-b", "b", 0);
    world.whole("urgent", "urgent", 90);
    world.reconcile();
    assert!(world.evicted().is_empty(), "{:#?}", world.log);
    world.budget("of-b", "b", 1);
    world.reconcile();
    assert_eq!(world.evicted(), ["b"]);
    assert_eq!(world.names_of_bound(), ["a", "urgent"]);
}

#[test]
fn two_victims_of_a_budget_that_allows_one_both_stay() {
    let mut world = World::new();
    world.node("n", 2);
    world.whole("a-0", "a", 40);
    world.whole("a-1", "a", 40);
    world.reconcile();
    world.runs("a-0", true);
    world.runs("a-1", true);
    world.budget("of-a", "a", 1);
    let limits = json!({"aliquot.dev/gpu-core": "200"});
    let both = json!([{"name": "main", "resources": {"limits": limits, "requests": {"cpu": "1"}}}]);
    world.pod("both", 0, json!({"spec": {"priority": 90, "containers": both}}));
    world.reconcile();
    assert!(world.evicted().is_empty(), "one device of two helps nobody: {:#?}", world.log);
    world.whole("one", "urgent", 90);
    world.delete("both");
    world.reconcile();
    assert_eq!(world.evicted().len(), 1);
}

#[test]
fn a_pod_of_two_budgets_is_never_evicted() {
    let mut world = two();
    for name in ["first", "second"] {
        world.budget(name, "a", 5);
    }
    world.budget("of-b", "b", 0);
    world.whole("urgent", "urgent", 90);
    world.reconcile();
    assert!(world.evicted().is_empty(), "the API server refuses it: {:#?}", world.log);
    world.budget_gone("second");
    world.reconcile();
    assert_eq!(world.evicted(), ["a"]);
}

#[test]
fn a_budget_gives_up_pods_that_are_not_ready() {
    let mut world = two();
    world.budget("of-a", "a", 0);
    world.budget("of-b", "b", 0);
    world.runs("b", false);
    world.whole("urgent", "urgent", 90);
    world.reconcile();
    assert!(world.evicted().is_empty(), "too few pods of the budget are healthy: {:#?}", world.log);
    world.budgets.get_mut("of-b").unwrap()["spec"]["unhealthyPodEvictionPolicy"] = "AlwaysAllow".into();
    let changed = typed(&world.budgets["of-b"]);
    world.mirror.budget(BudgetFacts::of(changed).unwrap());
    world.reconcile();
    assert_eq!(world.evicted(), ["b"]);
}

#[test]
fn a_new_leader_knows_the_budgets() {
    let mut world = two();
    world.budget("of-a", "a", 0);
    world.budget("of-b", "b", 0);
    world.reconcile();
    world.change_leader();
    world.whole("urgent", "urgent", 90);
    world.reconcile();
    assert!(world.evicted().is_empty(), "{:#?}", world.log);
    assert_eq!(world.stay_as_told(), BTreeMap::from([("of-a".into(), 1), ("of-b".into(), 1)]));
    // A pod that does not start again leaves its budget.
    world.delete("b");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "urgent"]);
    assert_eq!(world.stay_as_told(), BTreeMap::from([("of-a".into(), 1)]));
}

//! What a PodDisruptionBudget says, and what it means for a pod.
//!
//! The rules are those of the API server for evictions: `canIgnorePDB` and `createWithPDB` in
//! `pkg/registry/core/pod/storage/eviction.go` of Kubernetes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::peers;

/// The policy of a budget by which pods that are not ready may always be evicted.
const ALWAYS_ALLOW: &str = "AlwaysAllow";

/// What is known of a PodDisruptionBudget.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BudgetFacts {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Which pods it is about. `None`: none.
    selector: Option<LabelSelector>,
    /// How many of its pods may be evicted now.
    pub(crate) disruptions_allowed: u32,
    /// It does not protect pods that are not ready.
    pub(crate) gives_up_unready: bool,
}

/// How far a pod has come, as budgets see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// None of its containers has started, or all have ended. No budget protects it.
    Idle,
    Unready,
    Ready,
}

impl BudgetFacts {
    /// What is known of a budget; `None` if it has no name.
    pub(crate) fn of(budget: PodDisruptionBudget) -> Option<BudgetFacts> {
        let PodDisruptionBudget { metadata, spec, status } = budget;
        let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
        // What its controller has not looked at yet allows nothing.
        let is_current = status.observed_generation.unwrap_or(0) >= metadata.generation.unwrap_or(0);
        let [allowed, healthy, desired] =
            [status.disruptions_allowed, status.current_healthy, status.desired_healthy].map(Option::unwrap_or_default);
        let is_healthy = desired > 0 && healthy >= desired;
        Some(BudgetFacts {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name?,
            selector: spec.selector,
            disruptions_allowed: u32::try_from(allowed).ok().filter(|_| is_current).unwrap_or(0),
            gives_up_unready: spec.unhealthy_pod_eviction_policy.as_deref() == Some(ALWAYS_ALLOW) || is_healthy,
        })
    }

    pub(crate) fn is_about(&self, labels: &BTreeMap<String, String>) -> bool {
        peers::selects(self.selector.as_ref(), labels)
    }

    /// Whether the two differ in which pods they protect.
    pub(crate) fn protects_others_than(&self, other: &BudgetFacts) -> bool {
        self.selector != other.selector || self.gives_up_unready != other.gives_up_unready
    }
}

impl Standing {
    pub(crate) fn of(status: &PodStatus) -> Standing {
        if ["Pending", "Succeeded", "Failed"].contains(&status.phase.as_deref().unwrap_or("Pending")) {
            return Standing::Idle;
        }
        let is_ready = |of: &PodCondition| of.type_ == "Ready" && of.status == "True";
        if status.conditions.iter().flatten().any(is_ready) { Standing::Ready } else { Standing::Unready }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn budget(spec: Value, status: Value) -> BudgetFacts {
        let object = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"namespace": "team", "name": "b", "generation": 2}, "spec": spec, "status": status,
        });
        BudgetFacts::of(serde_json::from_value(object).unwrap()).unwrap()
    }

    fn status(allowed: i32, current: i32, desired: i32, observed: i64) -> Value {
        json!({
            "disruptionsAllowed": allowed, "currentHealthy": current, "desiredHealthy": desired, "expectedPods": 3,
            "observedGeneration": observed,
        })
    }

    #[test]
    fn a_status_of_an_older_budget_allows_nothing() {
        assert_eq!(budget(json!({}), status(3, 3, 0, 1)).disruptions_allowed, 0);
        assert_eq!(budget(json!({}), status(3, 3, 0, 2)).disruptions_allowed, 3);
        assert_eq!(budget(json!({}), status(-1, 3, 0, 2)).disruptions_allowed, 0);
        assert_eq!(budget(json!({}), json!(null)).disruptions_allowed, 0);
    }

    #[test]
    fn a_budget_gives_up_unready_pods_by_policy_or_health() {
        let gives_up = |policy: Value, current, desired| {
            budget(json!({"unhealthyPodEvictionPolicy": policy}), status(0, current, desired, 2)).gives_up_unready
        };
        assert!(gives_up(json!("AlwaysAllow"), 0, 3));
        assert!(gives_up(json!("IfHealthyBudget"), 3, 3));
        assert!(gives_up(json!(null), 3, 3));
        assert!(!gives_up(json!(null), 2, 3));
        assert!(!gives_up(json!(null), 0, 0), "a budget that counts no pod yet protects all");
    }

    #[test]
    fn a_budget_without_a_selector_is_about_no_pod() {
        let labels = BTreeMap::from([("app".to_owned(), "a".to_owned())]);
        let is_about = |selector: Value| budget(json!({"selector": selector}), json!(null)).is_about(&labels);
        assert!(is_about(json!({})) && is_about(json!({"matchLabels": {"app": "a"}})));
        assert!(!is_about(json!(null)) && !is_about(json!({"matchLabels": {"app": "b"}})));
    }

    #[test]
    fn only_pods_that_run_stand_in_a_budget() {
        let of = |status: Value| Standing::of(&serde_json::from_value(status).unwrap());
        assert_eq!(of(json!({})), Standing::Idle);
        for phase in ["Pending", "Succeeded", "Failed"] {
            let ready = json!([{"type": "Ready", "status": "True"}]);
            assert_eq!(of(json!({"phase": phase, "conditions": ready})), Standing::Idle);
        }
        for (is_ready, standing) in [("True", Standing::Ready), ("False", Standing::Unready)] {
            let ready = json!([{"type": "Ready", "status": is_ready}]);
            assert_eq!(of(json!({"phase": "Running", "conditions": ready})), standing);
        }
        assert_eq!(of(json!({"phase": "Unknown"})), Standing::Unready);
    }
}

//! The operations of schedulers on pods.

use serde_json::{Value, json};

use super::objects::Objects;
use super::operations::{self, Target};
use super::resource::BUDGETS;
use super::selector::matches;
use super::status::Failure;

/// Binds a pod to a node. Labels and annotations of the binding are added to the pod in the same write.
pub(super) fn bind(objects: &Objects, target: Target<'_>, binding: &Value) -> Result<(), Failure> {
    let node = &binding["target"]["name"];
    if binding["target"]["kind"] != "Node" || node.as_str().is_none_or(str::is_empty) {
        return Err(Failure::invalid("target", "must name a Node"));
    }
    let mut objects = objects.lock();
    let mut pod = target.live(&objects)?.clone();
    operations::preconditions(&pod, &binding["metadata"])?;
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return Err(Failure::conflict(format!("pod {} is being deleted, cannot be assigned to a host", target.name)));
    }
    if let Some(bound) = pod["spec"]["nodeName"].as_str() {
        return Err(Failure::conflict(format!("pod {} is already assigned to node {bound:?}", target.name)));
    }
    if pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return Err(Failure::conflict(format!("pod {} has non-empty .spec.schedulingGates", target.name)));
    }
    for field in ["labels", "annotations"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            pod["metadata"][field][key] = value.clone();
        }
    }
    pod["spec"]["nodeName"] = node.clone();
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": super::now()});
    pod["status"]["conditions"] = operations::with_conditions(&pod["status"]["conditions"], &[scheduled]);
    objects.put(target.key(), pod);
    Ok(())
}

/// Deletes a pod, unless a disruption budget forbids it.
pub(super) fn evict(objects: &Objects, target: Target<'_>, eviction: &Value) -> Result<(), Failure> {
    let options = &eviction["deleteOptions"];
    let mut objects = objects.lock();
    let pod = target.live(&objects)?.clone();
    operations::preconditions(&pod, &options["preconditions"])?;
    // The eviction of a pod that does not run, or is leaving already, disturbs nothing. A pod without a phase is
    // pending.
    let is_counted = !["Pending", "Succeeded", "Failed"]
        .contains(&pod["status"]["phase"].as_str().unwrap_or("Pending"))
        && !pod["metadata"]["deletionTimestamp"].is_string();
    let budgets = objects.list(&BUDGETS, Some(target.namespace)).map(|(_, budget)| Value::clone(budget));
    let budgets: Vec<Value> = budgets.filter(|budget| is_counted && selects(budget, &pod)).collect();
    match budgets.as_slice() {
        [] => {}
        [budget] if !is_ready(&pod) && permits_unhealthy(budget) => {}
        [budget] => {
            let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or(0);
            if allowed <= 0 {
                return Err(Failure::too_many_requests(
                    "Cannot evict pod as it would violate the pod's disruption budget.",
                ));
            }
            let mut budget = budget.clone();
            budget["status"]["disruptionsAllowed"] = (allowed - 1).into();
            let name = budget["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let key = Target { resource: &BUDGETS, name: &name, ..target }.key();
            objects.put(key, budget);
        }
        _ => {
            let message =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Failure::internal(message));
        }
    }
    operations::delete_locked(&mut objects, target, options).map(drop)
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a pod that is not ready may be evicted in any case, because the budget counts only ready pods.
fn permits_unhealthy(budget: &Value) -> bool {
    let number = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || number("desiredHealthy") > 0 && number("currentHealthy") >= number("desiredHealthy")
}

/// Whether a budget is about a pod. A budget without a selector is about no pod, one with an empty selector about all.
fn selects(budget: &Value, pod: &Value) -> bool {
    let selector = &budget["spec"]["selector"];
    selector.is_object() && matches(selector, &pod["metadata"]["labels"])
}

//! KAI's queues, which count beside our own while the API server has their kind. Nothing is written to them.
//!
//! The fields are those of ours, and so are their units. But what is not given is 0 here: no quota, nothing beyond it, and
//! no share of what is left over. A queue without a priority has 100.

use serde::Deserialize;
use serde_json::Value;

use crate::queue::{QueueDefinition, QueueResource, QueueResources};

/// The priority of a queue that has none.
const PRIORITY: i64 = 100;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    parent_queue: Option<String>,
    priority: Option<i64>,
    preempt_min_runtime: Option<String>,
    reclaim_min_runtime: Option<String>,
    resources: Option<Resources>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resources {
    gpu: Option<Amounts>,
    cpu: Option<Amounts>,
    memory: Option<Amounts>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Amounts {
    quota: f64,
    limit: f64,
    over_quota_weight: f64,
}

/// The definition of a queue, from the data of KAI's object.
///
/// # Errors
/// A field has a type that KAI's kind does not have.
pub(crate) fn definition(data: &Value) -> Result<QueueDefinition, String> {
    let spec: Option<Spec> =
        Deserialize::deserialize(&data["spec"]).map_err(|error: serde_json::Error| error.to_string())?;
    let Spec { parent_queue, priority, preempt_min_runtime, reclaim_min_runtime, resources } = spec.unwrap_or_default();
    let Resources { gpu, cpu, memory } = resources.unwrap_or_default();
    let priority = priority.unwrap_or(PRIORITY);
    let of = |amounts: Option<Amounts>| {
        let Amounts { quota, limit, over_quota_weight } = amounts.unwrap_or_default();
        Some(QueueResource { quota, limit, over_quota_weight, priority: None })
    };
    Ok(QueueDefinition {
        parent_queue,
        priority: i32::try_from(priority).unwrap_or(if priority < 0 { i32::MIN } else { i32::MAX }),
        preempt_min_runtime,
        reclaim_min_runtime,
        resources: QueueResources { gpu: of(gpu), cpu: of(cpu), memory: of(memory) },
        ..QueueDefinition::default()
    })
}

#[cfg(test)]
mod tests {
    use aliquot_scheduler_core::{Allowance, Resource};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_queue_of_kai_leaves_out_is_nothing() {
        let gpu = json!({"quota": 2.5, "limit": -1, "overQuotaWeight": 2});
        let of_cpu = json!({"quota": 4000});
        let data = json!({"spec": {
            "displayName": "Vision", "parentQueue": "research", "preemptMinRuntime": "1h0m0s",
            "resources": {"gpu": gpu, "cpu": of_cpu},
        }});
        let spec = definition(&data).unwrap().spec("vision");
        assert_eq!((spec.parent.as_deref(), spec.priority), (Some("research"), 100));
        assert_eq!((spec.preempt_min_runtime_ms, spec.reclaim_min_runtime_ms), (Some(3_600_000), None));
        let allowance = |quota, limit, weight| Allowance { quota: Some(quota), limit, weight, priority: None };
        assert_eq!(spec.allowances.get(&Resource::DeviceCore), Some(&allowance(2500, None, 2000)));
        assert_eq!(spec.allowances.get(&Resource::Cpu), Some(&allowance(4000, Some(0), 0)));
        assert_eq!(spec.allowances.get(&Resource::Memory), Some(&allowance(0, Some(0), 0)));
        let first = definition(&json!({"spec": {"priority": 7, "parentQueue": ""}})).unwrap().spec("first");
        assert_eq!((first.parent, first.priority), (None, 7));
        for (found, priority) in [(3_000_000_000_i64, i32::MAX), (-3_000_000_000, i32::MIN)] {
            assert_eq!(definition(&json!({"spec": {"priority": found}})).unwrap().spec("q").priority, priority);
        }
    }

    #[test]
    fn what_is_no_queue_of_kai_is_an_error() {
        assert!(definition(&json!({"spec": {"priority": "high"}})).is_err());
        assert_eq!(definition(&json!({})).unwrap().spec("q").priority, 100);
    }
}

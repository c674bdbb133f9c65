//! Queues, as objects of the cluster.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Allowance, QueueSpec, Resource};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::condition::Condition;

/// The specification of a queue. Its fields are those of KAI's queues: a manifest for KAI needs only another
/// `apiVersion`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "Queue",
    doc = "A queue of pods. Queues share the resources of a cluster.",
    status = "QueueStatus",
    printcolumn = r#"{"name":"Parent","type":"string","jsonPath":".spec.parentQueue"}"#,
    printcolumn = r#"{"name":"Quota","type":"number","jsonPath":".spec.resources.gpu.quota"}"#,
    printcolumn = r#"{"name":"Limit","type":"number","jsonPath":".spec.resources.gpu.limit"}"#,
    printcolumn = r#"{"name":"Fair share","type":"number","jsonPath":".status.gpu.fairShare"}"#,
    printcolumn = r#"{"name":"Held","type":"number","jsonPath":".status.gpu.held"}"#,
    printcolumn = r#"{"name":"Waiting","type":"integer","jsonPath":".status.waiting"}"#,
    printcolumn = r#"{"name":"Valid","type":"string","jsonPath":".status.conditions[?(@.type==\"Valid\")].status"}"#,
    printcolumn = r#"{"name":"Display name","type":"string","jsonPath":".spec.displayName","priority":1}"#,
    printcolumn = r#"{"name":"Waits because","type":"string","jsonPath":".status.conditions[?(@.type==\"Waiting\")].message","priority":1}"#
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.parentQueue) == has(oldSelf.parentQueue)",
    "message": "the parent of a queue cannot be changed; create a new queue"
}]))]
pub struct QueueDefinition {
    /// The queue's name for people. `kubectl get queues.aliquot.dev -o wide` shows it; the scheduler does not use it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The parent queue; it cannot be changed. Only queues without child queues can have pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253), extend("x-kubernetes-validations" = [
        {"rule": "self == oldSelf", "message": "the parent of a queue cannot be changed; create a new queue"}
    ]))]
    pub parent_queue: Option<String>,
    /// Queues of higher priority are the first to get resources beyond their quotas.
    pub priority: i32,
    /// The minimum run time of a pod before a pod of the same queue may preempt it, for example `10m` or `1h30m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^([0-9]+(ms|s|m|h))+$"))]
    pub preempt_min_runtime: Option<String>,
    /// The minimum run time of a pod before another queue may reclaim its resources.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^([0-9]+(ms|s|m|h))+$"))]
    pub reclaim_min_runtime: Option<String>,
    /// Quota, limit and weight for each resource. A resource that is not listed has quota 0 and no limit.
    pub resources: QueueResources,
}

/// The resources that queues share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct QueueResources {
    /// GPUs: 0.5 is half of one GPU's time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<QueueResource>,
    /// CPU, in thousandths of a core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<QueueResource>,
    /// Memory of nodes, in megabytes (1 000 000 bytes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<QueueResource>,
}

/// Quota, limit and weight of a queue for one resource.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.quota >= 0.0 || self.quota == -1.0", "message": "quota must be at least 0, or -1 for the whole cluster"},
    {"rule": "self.limit >= 0.0 || self.limit == -1.0", "message": "limit must be at least 0, or -1 for no limit"}
]))]
pub struct QueueResource {
    /// The guaranteed amount; -1: the whole cluster.
    #[schemars(range(min = -1.0))]
    pub quota: f64,
    /// The maximum amount; -1: no limit.
    #[schemars(range(min = -1.0))]
    pub limit: f64,
    /// The weight of the queue when resources beyond the quotas are divided.
    #[schemars(range(min = 0.0))]
    pub over_quota_weight: f64,
    /// The priority of the queue when resources beyond the quotas are divided, instead of that of the whole queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

impl Default for QueueResource {
    fn default() -> QueueResource {
        QueueResource { quota: 0.0, limit: -1.0, over_quota_weight: 1.0, priority: None }
    }
}

/// The scheduler's report about a queue, updated every few seconds at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStatus {
    /// The generation of the queue to which this report belongs.
    pub observed_generation: i64,
    /// GPUs of the queue and of the queues below it.
    pub gpu: QueueShare,
    /// CPU of the queue and of the queues below it, in thousandths of a core; only if the queue has a quota or a limit of
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<QueueShare>,
    /// Memory of the queue and of the queues below it, in megabytes (1 000 000 bytes); only if the queue has a quota or a
    /// limit of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<QueueShare>,
    /// The number of bound pods of the queue and of the queues below it.
    pub running: i32,
    /// The number of waiting pods and gangs of the queue and of the queues below it.
    pub waiting: i32,
    /// `Valid`: whether the scheduler uses the specification as it is. `Waiting`: whether pods wait, and why the first
    /// of them does.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A queue's amounts of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueShare {
    /// The present fair share.
    pub fair_share: f64,
    /// The amount that is allocated to its pods.
    pub held: f64,
    /// The amount that its waiting pods request.
    pub pending: f64,
}

/// Why a specification is not used as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// In one word.
    pub(crate) reason: &'static str,
    /// In a sentence.
    pub(crate) text: String,
}

/// Weights are kept in thousandths, so that 0.5 is not 0.
const WEIGHT_UNIT: f64 = 1000.0;

impl QueueDefinition {
    /// The fault of the first number below 0 that is not -1: no other number below 0 has a meaning.
    pub(crate) fn number_fault(&self) -> Option<Fault> {
        let QueueResources { gpu, cpu, memory } = &self.resources;
        let named = [("gpu", gpu), ("cpu", cpu), ("memory", memory)].into_iter();
        let numbers = named.flat_map(|(name, of)| {
            of.iter().flat_map(move |of| [(name, "quota", of.quota), (name, "limit", of.limit)])
        });
        let (name, field, number) = numbers.into_iter().find(|(.., number)| *number < 0.0 && *number != -1.0)?;
        let text = format!("{name}.{field} is {number}; give at least 0, or -1 for all that there is");
        Some(Fault { reason: "NegativeNumber", text })
    }

    /// The queue in the words of the books.
    pub(crate) fn spec(&self, name: &str) -> QueueSpec {
        let QueueResources { gpu, cpu, memory } = &self.resources;
        let all =
            [(Resource::DeviceCore, gpu, 1000.0), (Resource::Cpu, cpu, 1.0), (Resource::Memory, memory, 1_000_000.0)];
        let allowance = |of: &QueueResource, unit: f64| Allowance {
            quota: amount(of.quota, unit),
            limit: amount(of.limit, unit),
            weight: amount(of.over_quota_weight, WEIGHT_UNIT).unwrap_or(0),
            priority: of.priority,
        };
        let of_each = all.into_iter().map(|(resource, of, unit)| (resource, allowance(&of.unwrap_or_default(), unit)));
        QueueSpec {
            name: name.to_owned(),
            parent: self.parent_queue.clone().filter(|parent| !parent.is_empty()),
            priority: self.priority,
            allowances: of_each.collect::<BTreeMap<Resource, Allowance>>(),
            preempt_min_runtime_ms: self.preempt_min_runtime.as_deref().and_then(milliseconds),
            reclaim_min_runtime_ms: self.reclaim_min_runtime.as_deref().and_then(milliseconds),
        }
    }
}

/// A duration as the API server lets it through: whole numbers, each with its unit, in any order. One that is too long for
/// the type is the longest. Objects of other groups also have durations such as `1.5h`.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    let of_fractions = || u64::try_from(text.parse::<jiff::SignedDuration>().ok()?.as_millis()).ok();
    sum_of_parts(text).or_else(of_fractions)
}

fn sum_of_parts(text: &str) -> Option<u64> {
    let (mut sum_ms, mut rest) = (0_u64, text);
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|of: char| !of.is_ascii_digit())?);
        let (unit, next) = behind.split_at(behind.find(|of: char| of.is_ascii_digit()).unwrap_or(behind.len()));
        let unit_ms = match unit {
            _ if number.is_empty() => return None,
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let number: u64 = number.parse().unwrap_or(u64::MAX);
        sum_ms = sum_ms.saturating_add(number.saturating_mul(unit_ms));
        rest = next;
    }
    (!text.is_empty()).then_some(sum_ms)
}

/// This number of units; `None`: no limit. The conversion from `f64` stays within what `u64` can hold.
fn amount(number: f64, unit: f64) -> Option<u64> {
    (number >= 0.0).then(|| (number * unit).round() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_queue_in_the_words_of_kai_is_read() {
        let definition: QueueDefinition = serde_json::from_value(json!({
            "parentQueue": "research",
            "priority": 3,
            "displayName": "Vision",
            "preemptMinRuntime": "1h30m",
            "reclaimMinRuntime": "500ms",
            "resources": {
                "gpu": {"quota": 2.5, "limit": -1, "overQuotaWeight": 0.5, "priority": 7},
                "cpu": {"quota": -1, "limit": 64000},
                "memory": {"quota": 1, "limit": 2, "overQuotaWeight": 0},
            },
        }))
        .unwrap();
        let spec = definition.spec("vision");
        assert_eq!((spec.name.as_str(), spec.parent.as_deref(), spec.priority), ("vision", Some("research"), 3));
        let runtimes = (spec.preempt_min_runtime_ms, spec.reclaim_min_runtime_ms);
        assert_eq!(runtimes, (Some(5_400_000), Some(500)));
        let allowance = |quota, limit, weight| Allowance { quota, limit, weight, priority: None };
        let expected = BTreeMap::from([
            (Resource::DeviceCore, Allowance { priority: Some(7), ..allowance(Some(2500), None, 500) }),
            (Resource::Cpu, allowance(None, Some(64_000), 1000)),
            (Resource::Memory, allowance(Some(1_000_000), Some(2_000_000), 0)),
        ]);
        assert_eq!(spec.allowances, expected);
        // What is not named has the weight of what is.
        let unnamed = QueueDefinition::default().spec("default");
        assert_eq!(unnamed.allowances.get(&Resource::Cpu), Some(&allowance(Some(0), None, 1000)));
    }

    #[test]
    fn durations_add_up_in_any_order() {
        for (text, expected) in [
            ("1h30m", Some(5_400_000)),
            ("30m1h", Some(5_400_000)),
            ("5m5m", Some(600_000)),
            ("1ms1s", Some(1001)),
            ("0s", Some(0)),
            ("9999999999999999999999h", Some(u64::MAX)),
            ("1.5h", Some(5_400_000)),
            ("-1s", None),
            ("5", None),
            ("h", None),
            ("", None),
        ] {
            assert_eq!(milliseconds(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_without_sense_do_not_overflow() {
        assert_eq!(amount(f64::NAN, 1000.0), None);
        assert_eq!(amount(f64::INFINITY, 1000.0), Some(u64::MAX));
        assert_eq!(amount(1e300, 1000.0), Some(u64::MAX));
    }
}

//! Scheduling policies, as objects of the cluster.

use aliquot_scheduler_core::{Alignment, GroupPlacement, PlacementRules, PlacementStrategy};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::queue::milliseconds;

/// Rules for the placement of pods. A pod or its namespace names the policy by the label
/// `aliquot.dev/scheduling-policy`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "SchedulingPolicy",
    plural = "schedulingpolicies",
    doc = "Rules for the placement of the pods that name it by the label aliquot.dev/scheduling-policy.",
    printcolumn = r#"{"name":"Strategy","type":"string","jsonPath":".spec.topologyPolicy.strategy"}"#,
    printcolumn = r#"{"name":"Memory max %","type":"integer","jsonPath":".spec.memoryPolicy.usedPercentMax"}"#,
    printcolumn = r#"{"name":"Enforcement","type":"string","jsonPath":".spec.enforcement"}"#,
    printcolumn = r#"{"name":"GPUs per node","type":"integer","jsonPath":".spec.multiGPUPolicy.maxGPUsPerNode"}"#,
    printcolumn = r#"{"name":"Grace period","type":"string","jsonPath":".spec.preemption.gracePeriod"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingPolicyDefinition {
    /// The distribution of a gang's pods over nodes.
    pub topology_policy: TopologyPolicy,
    /// The limit on the allocated memory of a GPU.
    pub memory_policy: MemoryPolicy,
    /// The connection between the GPUs of a pod, and the number of GPUs of one node that a gang may have.
    #[serde(rename = "multiGPUPolicy")]
    pub multi_gpu_policy: MultiGpuPolicy,
    /// The weakest accepted enforcement of the parts of a GPU, as the node's manager reports it. On a node without
    /// reports, a pod whose policy asks for more than `Any` does not run.
    pub enforcement: Enforcement,
    /// The times before pods are evicted for other pods.
    pub preemption: PreemptionPolicy,
}

/// The enforcement of the parts of a GPU, the strictest last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// Any enforcement, also an unknown one.
    #[default]
    Any,
    /// By leases of the GPU's time: each pod gets its requested share. On GPUs that are shared by NVIDIA's
    /// multi-process service (MPS), only limits hold.
    Shares,
    /// By the GPU itself: the part is a MIG instance.
    Hardware,
}

/// The distribution of a gang's pods over nodes. Settings in the gang's own object take precedence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyPolicy {
    /// The strategy of this distribution.
    pub strategy: TopologyStrategy,
    /// A node label. All pods run on nodes with the same value of this label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_level: Option<String>,
    /// A node label. If possible, all pods run on nodes with the same value of this label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_level: Option<String>,
}

/// The strategies for distributing the pods of a gang over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TopologyStrategy {
    /// Each pod runs on the node where it fits best.
    #[default]
    BestFit,
    /// If a node can take another pod, no other node has two pods more than this node.
    SpreadEvenly,
    /// All pods run on one node.
    SingleNode,
}

/// The limit on the allocated memory of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryPolicy {
    /// The maximum allocated part of a GPU's memory, in percent, including the pod's own part. Memory that is in use
    /// without an allocation counts too, where the node's manager reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub used_percent_max: Option<i32>,
}

/// The connection between the GPUs of a pod, and the number of GPUs of one node that a gang may have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MultiGpuPolicy {
    /// If possible on any node, the GPUs of a pod are connected by NVLink.
    #[serde(rename = "preferNVLink")]
    pub prefer_nvlink: bool,
    /// A pod runs only with GPUs that are connected by NVLink.
    #[serde(rename = "requireNVLink")]
    pub require_nvlink: bool,
    /// If possible on any node, the GPUs of a pod are attached to one PCIe switch.
    pub prefer_same_switch: bool,
    /// A pod runs only with GPUs that are attached to one PCIe switch.
    pub require_same_switch: bool,
    /// The maximum number of GPUs of one node for the pods of a gang. A part of a GPU counts as one GPU.
    #[serde(rename = "maxGPUsPerNode", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub max_gpus_per_node: Option<i32>,
}

/// The times before pods are evicted for other pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreemptionPolicy {
    /// The minimum run time of a pod before it may be evicted for another pod, for example `10m` or `1h30m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^([0-9]+(ms|s|m|h))+$"))]
    pub grace_period: Option<String>,
    /// The time that a pod waits before other pods may be evicted for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^([0-9]+(ms|s|m|h))+$"))]
    pub delay: Option<String>,
}

/// The rules of a policy, as types of the scheduler's core.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PolicyFacts {
    pub(crate) rules: PlacementRules,
    pub(crate) spread: GroupPlacement,
    pub(crate) enforcement: Enforcement,
    pub(crate) min_runtime_ms: u64,
    pub(crate) preemption_delay_ms: u64,
}

impl SchedulingPolicyDefinition {
    pub(crate) fn facts(&self) -> PolicyFacts {
        let Self { topology_policy, memory_policy, multi_gpu_policy, enforcement, preemption } = self;
        let alignment = |is_preferred: bool, is_required: bool| match (is_preferred, is_required) {
            (_, true) => Alignment::Required,
            (true, false) => Alignment::Preferred,
            (false, false) => Alignment::Any,
        };
        let duration_ms = |text: &Option<String>| text.as_deref().and_then(milliseconds).unwrap_or(0);
        let of = multi_gpu_policy;
        PolicyFacts {
            rules: PlacementRules {
                nvlink: alignment(of.prefer_nvlink, of.require_nvlink),
                switch: alignment(of.prefer_same_switch, of.require_same_switch),
                memory_threshold_percent: memory_policy.used_percent_max.and_then(|percent| u8::try_from(percent).ok()),
            },
            spread: GroupPlacement {
                strategy: match topology_policy.strategy {
                    TopologyStrategy::BestFit => PlacementStrategy::BestFit,
                    TopologyStrategy::SpreadEvenly => PlacementStrategy::SpreadEvenly,
                    TopologyStrategy::SingleNode => PlacementStrategy::SingleNode,
                },
                required_level: topology_policy.required_level.clone(),
                preferred_level: topology_policy.preferred_level.clone(),
                max_devices_per_node: of.max_gpus_per_node.and_then(|count| u16::try_from(count).ok()),
            },
            enforcement: *enforcement,
            min_runtime_ms: duration_ms(&preemption.grace_period),
            preemption_delay_ms: duration_ms(&preemption.delay),
        }
    }
}

impl PolicyFacts {
    /// The placement of a gang's pods. What the gang itself says takes precedence over the policy.
    pub(crate) fn spread_of(&self, gang: GroupPlacement) -> GroupPlacement {
        GroupPlacement {
            strategy: if gang.strategy == PlacementStrategy::BestFit { self.spread.strategy } else { gang.strategy },
            required_level: gang.required_level.or_else(|| self.spread.required_level.clone()),
            preferred_level: gang.preferred_level.or_else(|| self.spread.preferred_level.clone()),
            max_devices_per_node: gang.max_devices_per_node.or(self.spread.max_devices_per_node),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_read_in_the_words_of_the_books() {
        let definition: SchedulingPolicyDefinition = serde_json::from_value(json!({
            "topologyPolicy": {"strategy": "SpreadEvenly", "requiredLevel": "zone", "preferredLevel": "rack"},
            "memoryPolicy": {"usedPercentMax": 90},
            "multiGPUPolicy": {"preferNVLink": true, "preferSameSwitch": true, "requireSameSwitch": true, "maxGPUsPerNode": 4},
            "enforcement": "Hardware",
            "preemption": {"gracePeriod": "1h30m", "delay": "500ms"},
        }))
        .unwrap();
        let expected = PolicyFacts {
            rules: PlacementRules {
                nvlink: Alignment::Preferred,
                switch: Alignment::Required,
                memory_threshold_percent: Some(90),
            },
            spread: GroupPlacement {
                strategy: PlacementStrategy::SpreadEvenly,
                required_level: Some("zone".into()),
                preferred_level: Some("rack".into()),
                max_devices_per_node: Some(4),
            },
            enforcement: Enforcement::Hardware,
            min_runtime_ms: 5_400_000,
            preemption_delay_ms: 500,
        };
        assert_eq!(definition.facts(), expected);
        assert_eq!(SchedulingPolicyDefinition::default().facts(), PolicyFacts::default());
    }

    #[test]
    fn what_a_gang_says_goes_before_its_policy() {
        let level = |name: &str| Some(name.to_owned());
        let policy = PolicyFacts {
            spread: GroupPlacement {
                strategy: PlacementStrategy::SpreadEvenly,
                required_level: level("zone"),
                preferred_level: level("rack"),
                max_devices_per_node: Some(4),
            },
            ..PolicyFacts::default()
        };
        assert_eq!(policy.spread_of(GroupPlacement::default()), policy.spread);
        let own = GroupPlacement {
            strategy: PlacementStrategy::SingleNode,
            required_level: level("block"),
            ..GroupPlacement::default()
        };
        let found = policy.spread_of(own.clone());
        assert_eq!((found.strategy, &found.required_level), (own.strategy, &own.required_level));
        assert_eq!((found.preferred_level, found.max_devices_per_node), (level("rack"), Some(4)));
    }
}

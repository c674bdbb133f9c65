//! Scheduling policies, as objects of the cluster.

use aliquot_scheduler_core::{Alignment, GroupPlacement, PlacementRules, PlacementStrategy};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::queue::milliseconds;

/// How the pods that name it are placed. A pod or its namespace names it by the label `aliquot.dev/scheduling-policy`.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "aliquot.dev",
    version = "v1alpha1",
    kind = "SchedulingPolicy",
    plural = "schedulingpolicies",
    doc = "Says how the pods that name it by the label aliquot.dev/scheduling-policy are placed.",
    printcolumn = r#"{"name":"Strategy","type":"string","jsonPath":".spec.topologyPolicy.strategy"}"#,
    printcolumn = r#"{"name":"Memory max %","type":"integer","jsonPath":".spec.memoryPolicy.usedPercentMax"}"#,
    printcolumn = r#"{"name":"Enforcement","type":"string","jsonPath":".spec.enforcement"}"#,
    printcolumn = r#"{"name":"GPUs per node","type":"integer","jsonPath":".spec.multiGPUPolicy.maxGPUsPerNode"}"#,
    printcolumn = r#"{"name":"Grace period","type":"string","jsonPath":".spec.preemption.gracePeriod"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct SchedulingPolicyDefinition {
    /// Where the pods of a gang are, relative to each other.
    pub topology_policy: TopologyPolicy,
    /// How full the memory of a GPU may become.
    pub memory_policy: MemoryPolicy,
    /// Which GPUs a pod has together, and how many GPUs of one node a gang has.
    #[serde(rename = "multiGPUPolicy")]
    pub multi_gpu_policy: MultiGpuPolicy,
    /// By what the parts of a GPU must be kept at least, as the node's manager reports it. Where no manager reports, a pod that
    /// asks for more than `Any` does not run.
    pub enforcement: Enforcement,
    /// When pods are evicted for others.
    pub preemption: PreemptionPolicy,
}

/// By what the parts of a GPU are kept, the strictest last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Enforcement {
    /// By anything, also where that is not known.
    #[default]
    Any,
    /// By leases of the GPU's time: each pod gets what it asked for. On GPUs that NVIDIA's multi-process service (MPS)
    /// shares, only limits hold.
    Shares,
    /// By the GPU itself, of which a MIG instance is given out.
    Hardware,
}

/// Where the pods of a gang are, relative to each other. What the gang's own object says goes before this.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyPolicy {
    /// How the pods are distributed over nodes.
    pub strategy: TopologyStrategy,
    /// A label of nodes: all pods are on nodes with the same value of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required_level: Option<String>,
    /// A label of nodes: all pods are on nodes with the same value of it if that is possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred_level: Option<String>,
}

/// How the pods of a gang are distributed over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TopologyStrategy {
    /// Each pod is where it fits best.
    #[default]
    BestFit,
    /// No node has two pods more than another node that could take one.
    SpreadEvenly,
    /// All pods are on one node.
    SingleNode,
}

/// How full the memory of a GPU may become.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryPolicy {
    /// A pod is on no GPU of whose memory more than this is given out then, in percent; the pod's own part counts. So does
    /// memory that is in use without being given out, where the node's manager reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub used_percent_max: Option<i32>,
}

/// Which GPUs a pod has together, and how many GPUs of one node a gang has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MultiGpuPolicy {
    /// A pod's GPUs reach each other by NVLink if that is possible on any node.
    #[serde(rename = "preferNVLink")]
    pub prefer_nvlink: bool,
    /// A pod does not run with GPUs that do not reach each other by NVLink.
    #[serde(rename = "requireNVLink")]
    pub require_nvlink: bool,
    /// A pod's GPUs are attached to one PCIe switch if that is possible on any node.
    pub prefer_same_switch: bool,
    /// A pod does not run with GPUs that are not attached to one PCIe switch.
    pub require_same_switch: bool,
    /// The pods of a gang have so many GPUs of one node at most; parts of GPUs count as GPUs.
    #[serde(rename = "maxGPUsPerNode", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub max_gpus_per_node: Option<i32>,
}

/// When pods are evicted for others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreemptionPolicy {
    /// How long a pod runs at least before it is evicted for others, for example `10m` or `1h30m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^([0-9]+(ms|s|m|h))+$"))]
    pub grace_period: Option<String>,
    /// How long a pod waits before others are evicted for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^([0-9]+(ms|s|m|h))+$"))]
    pub delay: Option<String>,
}

/// What a policy says, in the words of the books.
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

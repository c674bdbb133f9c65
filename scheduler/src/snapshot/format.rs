//! The file's keys, and what holds where one is left out.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Action, Alignment, Settings};
use serde::{Deserialize, Serialize};

use crate::policy::PolicyName;
use crate::snapshot::amount::ResourceKey;

/// The version of the format.
pub(super) const VERSION: u32 = 1;
/// The namespace of who names none.
pub(super) const NAMESPACE: &str = "default";
/// The priority of who names none: that of training, which may be evicted.
pub(super) const PRIORITY: i32 = 50;
/// How long a pod group may be short of members before the rest of it is evicted.
pub(super) const STALENESS_GRACE_MS: Option<u64> = Some(60_000);

/// A cluster, with all that decides what is planned for it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    pub(super) version: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) now_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) scheduler: SchedulerEntry,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) topology: Vec<String>,
    pub(super) nodes: Vec<NodeEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) queues: Vec<QueueEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) namespaces: Vec<NamespaceEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) disruption_budgets: Vec<BudgetEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) pod_groups: Vec<PodGroupEntry>,
    pub(super) claims: Vec<ClaimEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) history: HistoryEntry,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SchedulerEntry {
    pub(super) policy: PolicyName,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) seed: u64,
    pub(super) usage_half_life_ms: u64,
    pub(super) usage_weight_per_mille: u64,
    pub(super) disruption_per_mille: u64,
    pub(super) search_budget: u32,
    pub(super) moves_per_cycle: u32,
    /// `null`: never.
    pub(super) hold_after_ms: Option<u64>,
    pub(super) held_nodes_per_mille: u32,
    /// What is expected to come; the requests of the claims that there are, if it is left out.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) mix: Option<Vec<MixEntry>>,
}

impl Default for SchedulerEntry {
    fn default() -> Self {
        let Settings {
            usage_weight,
            disruption_per_mille,
            search_budget,
            moves_per_cycle,
            hold_after_ms,
            held_nodes_per_mille,
            // The mix of a snapshot is that of its claims, or is given.
            counts_mix: _,
        } = Settings::default();
        Self {
            policy: PolicyName::default(),
            seed: 0,
            usage_half_life_ms: 7 * 24 * 3_600_000,
            usage_weight_per_mille: usage_weight,
            disruption_per_mille,
            search_budget,
            moves_per_cycle,
            hold_after_ms,
            held_nodes_per_mille,
            mix: None,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MixEntry {
    pub(super) count: u64,
    pub(super) request: RequestEntry,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NodeEntry {
    pub(super) name: String,
    /// So many nodes, named NAME-0, NAME-1 and so on.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) count: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) cpu_milli: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) memory_gib: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpus: Vec<GpuEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) taints: Vec<TaintEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) cordoned: bool,
    /// Kept for somebody whom the history does not name.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) held: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GpuEntry {
    pub(super) model: String,
    /// So many of them.
    #[serde(skip_serializing_if = "is_one")]
    pub(super) count: u16,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) uuid: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) memory_gib: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) unhealthy: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) nvlink_group: Option<u16>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) switch: Option<u16>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) numa: Option<u16>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) attributes: BTreeMap<String, String>,
}

impl Default for GpuEntry {
    fn default() -> Self {
        Self {
            model: String::new(),
            count: 1,
            uuid: String::new(),
            memory_bytes: None,
            memory_gib: None,
            unhealthy: false,
            nvlink_group: None,
            switch: None,
            numa: None,
            attributes: BTreeMap::new(),
        }
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TaintEntry {
    pub(super) key: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct QueueEntry {
    pub(super) name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) parent: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) priority: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) preempt_min_runtime_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) reclaim_min_runtime_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) resources: BTreeMap<ResourceKey, AllowanceEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) used: UsageEntry,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AllowanceEntry {
    /// `null`: all there is.
    pub(super) quota: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) limit: Option<u64>,
    #[serde(skip_serializing_if = "is_one")]
    pub(super) weight: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) priority: Option<i32>,
}

impl Default for AllowanceEntry {
    fn default() -> Self {
        Self { quota: Some(0), limit: None, weight: 1, priority: None }
    }
}

/// What was held over time, decayed, in the resource's smallest unit times milliseconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct UsageEntry {
    pub(super) until_ms: u64,
    pub(super) integrals: BTreeMap<ResourceKey, u128>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NamespaceEntry {
    pub(super) name: String,
    /// The queue above its own.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) queue: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) guaranteed: BTreeMap<ResourceKey, u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) limit: BTreeMap<ResourceKey, u64>,
    /// For claims that are yet to come: those in the list were let in before.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) per_claim: BTreeMap<ResourceKey, BoundsEntry>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BoundsEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(super) default: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) minimum: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) maximum: Option<u64>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BudgetEntry {
    pub(super) name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) namespace: Option<String>,
    pub(super) min_available: u32,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PodGroupEntry {
    pub(super) name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) namespace: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) queue: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) priority_class: Option<PriorityClass>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) priority: Option<i32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) preemptible: Option<bool>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) min_runtime_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) preemption_delay_ms: u64,
    /// `null`: forever.
    #[serde(skip_serializing_if = "is_usual_grace")]
    pub(super) staleness_grace_ms: Option<u64>,
    /// All members that there are, if it is left out.
    pub(super) min_members: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) sub_groups: Vec<SubGroupEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) strategy: Strategy,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) required_level: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) preferred_level: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) max_gpus_per_node: Option<u16>,
    /// How many of the claims in the list were there before it: they go first if their priority is the same.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) after_claims: usize,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) added_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) stale_since_ms: Option<u64>,
}

impl Default for PodGroupEntry {
    fn default() -> Self {
        Self {
            name: String::new(),
            namespace: None,
            queue: String::new(),
            priority_class: None,
            priority: None,
            preemptible: None,
            min_runtime_ms: 0,
            preemption_delay_ms: 0,
            staleness_grace_ms: STALENESS_GRACE_MS,
            min_members: None,
            sub_groups: Vec::new(),
            strategy: Strategy::default(),
            required_level: None,
            preferred_level: None,
            max_gpus_per_node: None,
            after_claims: 0,
            added_ms: 0,
            stale_since_ms: None,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SubGroupEntry {
    pub(super) name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) min_members: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) required_level: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Strategy {
    #[default]
    BestFit,
    SpreadEvenly,
    SingleNode,
}

/// Names for priorities. Whoever is below `build` may be evicted, unless it says otherwise.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PriorityClass {
    Train,
    BuildPreemptible,
    Build,
    Inference,
    SystemClusterCritical,
    SystemNodeCritical,
}

impl PriorityClass {
    /// From this priority on claims are not evicted.
    pub(super) const NON_PREEMPTIBLE: i32 = 100;

    pub(super) fn value(self) -> i32 {
        match self {
            Self::Train => PRIORITY,
            Self::BuildPreemptible => 75,
            Self::Build => Self::NON_PREEMPTIBLE,
            Self::Inference => 125,
            Self::SystemClusterCritical => 2_000_000_000,
            Self::SystemNodeCritical => 2_000_001_000,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ClaimEntry {
    pub(super) name: String,
    /// So many claims, named NAME-0, NAME-1 and so on.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) count: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) namespace: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) queue: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) priority_class: Option<PriorityClass>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) priority: Option<i32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) preemptible: Option<bool>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) min_runtime_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) pod_group: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) sub_group: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) disruption_budget: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) request: RequestEntry,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) placed: Option<PlacedEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) leaving: Option<LeavingEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) evicted: Option<EvictedEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) added_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) failures: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) retry_at_ms: u64,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RequestEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(super) cpu_milli: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) memory_gib: Option<u64>,
    /// 1 if it is left out and something of a GPU is asked for, otherwise 0.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpus: Option<u16>,
    /// Of each GPU: all of it, if nothing is said; no time, if only memory is.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpu_core_percent: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpu_core_milli: Option<u32>,
    /// Of each GPU: the same part as of its time, if nothing is said.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpu_memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpu_memory_gib: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpu_memory_percent: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpu_memory_milli: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) models: Vec<String>,
    /// What each GPU must have.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpu_attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) node_labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) tolerations: Vec<TaintEntry>,
    #[serde(with = "AlignmentName", skip_serializing_if = "is_default")]
    pub(super) nvlink: Alignment,
    #[serde(with = "AlignmentName", skip_serializing_if = "is_default")]
    pub(super) switch: Alignment,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpu_memory_threshold_percent: Option<u8>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Alignment", rename_all = "kebab-case")]
enum AlignmentName {
    Any,
    Preferred,
    Required,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PlacedEntry {
    pub(super) node: String,
    /// Their indexes on the node.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpus: Vec<u16>,
    /// Since when it runs, if it waits for nobody to leave; since it was added, if it is left out.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) since_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) starts_after: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LeavingEntry {
    pub(super) node: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) gpus: Vec<u16>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EvictedEntry {
    #[serde(with = "ActionName")]
    pub(super) action: Action,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) by: Option<GroupEntry>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) by_name: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) at_ms: u64,
    /// What the queues held just before, with their fair shares.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) shares: Vec<ShareEntry>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ShareEntry {
    pub(super) queue: String,
    pub(super) resource: ResourceKey,
    pub(super) held: u64,
    pub(super) asked: u64,
    pub(super) fair_share: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Action", rename_all = "kebab-case")]
enum ActionName {
    Allocate,
    Consolidate,
    Reclaim,
    Preempt,
    StaleGang,
}

/// A pod group, or a claim that is in none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GroupEntry {
    PodGroup(String),
    Claim(String),
}

/// What a running scheduler has seen, as it stands in a snapshot that was written by one. Nobody needs to write it by
/// hand.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HistoryEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(super) models: Vec<ModelEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) capacity: UsageEntry,
    #[serde(skip_serializing_if = "is_default")]
    pub(super) blocked: Vec<BlockedEntry>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ModelEntry {
    pub(super) name: String,
    /// The least and the most memory of a GPU of it that was ever seen.
    #[serde(skip_serializing_if = "is_default")]
    pub(super) memory_bytes: Option<(u64, u64)>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockedEntry {
    pub(super) who: GroupEntry,
    pub(super) since_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) nodes: Vec<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_one<T: From<u8> + PartialEq>(value: &T) -> bool {
    *value == T::from(1)
}

fn is_usual_grace(grace_ms: &Option<u64>) -> bool {
    *grace_ms == STALENESS_GRACE_MS
}

//! The keys of the file, and the defaults of those that are left out.

mod claim;
mod constraints;
mod further;
mod history;
mod node;
mod peers;
mod pod_group;
mod queue;
mod scheduler;

use aliquot_scheduler_core::PriorityClass;
use serde::{Deserialize, Serialize};

pub(super) use claim::{ClaimEntry, LastEvictionEntry, LeavingEntry, PlacedEntry, PriorityName, RequestEntry};
pub(super) use constraints::{
    EffectName, OperatorEntry, PreferenceEntry, RequirementEntry, TaintEntry, TolerationEntry,
};
pub(super) use further::{AlternativeEntry, AlternativesEntry, FurtherEntry, LinkEntry, NamedRequestEntry};
pub(super) use history::{
    BlockedEntry, BoundedEntry, EvictedEntry, GroupEntry, HistoryEntry, KeepingEntry, PatienceEntry, SearchEntry,
    ShareEntry, TurnoverEntry,
};
pub(super) use node::{GpuEntry, NodeEntry};
pub(super) use peers::{AffinityEntry, AntiAffinityEntry, PeerPreferenceEntry, PeersEntry, TopologySpreadEntry};
pub(super) use pod_group::{PodGroupEntry, Strategy, SubGroupEntry};
pub(super) use queue::{AllowanceEntry, BoundsEntry, BudgetEntry, NamespaceEntry, QueueEntry, UsageEntry};
pub(super) use scheduler::{MixEntry, SchedulerEntry};

/// The version of the format.
pub(super) const VERSION: u32 = 1;

/// The namespace of entries that name none.
pub(crate) const NAMESPACE: &str = "default";

/// The priority of entries that name none: that of training, which may be evicted.
pub(super) const PRIORITY: i32 = PriorityClass::Train.value();

/// A cluster, with everything that its plans depend on.
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

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_one<T: From<u8> + PartialEq>(value: &T) -> bool {
    *value == T::from(1)
}

//! The history of a running scheduler.

use aliquot_scheduler_core::Action;
use serde::{Deserialize, Serialize};

use crate::snapshot::amount::ResourceKey;
use crate::snapshot::format::{UsageEntry, is_default};

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct EvictedEntry {
    #[serde(with = "ActionName")]
    pub(in crate::snapshot) action: Action,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) by: Option<GroupEntry>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) by_name: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) at_ms: u64,
    /// The amounts of the queues just before, with their fair shares.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) shares: Vec<ShareEntry>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct ShareEntry {
    pub(in crate::snapshot) queue: String,
    pub(in crate::snapshot) resource: ResourceKey,
    pub(in crate::snapshot) held: u64,
    pub(in crate::snapshot) asked: u64,
    pub(in crate::snapshot) fair_share: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Action", rename_all = "kebab-case")]
enum ActionName {
    Allocate,
    Consolidate,
    Reclaim,
    Preempt,
    StaleGang,
    Relieve,
}

/// How much of the running work has ended lately.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct TurnoverEntry {
    /// Device time, in 1024ths of a thousandth of a device.
    pub(in crate::snapshot) ended: u64,
    /// The value that decisions use, in eighths.
    pub(in crate::snapshot) eighths: u8,
}

/// A pod group, or a claim without a group.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::snapshot) enum GroupEntry {
    PodGroup(String),
    Claim(String),
}

/// The history of a running scheduler, which it writes into its snapshots. A snapshot that is written by hand does not
/// need it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct HistoryEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) models: Vec<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) capacity: UsageEntry,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) turnover: TurnoverEntry,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) blocked: Vec<BlockedEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) bounded: Vec<BoundedEntry>,
    /// In the order in which the searches continue.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) searches: Vec<SearchEntry>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct BlockedEntry {
    pub(in crate::snapshot) who: GroupEntry,
    pub(in crate::snapshot) since_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) nodes: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) patience: PatienceEntry,
}

/// What is known of the nodes that were kept for a group that waits.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct PatienceEntry {
    /// How many claims were left on the kept nodes. Without it they are counted anew.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) claims: Option<usize>,
    /// Since when none of them has left.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) since_ms: u64,
    /// How often kept nodes were given up.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) times: u32,
    /// The nodes that were given up.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) given_up: Vec<String>,
}

/// A group that waits for its queue's bounds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct BoundedEntry {
    pub(in crate::snapshot) who: GroupEntry,
    pub(in crate::snapshot) since_ms: u64,
    /// How often something was kept for it in vain.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) times: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) keeping: Option<KeepingEntry>,
}

/// What is kept for a group of which queues.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct KeepingEntry {
    pub(in crate::snapshot) queues: Vec<String>,
    pub(in crate::snapshot) excess_per_mille: u64,
    pub(in crate::snapshot) since_ms: u64,
    /// Whether it would be within the fair share of its queue.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) is_entitled: bool,
}

/// A search for room that was too long for one cycle.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct SearchEntry {
    pub(in crate::snapshot) who: GroupEntry,
    #[serde(with = "ActionName")]
    pub(in crate::snapshot) action: Action,
    /// The node at which the search continues. The default is the first node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(in crate::snapshot) node: Option<String>,
    /// How often the search was cut short.
    pub(in crate::snapshot) times: u32,
}

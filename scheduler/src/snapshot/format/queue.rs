//! Queues, namespaces and disruption budgets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::snapshot::amount::ResourceKey;
use crate::snapshot::format::{is_default, is_one};

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct QueueEntry {
    pub(in crate::snapshot) name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) parent: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) priority: i32,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) preempt_min_runtime_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) reclaim_min_runtime_ms: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) resources: BTreeMap<ResourceKey, AllowanceEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) used: UsageEntry,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct AllowanceEntry {
    /// `null` means all capacity, so that the queue is never over its quota.
    pub(in crate::snapshot) quota: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) limit: Option<u64>,
    #[serde(skip_serializing_if = "is_one")]
    pub(in crate::snapshot) weight: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) priority: Option<i32>,
}

impl Default for AllowanceEntry {
    fn default() -> Self {
        Self { quota: Some(0), limit: None, weight: 1, priority: None }
    }
}

/// Past usage with decay: amounts in the resource's smallest unit times milliseconds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct UsageEntry {
    pub(in crate::snapshot) until_ms: u64,
    pub(in crate::snapshot) integrals: BTreeMap<ResourceKey, u128>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct NamespaceEntry {
    pub(in crate::snapshot) name: String,
    /// The name of the queue above the namespace's own.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) queue: Option<String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) guaranteed: BTreeMap<ResourceKey, u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) limit: BTreeMap<ResourceKey, u64>,
    /// Applies to claims that arrive later: those in the file were admitted before.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) per_claim: BTreeMap<ResourceKey, BoundsEntry>,
}

#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct BoundsEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) default: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) minimum: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) maximum: Option<u64>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct BudgetEntry {
    pub(in crate::snapshot) name: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) namespace: Option<String>,
    pub(in crate::snapshot) min_available: u32,
}

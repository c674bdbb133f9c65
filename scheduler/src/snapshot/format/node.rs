//! Nodes, and the GPUs on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::snapshot::format::{PeersEntry, TaintEntry, is_default, is_one};

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct NodeEntry {
    pub(in crate::snapshot) name: String,
    /// The number of nodes that this entry stands for, named NAME-0, NAME-1 and so on.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) count: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) cpu_milli: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) memory_gib: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) gpus: Vec<GpuEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) taints: Vec<TaintEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) cordoned: bool,
    /// Resources that are only counted, by name.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) counted: BTreeMap<String, u64>,
    /// Foreign tasks that run there and are not claims, as far as the places of claims depend on them.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) foreign: Vec<PeersEntry>,
    /// Whether the node is kept for a claim or group that the history does not name.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) held: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct GpuEntry {
    pub(in crate::snapshot) model: String,
    /// The number of such GPUs.
    #[serde(skip_serializing_if = "is_one")]
    pub(in crate::snapshot) count: u16,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) uuid: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) memory_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) memory_gib: Option<u64>,
    /// Memory that is used, and that no claim holds.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) memory_outside_bytes: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) unhealthy: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) nvlink_group: Option<u16>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) switch: Option<u16>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) numa: Option<u16>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) attributes: BTreeMap<String, String>,
}

impl Default for GpuEntry {
    fn default() -> Self {
        Self {
            model: String::new(),
            count: 1,
            uuid: String::new(),
            memory_bytes: None,
            memory_gib: None,
            memory_outside_bytes: 0,
            unhealthy: false,
            nvlink_group: None,
            switch: None,
            numa: None,
            attributes: BTreeMap::new(),
        }
    }
}

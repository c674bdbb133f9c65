//! Slices: as they are asked for, and as they are.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::consumer::Consumer;
use crate::policy::{AuditPolicy, QosClass};

/// A slice to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRequest {
    /// Unique on the node; lower-case letters, digits, `-` and `.`, at most 63 characters.
    pub name: String,
    /// One for each device.
    pub parts: Vec<Part>,
    /// `None`: the node's default.
    #[serde(rename = "priority_class")]
    pub qos_class: Option<QosClass>,
    /// Page-locked host memory that is never exceeded; 0: no limit.
    pub host_memory_limit_bytes: u64,
    /// What is done with processes that get past the slice; `None`: the node's policy.
    pub audit_policy: Option<AuditPolicy>,
    /// For people to read; at most 1024 bytes.
    pub description: String,
    /// Names of CDI devices by which containers may get the slice, besides `aliquot.dev/slice=` and its name: each
    /// `X` of these is published as `aliquot.dev/slice=X`. A container that gets the slice by several of its names
    /// gets it once. Each must be as a slice's name, and no other slice's.
    pub aliases: BTreeSet<String>,
    /// Variables that its containers get besides what every slice's containers get.
    pub environment: BTreeMap<String, String>,
    /// The UID of the pod that it is for, if the adapter needs to tell it from another pod of that name. The node keeps
    /// it and does not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

/// What a slice has of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The device.
    pub device_uuid: String,
    /// Guaranteed share of its time, 1 to 100.
    pub core_request_percent: u32,
    /// Share of its time that is never exceeded, from the request to 100.
    pub core_limit_percent: u32,
    /// Its memory that is never exceeded.
    pub memory_limit_bytes: u64,
}

/// A slice that there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// As it was asked for, but `None` nowhere.
    pub content: SliceRequest,
    /// The fully qualified CDI device that is its own name, for example `aliquot.dev/slice=train-1`.
    pub cdi_device: String,
    /// Processes in it now.
    pub processes: usize,
    /// Who runs in it, as far as somebody said.
    pub consumers: BTreeSet<Consumer>,
}

//! Slices: as they are requested, and as they exist.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::consumer::Consumer;
use crate::policy::{AuditPolicy, QosClass};

/// A slice to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRequest {
    /// Unique on the node; lower-case letters, digits, `-` and `.`, at most 63 characters.
    pub name: String,
    /// The slice's parts, one for each device.
    pub parts: Vec<Part>,
    /// `None` stands for the node's default.
    #[serde(rename = "priority_class")]
    pub qos_class: Option<QosClass>,
    /// Maximum page-locked host memory; 0 means no limit.
    pub host_memory_limit_bytes: u64,
    /// What is done about processes that get past the slice, if it is stricter than the node's policy.
    pub audit_policy: Option<AuditPolicy>,
    /// For people to read; at most 1024 bytes.
    pub description: String,
    /// Additional CDI names of the slice, besides `aliquot.dev/slice=` and its name: each `X` of these is published as
    /// `aliquot.dev/slice=X`. A container that gets the slice by several of its names gets it once. Each must have the
    /// form of a slice's name, and must not belong to another slice.
    pub aliases: BTreeSet<String>,
    /// Additional variables for its containers, besides those that every slice's containers get.
    pub environment: BTreeMap<String, String>,
    /// The UID of the pod that the slice is for, if the adapter must tell it from another pod of that name. The node
    /// keeps the UID and does not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

/// A slice's part of one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The UUID of the device.
    pub device_uuid: String,
    /// Guaranteed share of the device's time, 1 to 100.
    pub core_request_percent: u32,
    /// Maximum share of the device's time, from the request to 100.
    pub core_limit_percent: u32,
    /// Maximum memory on the device.
    pub memory_limit_bytes: u64,
}

/// A slice that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// As it was requested, with every `None` replaced by the value that holds.
    pub content: SliceRequest,
    /// The fully qualified CDI device that is its own name, for example `aliquot.dev/slice=train-1`.
    pub cdi_device: String,
    /// Number of processes in it now.
    pub processes: usize,
    /// The containers that run in it, as far as an adapter has told.
    pub consumers: BTreeSet<Consumer>,
}

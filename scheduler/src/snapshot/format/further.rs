//! Further requests of claims for GPUs, and their alternatives.

use std::collections::BTreeSet;

use aliquot_scheduler_core::{Comparison, DeviceProperty};
use serde::{Deserialize, Serialize};

use crate::snapshot::format::{RequestEntry, is_default};

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct FurtherEntry {
    /// The name of the first request.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) first: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) requests: Vec<NamedRequestEntry>,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) links: Vec<LinkEntry>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct NamedRequestEntry {
    pub(in crate::snapshot) name: String,
    /// Only GPUs, with their models and attributes.
    pub(in crate::snapshot) request: RequestEntry,
}

/// Requests for GPUs that a claim takes instead of its first choice.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct AlternativesEntry {
    /// The name of the only request in the first choice.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) first: String,
    pub(in crate::snapshot) others: Vec<AlternativeEntry>,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct AlternativeEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) name: String,
    /// The default is its position in the list; the first choice has rank 0.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) rank: Option<u16>,
    /// Only GPUs, with their models and attributes, and further requests for GPUs.
    pub(in crate::snapshot) request: RequestEntry,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct LinkEntry {
    /// The indexes of the requests; 0 is the first one.
    pub(in crate::snapshot) requests: BTreeSet<u16>,
    #[serde(with = "PropertyName")]
    pub(in crate::snapshot) property: DeviceProperty,
    #[serde(with = "ComparisonName")]
    pub(in crate::snapshot) comparison: Comparison,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "DeviceProperty", rename_all = "kebab-case")]
enum PropertyName {
    Identity,
    NvlinkGroup,
    Switch,
    Attribute(String),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Comparison", rename_all = "kebab-case")]
enum ComparisonName {
    Same,
    Distinct,
}

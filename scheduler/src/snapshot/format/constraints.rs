//! Constraints on the nodes where claims may run: taints, tolerations and affinity.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::snapshot::format::is_default;

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct TaintEntry {
    pub(in crate::snapshot) key: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) value: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) effect: EffectName,
}

/// The effect of a taint, as Kubernetes writes it.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(in crate::snapshot) enum EffectName {
    #[default]
    NoSchedule,
    NoExecute,
    PreferNoSchedule,
}

/// Tolerates taints with this key and this value. The value is empty if it is left out.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(in crate::snapshot) struct TolerationEntry {
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) key: String,
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) value: String,
    /// Tolerates taints with any key.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) any_key: bool,
    /// Tolerates taints with any value.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) any_value: bool,
    /// The default is any effect.
    #[serde(skip_serializing_if = "is_default")]
    pub(in crate::snapshot) effect: Option<EffectName>,
}

/// A requirement on a label of the node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct RequirementEntry {
    pub(in crate::snapshot) key: String,
    pub(in crate::snapshot) operator: OperatorEntry,
}

/// Nodes that a claim prefers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::snapshot) struct PreferenceEntry {
    pub(in crate::snapshot) weight: u8,
    /// The node must meet all of these requirements.
    pub(in crate::snapshot) requirements: Vec<RequirementEntry>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::snapshot) enum OperatorEntry {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

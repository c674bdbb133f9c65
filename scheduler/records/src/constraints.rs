//! Constraints on the nodes where claims may run: taints, tolerations and affinity.

use std::collections::BTreeSet;

use aliquot_scheduler_core::{NodeOperator, NodeRequirement, NodeTerm, Preference, Taint, TaintEffect, Toleration};
use serde::{Deserialize, Serialize};

use super::{forms, values};

#[derive(Serialize, Deserialize)]
pub(super) struct TaintForm {
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default, skip_serializing_if = "TaintEffectForm::is_no_schedule")]
    effect: TaintEffectForm,
}

impl From<&Taint> for TaintForm {
    fn from(Taint { key, value, effect }: &Taint) -> Self {
        Self { key: key.clone(), value: value.clone(), effect: (*effect).into() }
    }
}

impl From<TaintForm> for Taint {
    fn from(TaintForm { key, value, effect }: TaintForm) -> Self {
        Self { key, value, effect: effect.into() }
    }
}

/// The effect of a taint or toleration. If it is missing, it is `NoSchedule` for a taint and any effect for a
/// toleration.
#[derive(Clone, Copy, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum TaintEffectForm {
    #[default]
    NoSchedule,
    NoExecute,
    PreferNoSchedule,
}

impl TaintEffectForm {
    fn is_no_schedule(&self) -> bool {
        matches!(self, Self::NoSchedule)
    }
}

impl From<TaintEffect> for TaintEffectForm {
    fn from(effect: TaintEffect) -> Self {
        match effect {
            TaintEffect::NoSchedule => Self::NoSchedule,
            TaintEffect::NoExecute => Self::NoExecute,
            TaintEffect::PreferNoSchedule => Self::PreferNoSchedule,
        }
    }
}

impl From<TaintEffectForm> for TaintEffect {
    fn from(form: TaintEffectForm) -> Self {
        match form {
            TaintEffectForm::NoSchedule => Self::NoSchedule,
            TaintEffectForm::NoExecute => Self::NoExecute,
            TaintEffectForm::PreferNoSchedule => Self::PreferNoSchedule,
        }
    }
}

/// A toleration. In format 1 a missing value is the empty value, so a toleration of any value has a field of its own.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct TolerationForm {
    key: String,
    value: String,
    #[serde(skip_serializing_if = "is_false")]
    any_key: bool,
    #[serde(skip_serializing_if = "is_false")]
    any_value: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<TaintEffectForm>,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl From<&Toleration> for TolerationForm {
    fn from(Toleration { key, value, effect }: &Toleration) -> Self {
        Self {
            key: key.clone().unwrap_or_default(),
            value: value.clone().unwrap_or_default(),
            any_key: key.is_none(),
            any_value: value.is_none(),
            effect: effect.map(Into::into),
        }
    }
}

impl From<TolerationForm> for Toleration {
    fn from(TolerationForm { key, value, any_key, any_value, effect }: TolerationForm) -> Self {
        Self { key: (!any_key).then_some(key), value: (!any_value).then_some(value), effect: effect.map(Into::into) }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct NodeTermForm(Vec<NodeRequirementForm>);

impl From<&NodeTerm> for NodeTermForm {
    fn from(NodeTerm { requirements }: &NodeTerm) -> Self {
        Self(forms(requirements))
    }
}

impl From<NodeTermForm> for NodeTerm {
    fn from(NodeTermForm(requirements): NodeTermForm) -> Self {
        Self { requirements: values(requirements) }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct PreferenceForm {
    weight: u8,
    term: NodeTermForm,
}

impl From<&Preference> for PreferenceForm {
    fn from(Preference { weight, term }: &Preference) -> Self {
        Self { weight: *weight, term: term.into() }
    }
}

impl From<PreferenceForm> for Preference {
    fn from(PreferenceForm { weight, term }: PreferenceForm) -> Self {
        Self { weight, term: term.into() }
    }
}

#[derive(Serialize, Deserialize)]
struct NodeRequirementForm {
    key: String,
    operator: NodeOperatorForm,
}

impl From<&NodeRequirement> for NodeRequirementForm {
    fn from(NodeRequirement { key, operator }: &NodeRequirement) -> Self {
        Self { key: key.clone(), operator: operator.into() }
    }
}

impl From<NodeRequirementForm> for NodeRequirement {
    fn from(NodeRequirementForm { key, operator }: NodeRequirementForm) -> Self {
        Self { key, operator: operator.into() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NodeOperatorForm {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

impl From<&NodeOperator> for NodeOperatorForm {
    fn from(operator: &NodeOperator) -> Self {
        match operator {
            NodeOperator::In(values) => Self::In(values.clone()),
            NodeOperator::NotIn(values) => Self::NotIn(values.clone()),
            NodeOperator::Exists => Self::Exists,
            NodeOperator::DoesNotExist => Self::DoesNotExist,
            NodeOperator::GreaterThan(bound) => Self::GreaterThan(*bound),
            NodeOperator::LessThan(bound) => Self::LessThan(*bound),
        }
    }
}

impl From<NodeOperatorForm> for NodeOperator {
    fn from(form: NodeOperatorForm) -> Self {
        match form {
            NodeOperatorForm::In(values) => Self::In(values),
            NodeOperatorForm::NotIn(values) => Self::NotIn(values),
            NodeOperatorForm::Exists => Self::Exists,
            NodeOperatorForm::DoesNotExist => Self::DoesNotExist,
            NodeOperatorForm::GreaterThan(bound) => Self::GreaterThan(bound),
            NodeOperatorForm::LessThan(bound) => Self::LessThan(bound),
        }
    }
}

//! Converts taints, tolerations and terms of a node affinity from and to their entries in a file.

use std::sync::Arc;

use aliquot_scheduler_core::{
    NodeOperator, NodeRequirement, NodeTerm, Preference, Preferences, Taint, TaintEffect, Toleration,
};
use anyhow::{Result, ensure};

use crate::snapshot::format::{
    EffectName, OperatorEntry, PreferenceEntry, RequirementEntry, TaintEntry, TolerationEntry,
};

impl TaintEntry {
    pub(super) fn to_taint(&self) -> Taint {
        Taint { key: self.key.clone(), value: self.value.clone(), effect: self.effect.to_effect() }
    }

    pub(super) fn of(taint: &Taint) -> Self {
        Self { key: taint.key.clone(), value: taint.value.clone(), effect: EffectName::of(taint.effect) }
    }
}

impl EffectName {
    fn to_effect(self) -> TaintEffect {
        match self {
            Self::NoSchedule => TaintEffect::NoSchedule,
            Self::NoExecute => TaintEffect::NoExecute,
            Self::PreferNoSchedule => TaintEffect::PreferNoSchedule,
        }
    }

    fn of(effect: TaintEffect) -> Self {
        match effect {
            TaintEffect::NoSchedule => Self::NoSchedule,
            TaintEffect::NoExecute => Self::NoExecute,
            TaintEffect::PreferNoSchedule => Self::PreferNoSchedule,
        }
    }
}

impl TolerationEntry {
    pub(super) fn to_toleration(&self) -> Result<Toleration> {
        let Self { key, value, any_key, any_value, effect } = self;
        ensure!(!any_key || key.is_empty(), "a toleration of any key must not name a key, and this one names {key:?}");
        ensure!(
            !any_value || value.is_empty(),
            "a toleration of any value must not name a value, and this one names {value:?}"
        );
        Ok(Toleration {
            key: (!any_key).then(|| key.clone()),
            value: (!any_value).then(|| value.clone()),
            effect: effect.map(EffectName::to_effect),
        })
    }

    pub(super) fn of(toleration: &Toleration) -> Self {
        let Toleration { key, value, effect } = toleration;
        Self {
            key: key.clone().unwrap_or_default(),
            value: value.clone().unwrap_or_default(),
            any_key: key.is_none(),
            any_value: value.is_none(),
            effect: effect.map(EffectName::of),
        }
    }
}

/// The term for a list of requirements.
pub(super) fn to_term(entries: &[RequirementEntry]) -> NodeTerm {
    NodeTerm { requirements: entries.iter().map(RequirementEntry::to_requirement).collect() }
}

/// The preferences for a list of entries.
pub(super) fn preferences(entries: &[PreferenceEntry]) -> Option<Arc<Preferences>> {
    let preference = |entry: &PreferenceEntry| Preference { weight: entry.weight, term: to_term(&entry.requirements) };
    (!entries.is_empty()).then(|| Arc::new(Preferences(entries.iter().map(preference).collect())))
}

/// The list of entries for preferences.
pub(super) fn preference_entries(Preferences(all): &Preferences) -> Vec<PreferenceEntry> {
    let entry =
        |Preference { weight, term }: &Preference| PreferenceEntry { weight: *weight, requirements: term_entry(term) };
    all.iter().map(entry).collect()
}

/// The list of entries for a term's requirements.
pub(super) fn term_entry(term: &NodeTerm) -> Vec<RequirementEntry> {
    term.requirements.iter().map(RequirementEntry::of).collect()
}

impl RequirementEntry {
    fn to_requirement(&self) -> NodeRequirement {
        let operator = match &self.operator {
            OperatorEntry::In(values) => NodeOperator::In(values.clone()),
            OperatorEntry::NotIn(values) => NodeOperator::NotIn(values.clone()),
            OperatorEntry::Exists => NodeOperator::Exists,
            OperatorEntry::DoesNotExist => NodeOperator::DoesNotExist,
            OperatorEntry::GreaterThan(bound) => NodeOperator::GreaterThan(*bound),
            OperatorEntry::LessThan(bound) => NodeOperator::LessThan(*bound),
        };
        NodeRequirement { key: self.key.clone(), operator }
    }

    fn of(requirement: &NodeRequirement) -> Self {
        let operator = match &requirement.operator {
            NodeOperator::In(values) => OperatorEntry::In(values.clone()),
            NodeOperator::NotIn(values) => OperatorEntry::NotIn(values.clone()),
            NodeOperator::Exists => OperatorEntry::Exists,
            NodeOperator::DoesNotExist => OperatorEntry::DoesNotExist,
            NodeOperator::GreaterThan(bound) => OperatorEntry::GreaterThan(*bound),
            NodeOperator::LessThan(bound) => OperatorEntry::LessThan(*bound),
        };
        Self { key: requirement.key.clone(), operator }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_without_a_value_is_of_the_empty_one() {
        let read =
            |text: &str| -> Result<Toleration> { serde_json::from_str::<TolerationEntry>(text)?.to_toleration() };
        let key = || Some("k".to_owned());
        let expected = |value: Option<&str>, effect| Toleration { key: key(), value: value.map(str::to_owned), effect };
        assert_eq!(read(r#"{"key": "k"}"#).unwrap(), expected(Some(""), None));
        assert_eq!(read(r#"{"key": "k", "value": "v"}"#).unwrap(), expected(Some("v"), None));
        let any = read(r#"{"key": "k", "any_value": true, "effect": "NoExecute"}"#).unwrap();
        assert_eq!(any, expected(None, Some(TaintEffect::NoExecute)));
        assert_eq!(read(r#"{"any_key": true, "any_value": true}"#).unwrap(), Toleration::default());
        read(r#"{"key": "k", "value": "v", "any_value": true}"#).expect_err("it cannot be both");
    }
}

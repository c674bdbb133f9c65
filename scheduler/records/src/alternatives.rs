//! The alternatives of claims: requests for devices in place of their first choice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{Alternative, Alternatives};
use serde::{Deserialize, Serialize};

use super::further::FurtherForm;
use super::request::DevicesForm;
use super::{forms, values};

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct AlternativesForm {
    first_name: String,
    others: Vec<AlternativeForm>,
}

impl From<&Alternatives> for AlternativesForm {
    fn from(Alternatives { first_name, others }: &Alternatives) -> Self {
        Self { first_name: first_name.clone(), others: forms(others) }
    }
}

impl From<AlternativesForm> for Alternatives {
    fn from(AlternativesForm { first_name, others }: AlternativesForm) -> Self {
        Self { first_name, others: values(others) }
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct AlternativeForm {
    name: String,
    rank: u16,
    #[serde(flatten)]
    devices: DevicesForm,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    models: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    further: Option<FurtherForm>,
}

impl From<&Alternative> for AlternativeForm {
    fn from(Alternative { name, rank, devices, models, attributes, further }: &Alternative) -> Self {
        Self {
            name: name.clone(),
            rank: *rank,
            devices: devices.into(),
            models: models.clone(),
            attributes: attributes.clone(),
            further: further.as_deref().map(FurtherForm::from),
        }
    }
}

impl From<AlternativeForm> for Alternative {
    fn from(AlternativeForm { name, rank, devices, models, attributes, further }: AlternativeForm) -> Self {
        let further = further.map(|further| Arc::new(further.into()));
        Self { name, rank, devices: devices.into(), models, attributes, further }
    }
}

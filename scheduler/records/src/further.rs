//! Further requests of claims for devices.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_scheduler_core::{Comparison, DeviceLink, DeviceProperty, DeviceRequest, FurtherRequest, FurtherRequests};
use serde::{Deserialize, Serialize};

use super::request::DevicesForm;
use super::{forms, values};

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct FurtherForm {
    first_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    requests: Vec<FurtherRequestForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    links: Vec<LinkForm>,
}

impl From<&FurtherRequests> for FurtherForm {
    fn from(FurtherRequests { first_name, requests, links }: &FurtherRequests) -> Self {
        Self { first_name: first_name.clone(), requests: forms(requests), links: forms(links) }
    }
}

impl From<FurtherForm> for FurtherRequests {
    fn from(FurtherForm { first_name, requests, links }: FurtherForm) -> Self {
        Self { first_name, requests: values(requests), links: values(links) }
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct FurtherRequestForm {
    name: String,
    #[serde(flatten)]
    devices: DevicesForm,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    models: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
}

impl From<&FurtherRequest> for FurtherRequestForm {
    fn from(FurtherRequest { name, devices, models, attributes }: &FurtherRequest) -> Self {
        Self { name: name.clone(), devices: devices.into(), models: models.clone(), attributes: attributes.clone() }
    }
}

impl From<FurtherRequestForm> for FurtherRequest {
    fn from(FurtherRequestForm { name, devices, models, attributes }: FurtherRequestForm) -> Self {
        Self { name, devices: DeviceRequest::from(devices), models, attributes }
    }
}

#[derive(Serialize, Deserialize)]
struct LinkForm {
    requests: BTreeSet<u16>,
    property: PropertyForm,
    comparison: ComparisonForm,
}

impl From<&DeviceLink> for LinkForm {
    fn from(DeviceLink { requests, property, comparison }: &DeviceLink) -> Self {
        Self { requests: requests.clone(), property: property.into(), comparison: (*comparison).into() }
    }
}

impl From<LinkForm> for DeviceLink {
    fn from(LinkForm { requests, property, comparison }: LinkForm) -> Self {
        Self { requests, property: property.into(), comparison: comparison.into() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PropertyForm {
    Identity,
    NvlinkGroup,
    Switch,
    Attribute(String),
}

impl From<&DeviceProperty> for PropertyForm {
    fn from(property: &DeviceProperty) -> Self {
        match property {
            DeviceProperty::Identity => Self::Identity,
            DeviceProperty::NvlinkGroup => Self::NvlinkGroup,
            DeviceProperty::Switch => Self::Switch,
            DeviceProperty::Attribute(name) => Self::Attribute(name.clone()),
        }
    }
}

impl From<PropertyForm> for DeviceProperty {
    fn from(property: PropertyForm) -> Self {
        match property {
            PropertyForm::Identity => Self::Identity,
            PropertyForm::NvlinkGroup => Self::NvlinkGroup,
            PropertyForm::Switch => Self::Switch,
            PropertyForm::Attribute(name) => Self::Attribute(name),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ComparisonForm {
    Same,
    Distinct,
}

impl From<Comparison> for ComparisonForm {
    fn from(comparison: Comparison) -> Self {
        match comparison {
            Comparison::Same => Self::Same,
            Comparison::Distinct => Self::Distinct,
        }
    }
}

impl From<ComparisonForm> for Comparison {
    fn from(comparison: ComparisonForm) -> Self {
        match comparison {
            ComparisonForm::Same => Self::Same,
            ComparisonForm::Distinct => Self::Distinct,
        }
    }
}

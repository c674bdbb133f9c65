//! The requests of claims in the counted mix.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    Alignment, Bytes, Constraints, DeviceCore, DeviceMemory, DeviceRequest, MilliCpu, PlacementRules, Preferences,
    Request,
};
use serde::{Deserialize, Serialize};

use super::alternatives::AlternativesForm;
use super::constraints::{NodeTermForm, PreferenceForm, TolerationForm};
use super::further::FurtherForm;
use super::peers::PeersForm;
use super::{forms, values};

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct RequestForm {
    cpu_millis: u64,
    memory_bytes: u64,
    #[serde(flatten)]
    devices: DevicesForm,
    #[serde(skip_serializing_if = "Option::is_none")]
    further: Option<FurtherForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alternatives: Option<AlternativesForm>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    models: BTreeSet<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tolerations: Vec<TolerationForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    node_terms: Vec<NodeTermForm>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    preferences: Vec<PreferenceForm>,
    nvlink: AlignmentForm,
    switch: AlignmentForm,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_threshold_percent: Option<u8>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counted: BTreeMap<String, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<PeersForm>,
}

impl From<&Request> for RequestForm {
    fn from(request: &Request) -> Self {
        let Request { cpu, memory, devices, further, alternatives, constraints, preferences, rules, counted, peers } =
            request;
        let Constraints { models, attributes, labels, tolerations, node_terms } = constraints;
        let PlacementRules { nvlink, switch, memory_threshold_percent } = rules;
        Self {
            cpu_millis: cpu.get(),
            memory_bytes: memory.get(),
            devices: devices.into(),
            further: further.as_deref().map(FurtherForm::from),
            alternatives: alternatives.as_deref().map(AlternativesForm::from),
            models: models.clone(),
            attributes: attributes.clone(),
            labels: labels.clone(),
            tolerations: forms(tolerations),
            node_terms: forms(node_terms),
            preferences: preferences.as_deref().map(|all| forms(&all.0)).unwrap_or_default(),
            nvlink: (*nvlink).into(),
            switch: (*switch).into(),
            memory_threshold_percent: *memory_threshold_percent,
            counted: counted.clone(),
            peers: peers.as_deref().map(PeersForm::from),
        }
    }
}

impl From<RequestForm> for Request {
    fn from(form: RequestForm) -> Self {
        Self {
            cpu: MilliCpu::new(form.cpu_millis),
            memory: Bytes::new(form.memory_bytes),
            devices: form.devices.into(),
            further: form.further.map(|further| Arc::new(further.into())),
            alternatives: form.alternatives.map(|alternatives| Arc::new(alternatives.into())),
            constraints: Constraints {
                models: form.models,
                attributes: form.attributes,
                labels: form.labels,
                tolerations: values(form.tolerations),
                node_terms: values(form.node_terms),
            },
            preferences: (!form.preferences.is_empty()).then(|| Arc::new(Preferences(values(form.preferences)))),
            rules: PlacementRules {
                nvlink: form.nvlink.into(),
                switch: form.switch.into(),
                memory_threshold_percent: form.memory_threshold_percent,
            },
            counted: form.counted,
            peers: form.peers.map(|peers| Arc::new(peers.into())),
        }
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct DevicesForm {
    device_count: u16,
    device_core_millis: u32,
    device_memory: DeviceMemoryForm,
}

impl From<&DeviceRequest> for DevicesForm {
    fn from(DeviceRequest { count, core, memory }: &DeviceRequest) -> Self {
        Self { device_count: *count, device_core_millis: core.get(), device_memory: (*memory).into() }
    }
}

impl From<DevicesForm> for DeviceRequest {
    fn from(DevicesForm { device_count, device_core_millis, device_memory }: DevicesForm) -> Self {
        Self { count: device_count, core: DeviceCore::new(device_core_millis), memory: device_memory.into() }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DeviceMemoryForm {
    Bytes(u64),
    Thousandths(u32),
}

impl Default for DeviceMemoryForm {
    fn default() -> Self {
        Self::Bytes(0)
    }
}

impl From<DeviceMemory> for DeviceMemoryForm {
    fn from(memory: DeviceMemory) -> Self {
        match memory {
            DeviceMemory::Bytes(bytes) => Self::Bytes(bytes.get()),
            DeviceMemory::Thousandths(part) => Self::Thousandths(part),
        }
    }
}

impl From<DeviceMemoryForm> for DeviceMemory {
    fn from(form: DeviceMemoryForm) -> Self {
        match form {
            DeviceMemoryForm::Bytes(bytes) => Self::Bytes(Bytes::new(bytes)),
            DeviceMemoryForm::Thousandths(part) => Self::Thousandths(part),
        }
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum AlignmentForm {
    #[default]
    Any,
    Preferred,
    Required,
}

impl From<Alignment> for AlignmentForm {
    fn from(alignment: Alignment) -> Self {
        match alignment {
            Alignment::Any => Self::Any,
            Alignment::Preferred => Self::Preferred,
            Alignment::Required => Self::Required,
        }
    }
}

impl From<AlignmentForm> for Alignment {
    fn from(form: AlignmentForm) -> Self {
        match form {
            AlignmentForm::Any => Self::Any,
            AlignmentForm::Preferred => Self::Preferred,
            AlignmentForm::Required => Self::Required,
        }
    }
}

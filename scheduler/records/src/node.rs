//! Records of nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_scheduler_core::{Bytes, DeviceSpec, Health, MilliCpu, NodeSpec};
use aliquot_scheduler_engine::NodeRecord;
use serde::{Deserialize, Serialize};

use super::constraints::TaintForm;
use super::peers::PeersForm;
use super::{forms, values};

#[derive(Serialize, Deserialize)]
pub(super) struct NodeForm {
    spec: SpecForm,
    session: u64,
    #[serde(default)]
    has_lapsed: bool,
    #[serde(default, skip_serializing_if = "super::is_zero")]
    lease_ms: u64,
}

impl From<&NodeRecord> for NodeForm {
    fn from(NodeRecord { spec, session, has_lapsed, lease_ms }: &NodeRecord) -> Self {
        Self { spec: spec.into(), session: *session, has_lapsed: *has_lapsed, lease_ms: *lease_ms }
    }
}

impl From<NodeForm> for NodeRecord {
    fn from(NodeForm { spec, session, has_lapsed, lease_ms }: NodeForm) -> Self {
        Self { spec: spec.into(), session, has_lapsed, lease_ms }
    }
}

#[derive(Serialize, Deserialize)]
struct SpecForm {
    name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    taints: Vec<TaintForm>,
    #[serde(default)]
    cpu_millis: u64,
    #[serde(default)]
    memory_bytes: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    devices: Vec<DeviceForm>,
    #[serde(default)]
    cordoned: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    counted: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    foreign: Vec<PeersForm>,
}

impl From<&NodeSpec> for SpecForm {
    fn from(spec: &NodeSpec) -> Self {
        let NodeSpec { name, labels, taints, cpu, memory, devices, cordoned, counted, foreign } = spec;
        Self {
            name: name.clone(),
            labels: labels.into(),
            taints: forms(taints),
            cpu_millis: cpu.get(),
            memory_bytes: memory.get(),
            devices: forms(devices),
            cordoned: *cordoned,
            counted: counted.clone(),
            foreign: foreign.iter().map(|peers| PeersForm::from(&**peers)).collect(),
        }
    }
}

impl From<SpecForm> for NodeSpec {
    fn from(form: SpecForm) -> Self {
        let SpecForm { name, labels, taints, cpu_millis, memory_bytes, devices, cordoned, counted, foreign } = form;
        Self {
            name,
            labels: labels.into(),
            taints: values(taints),
            cpu: MilliCpu::new(cpu_millis),
            memory: Bytes::new(memory_bytes),
            devices: values(devices),
            cordoned,
            counted,
            foreign: foreign.into_iter().map(|peers| Arc::new(peers.into())).collect(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct DeviceForm {
    uuid: String,
    #[serde(default)]
    model: String,
    #[serde(default)]
    memory_bytes: u64,
    #[serde(default)]
    health: HealthForm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nvlink_group: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    switch: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    numa: Option<u16>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
}

impl From<&DeviceSpec> for DeviceForm {
    fn from(spec: &DeviceSpec) -> Self {
        // The memory in use outside is not saved: the node's next report gives it.
        let DeviceSpec { uuid, model, memory, memory_outside: _, health, nvlink_group, switch, numa, attributes } =
            spec;
        Self {
            uuid: uuid.clone(),
            model: model.clone(),
            memory_bytes: memory.get(),
            health: (*health).into(),
            nvlink_group: *nvlink_group,
            switch: *switch,
            numa: *numa,
            attributes: attributes.into(),
        }
    }
}

impl From<DeviceForm> for DeviceSpec {
    fn from(form: DeviceForm) -> Self {
        let DeviceForm { uuid, model, memory_bytes, health, nvlink_group, switch, numa, attributes } = form;
        let (memory, health) = (Bytes::new(memory_bytes), health.into());
        let attributes = attributes.into();
        Self { uuid, model, memory, memory_outside: Bytes::ZERO, health, nvlink_group, switch, numa, attributes }
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
enum HealthForm {
    #[default]
    Healthy,
    Unhealthy,
}

impl From<Health> for HealthForm {
    fn from(health: Health) -> Self {
        match health {
            Health::Healthy => Self::Healthy,
            Health::Unhealthy => Self::Unhealthy,
        }
    }
}

impl From<HealthForm> for Health {
    fn from(form: HealthForm) -> Self {
        match form {
            HealthForm::Healthy => Self::Healthy,
            HealthForm::Unhealthy => Self::Unhealthy,
        }
    }
}

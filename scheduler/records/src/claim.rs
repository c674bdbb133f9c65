//! Records of claims.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Bytes, DeviceCore, LastEviction, MilliCpu};
use aliquot_scheduler_engine::{Amounts, ClaimRecord, DevicePart, EvictionRecord, InstanceRecord, Phase, ResizeRecord};
use serde::{Deserialize, Serialize};

use super::request::RequestForm;
use super::words::{ActionForm, GenerationForm, OwnerForm, ShareForm};
use super::{forms, values};

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
pub(super) struct ClaimForm {
    added_ms: u64,
    failures: u32,
    retry_at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    evicted: Option<EvictionForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_eviction: Option<LastEvictionForm>,
    is_ended: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    resize: Option<ResizeForm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<InstanceForm>,
}

impl From<&ClaimRecord> for ClaimForm {
    fn from(record: &ClaimRecord) -> Self {
        let ClaimRecord { added_ms, failures, retry_at_ms, evicted, last_eviction, is_ended, resize, instance } =
            record;
        Self {
            added_ms: *added_ms,
            failures: *failures,
            retry_at_ms: *retry_at_ms,
            evicted: evicted.as_ref().map(EvictionForm::from),
            last_eviction: last_eviction.as_ref().map(LastEvictionForm::from),
            is_ended: *is_ended,
            resize: resize.as_ref().map(ResizeForm::from),
            instance: instance.as_ref().map(InstanceForm::from),
        }
    }
}

impl From<ClaimForm> for ClaimRecord {
    fn from(form: ClaimForm) -> Self {
        let ClaimForm { added_ms, failures, retry_at_ms, evicted, last_eviction, is_ended, resize, instance } = form;
        Self {
            added_ms,
            failures,
            retry_at_ms,
            evicted: evicted.map(EvictionRecord::from),
            last_eviction: last_eviction.map(LastEviction::from),
            is_ended,
            resize: resize.map(ResizeRecord::from),
            instance: instance.map(InstanceRecord::from),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct EvictionForm {
    action: ActionForm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<OwnerForm>,
    #[serde(default)]
    by_name: String,
    at_ms: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shares: Vec<ShareForm>,
}

impl From<&EvictionRecord> for EvictionForm {
    fn from(record: &EvictionRecord) -> Self {
        let EvictionRecord { action, by, by_name, at_ms, shares } = record;
        Self {
            action: (*action).into(),
            by: by.as_ref().map(OwnerForm::from),
            by_name: by_name.clone(),
            at_ms: *at_ms,
            shares: forms(shares),
        }
    }
}

impl From<EvictionForm> for EvictionRecord {
    fn from(form: EvictionForm) -> Self {
        let EvictionForm { action, by, by_name, at_ms, shares } = form;
        Self { action: action.into(), by: by.map(Into::into), by_name, at_ms, shares: values(shares) }
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct LastEvictionForm {
    #[serde(skip_serializing_if = "Option::is_none")]
    ran_since_ms: Option<u64>,
    refusals: u32,
    left_alone_until_ms: u64,
}

impl From<&LastEviction> for LastEvictionForm {
    fn from(LastEviction { ran_since_ms, refusals, left_alone_until_ms }: &LastEviction) -> Self {
        Self { ran_since_ms: *ran_since_ms, refusals: *refusals, left_alone_until_ms: *left_alone_until_ms }
    }
}

impl From<LastEvictionForm> for LastEviction {
    fn from(LastEvictionForm { ran_since_ms, refusals, left_alone_until_ms }: LastEvictionForm) -> Self {
        Self { ran_since_ms, refusals, left_alone_until_ms }
    }
}

#[derive(Serialize, Deserialize)]
struct ResizeForm {
    from: RequestForm,
    held: RequestForm,
}

impl From<&ResizeRecord> for ResizeForm {
    fn from(ResizeRecord { from, held }: &ResizeRecord) -> Self {
        Self { from: from.into(), held: held.into() }
    }
}

impl From<ResizeForm> for ResizeRecord {
    fn from(ResizeForm { from, held }: ResizeForm) -> Self {
        Self { from: from.into(), held: held.into() }
    }
}

#[derive(Serialize, Deserialize)]
struct InstanceForm {
    node: String,
    session: u64,
    generation: GenerationForm,
    phase: PhaseForm,
    #[serde(default)]
    started_ms: u64,
    amounts: AmountsForm,
}

impl From<&InstanceRecord> for InstanceForm {
    fn from(record: &InstanceRecord) -> Self {
        let InstanceRecord { node, session, generation, phase, started_ms, amounts } = record;
        Self {
            node: node.as_str().to_owned(),
            session: *session,
            generation: (*generation).into(),
            phase: (*phase).into(),
            started_ms: *started_ms,
            amounts: amounts.into(),
        }
    }
}

impl From<InstanceForm> for InstanceRecord {
    fn from(form: InstanceForm) -> Self {
        let InstanceForm { node, session, generation, phase, started_ms, amounts } = form;
        Self {
            node: node.into(),
            session,
            generation: generation.into(),
            phase: phase.into(),
            started_ms,
            amounts: amounts.into(),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PhaseForm {
    Starting,
    Running,
    Stopping,
}

impl From<Phase> for PhaseForm {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Starting => Self::Starting,
            Phase::Running => Self::Running,
            Phase::Stopping => Self::Stopping,
        }
    }
}

impl From<PhaseForm> for Phase {
    fn from(form: PhaseForm) -> Self {
        match form {
            PhaseForm::Starting => Self::Starting,
            PhaseForm::Running => Self::Running,
            PhaseForm::Stopping => Self::Stopping,
        }
    }
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct AmountsForm {
    cpu_millis: u64,
    memory_bytes: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<DevicePartForm>,
    #[serde(skip_serializing_if = "super::is_zero")]
    alternative: u16,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    counted: BTreeMap<String, u64>,
}

impl From<&Amounts> for AmountsForm {
    fn from(amounts: &Amounts) -> Self {
        let Amounts { cpu, memory, devices, alternative, counted } = amounts;
        let (cpu_millis, memory_bytes) = (cpu.get(), memory.get());
        let (devices, alternative, counted) = (forms(devices), *alternative, counted.clone());
        Self { cpu_millis, memory_bytes, devices, alternative, counted }
    }
}

impl From<AmountsForm> for Amounts {
    fn from(form: AmountsForm) -> Self {
        let AmountsForm { cpu_millis, memory_bytes, devices, alternative, counted } = form;
        let (cpu, memory) = (MilliCpu::new(cpu_millis), Bytes::new(memory_bytes));
        Self { cpu, memory, devices: values(devices), alternative, counted }
    }
}

#[derive(Serialize, Deserialize)]
struct DevicePartForm {
    uuid: String,
    core_millis: u32,
    memory_bytes: u64,
}

impl From<&DevicePart> for DevicePartForm {
    fn from(DevicePart { uuid, core, memory }: &DevicePart) -> Self {
        Self { uuid: uuid.clone(), core_millis: core.get(), memory_bytes: memory.get() }
    }
}

impl From<DevicePartForm> for DevicePart {
    fn from(DevicePartForm { uuid, core_millis, memory_bytes }: DevicePartForm) -> Self {
        Self { uuid, core: DeviceCore::new(core_millis), memory: Bytes::new(memory_bytes) }
    }
}

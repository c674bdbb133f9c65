//! What instances hold, compared with what claims ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use aliquot_scheduler_core::{
    Bytes, Claim, DeviceCore, DeviceMemory, DeviceRequest, DeviceSpec, MilliCpu, NodeSpec, Request,
};

use crate::command::{Amounts, DevicePart};

/// Whether what an instance holds is what its claim asks for: so much of each of so many different devices, and so much
/// CPU, memory and what is only counted of the node.
pub(super) fn is_what_is_asked_for(claim: &Claim, amounts: &Amounts, node: &NodeSpec) -> bool {
    let Request { cpu, memory, devices: wanted, counted, .. } = &claim.request;
    let mut devices = BTreeSet::new();
    let is_wanted = |part: &DevicePart, device: &DeviceSpec| {
        part.core == wanted.core && wanted.memory.on(device.memory) == part.memory
    };
    (amounts.cpu, amounts.memory, amounts.devices.len()) == (*cpu, *memory, usize::from(wanted.count))
        && amounts.counted == *counted
        && amounts.devices.iter().all(|part| {
            let device = node.devices.iter().find(|device| device.uuid == part.uuid);
            device.is_some_and(|device| is_wanted(part, device)) && devices.insert(&part.uuid)
        })
}

/// A claim with what its namespace gave it when it was admitted: where it asks for nothing, that is what it holds.
pub(super) fn as_given(mut claim: Arc<Claim>, amounts: &Amounts) -> Arc<Claim> {
    let Request { cpu, memory, devices, .. } = &claim.request;
    let (mut cpu, mut memory, mut devices) = (*cpu, *memory, *devices);
    if cpu == MilliCpu::ZERO {
        cpu = amounts.cpu;
    }
    if memory == Bytes::ZERO {
        memory = amounts.memory;
    }
    if let Some(part) = amounts.devices.first() {
        if devices.core == DeviceCore::ZERO {
            devices.core = part.core;
        }
        if matches!(devices.memory, DeviceMemory::Bytes(Bytes::ZERO) | DeviceMemory::Thousandths(0)) {
            devices.memory = DeviceMemory::Bytes(part.memory);
        }
    }
    // Most claims ask for all of it, and are shared as they are.
    if (cpu, memory, devices) != (claim.request.cpu, claim.request.memory, claim.request.devices) {
        let request = &mut Arc::make_mut(&mut claim).request;
        (request.cpu, request.memory, request.devices) = (cpu, memory, devices);
    }
    claim
}

/// These amounts as the books can say them: equal parts of different devices that the node has. What is held is in them,
/// and where parts differ, the most that is held of one device counts for each. The books know no other device.
pub(super) fn evened(amounts: &Amounts, node: &NodeSpec) -> Amounts {
    let mut held: BTreeMap<&str, (u32, Bytes)> = BTreeMap::new();
    for DevicePart { uuid, core, memory } in &amounts.devices {
        let part = held.entry(uuid).or_default();
        *part = (part.0.saturating_add(core.get()), [part.1, *memory].into_iter().sum());
    }
    held.retain(|uuid, part| *part != (0, Bytes::ZERO) && node.devices.iter().any(|device| device.uuid == *uuid));
    let core = held.values().map(|part| part.0).max().unwrap_or(0).min(DeviceCore::WHOLE.get());
    let memory = held.values().map(|part| part.1).max().unwrap_or_default();
    let part = |uuid: &str| DevicePart { uuid: uuid.to_owned(), core: DeviceCore::new(core), memory };
    Amounts { devices: held.into_keys().map(part).collect(), ..amounts.clone() }
}

/// A request for these amounts, which are even.
pub(super) fn request_of(amounts: &Amounts) -> Request {
    let devices = amounts.devices.first().map(|first| DeviceRequest {
        count: u16::try_from(amounts.devices.len()).unwrap_or(u16::MAX),
        core: first.core,
        memory: DeviceMemory::Bytes(first.memory),
    });
    Request {
        cpu: amounts.cpu,
        memory: amounts.memory,
        devices: devices.unwrap_or_default(),
        counted: amounts.counted.clone(),
        ..Request::default()
    }
}

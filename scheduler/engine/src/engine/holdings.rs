//! What instances hold, compared with what claims ask for.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use aliquot_scheduler_core::{
    Bytes, Claim, DeviceAllocation, DeviceCore, DeviceMemory, DeviceRequest, FurtherRequests, KnownNode, MilliCpu,
    NodeSpec, Request,
};

use crate::command::{Amounts, DevicePart};

/// A description of a node with its devices: as it was reported or saved, or as the books keep it.
pub(super) trait Devices {
    /// The name and the memory of each, in the machine's order.
    fn devices(&self) -> impl Iterator<Item = (&str, Bytes)>;
}

impl Devices for NodeSpec {
    fn devices(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.devices.iter().map(|device| (device.uuid.as_str(), device.memory))
    }
}

impl Devices for KnownNode {
    fn devices(&self) -> impl Iterator<Item = (&str, Bytes)> {
        self.devices.iter().map(|device| (&*device.uuid, device.memory))
    }
}

/// Whether an instance holds what its claim asks for: for each request the right part of the right number of different
/// devices, and the right amounts of CPU, memory and counted resources.
pub(super) fn is_what_is_asked_for(request: &Request, amounts: &Amounts, node: &impl Devices) -> bool {
    let Request { cpu, memory, counted, .. } = request;
    (amounts.cpu, amounts.memory) == (*cpu, *memory)
        && amounts.counted == *counted
        && arranged(request, amounts, node).is_some()
}

/// The index of the claim's alternative that these amounts are for: 0 for a claim without alternatives.
pub(super) fn choice_of(request: &Request, amounts: &Amounts) -> u16 {
    if request.choice_count() == 1 { 0 } else { amounts.alternative }
}

/// The parts of devices that an instance holds, in the order in which allocations list them; `None`: they are not what
/// the claim asks for. Nodes list them in any order.
pub(super) fn arranged(request: &Request, amounts: &Amounts, node: &impl Devices) -> Option<Vec<DeviceAllocation>> {
    let index = |uuid: &str| u16::try_from(node.devices().position(|(known, _)| known == uuid)?).ok();
    let part =
        |part: &DevicePart| Some(DeviceAllocation { device: index(&part.uuid)?, core: part.core, memory: part.memory });
    let mut parts: Vec<DeviceAllocation> = amounts.devices.iter().map(part).collect::<Option<_>>()?;
    parts.sort_by_key(|part| part.device);
    let memory = |device: u16| node.devices().nth(usize::from(device)).map(|(_, memory)| memory);
    let choice = choice_of(request, amounts);
    let wishes = (choice < request.choice_count()).then(|| request.wishes_of(choice))?;
    let mut wishes: Vec<(usize, &DeviceRequest)> = wishes.map(|wish| wish.devices).enumerate().collect();
    // Among requests for equal parts, the one for the most devices has the fewest ways to be met by different devices.
    wishes.sort_by_key(|(_, devices)| Reverse(devices.count));
    let mut arranged: BTreeMap<usize, Vec<DeviceAllocation>> = BTreeMap::new();
    for (place, devices) in wishes {
        let mut left: BTreeMap<u16, usize> = BTreeMap::new();
        let is_wanted = |part: &DeviceAllocation| {
            part.core == devices.core && memory(part.device).map(|all| devices.memory.on(all)) == Some(part.memory)
        };
        parts.iter().filter(|part| is_wanted(part)).for_each(|part| *left.entry(part.device).or_default() += 1);
        // Devices with several parts left go first, because one request can take only one part of each.
        let mut from: Vec<u16> = left.keys().copied().collect();
        from.sort_by_key(|device| Reverse(left.get(device).copied()));
        from.truncate(usize::from(devices.count));
        from.sort_unstable();
        let mut taken = Vec::with_capacity(from.len());
        for device in from {
            let position = parts.iter().position(|part| part.device == device && is_wanted(part))?;
            taken.push(parts.remove(position));
        }
        if taken.len() != usize::from(devices.count) {
            return None;
        }
        arranged.insert(place, taken);
    }
    parts.is_empty().then(|| arranged.into_values().flatten().collect())
}

/// The claim with the amounts that its namespace gave it at admission: where the claim itself asks for nothing, these
/// are the amounts that it holds.
pub(super) fn as_given(mut claim: Arc<Claim>, amounts: &Amounts) -> Arc<Claim> {
    let Request { cpu, memory, devices, .. } = &claim.request;
    let (mut cpu, mut memory, mut devices) = (*cpu, *memory, *devices);
    if cpu == MilliCpu::ZERO {
        cpu = amounts.cpu;
    }
    if memory == Bytes::ZERO {
        memory = amounts.memory;
    }
    if let Some(part) =
        amounts.devices.first().filter(|_| claim.request.further.is_none() && claim.request.choice_count() == 1)
    {
        if devices.core == DeviceCore::ZERO {
            devices.core = part.core;
        }
        if matches!(devices.memory, DeviceMemory::Bytes(Bytes::ZERO) | DeviceMemory::Thousandths(0)) {
            devices.memory = DeviceMemory::Bytes(part.memory);
        }
    }
    // Most claims specify everything themselves; they are shared unchanged.
    if (cpu, memory, devices) != (claim.request.cpu, claim.request.memory, claim.request.devices) {
        let request = &mut Arc::make_mut(&mut claim).request;
        (request.cpu, request.memory, request.devices) = (cpu, memory, devices);
    }
    claim
}

/// These amounts as far as the books can represent them: only devices that the node has, and at most all of a device's
/// time.
pub(super) fn known(amounts: &Amounts, node: &impl Devices) -> Amounts {
    let is_known = |part: &&DevicePart| {
        let is_nothing = part.core == DeviceCore::ZERO && part.memory == Bytes::ZERO;
        !is_nothing && node.devices().any(|(uuid, _)| uuid == part.uuid)
    };
    let at_most_all = |part: &DevicePart| DevicePart { core: part.core.min(DeviceCore::WHOLE), ..part.clone() };
    Amounts { devices: amounts.devices.iter().filter(is_known).map(at_most_all).collect(), ..amounts.clone() }
}

/// A request for these amounts.
pub(super) fn request_of(amounts: &Amounts) -> Request {
    let parts = amounts.devices.iter().map(|part| (part.uuid.as_str(), part.core, part.memory));
    let (devices, further) = FurtherRequests::for_parts(parts);
    Request {
        cpu: amounts.cpu,
        memory: amounts.memory,
        devices,
        further,
        counted: amounts.counted.clone(),
        ..Request::default()
    }
}

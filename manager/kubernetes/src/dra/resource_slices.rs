//! Describes the node's devices to the API server, in resource slices.
//!
//! Every device can be allocated many times: a claim takes a percentage of its time (`core`) and a number of bytes of
//! its memory (`memory`). If a claim does not name a capacity, it takes all of it, so a claim for a device gets the
//! whole device: the scheduler cannot compute a proportional part, and a default that is too small breaks programs. An
//! API server that does not know consumable capacity drops these fields, and each device goes to one claim as a whole.
//!
//! Every device has every attribute of ours, even if its value is not known: an expression on an attribute that one
//! device lacks fails, and with it the scheduling of the claim that contains it. An unknown attribute is empty, or
//! version 0.0.0. Attributes by which devices are compared (`nvlinkClique`, `parentUUID`) are then the device's own
//! UUID, so that two devices never seem to be the same because of missing knowledge. Kubernetes' own attributes are
//! compared between drivers, and are left out if they are not known.
//!
//! A GPU that is partitioned by MIG is not offered itself; its instances are devices like others. Instances that could
//! be made ([`partitions`](super::partitions)) are devices that go to one claim as a whole.

use std::collections::{BTreeMap, BTreeSet};

use aliquot_node::{self as node, Devices, MigInstance};
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, CounterSet, Device, DeviceAttribute, DeviceCapacity, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::names::{CORE, MEMORY, device_name};
use super::partitions::{Offer, View, counter_sets};

/// Maximum bytes of an attribute's text.
const TEXT_BYTES_MAX: usize = 64;
/// The unit in which memory is given out.
const MEMORY_STEP_BYTES: u64 = 1 << 20;
/// The taint of a device that cannot be given out now. Pods that use it already are left alone, because it may recover.
const TAINT_UNHEALTHY: &str = "gpu.aliquot.dev/unhealthy";

/// The features of resource slices that the API server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Support {
    /// Taints. Without them, devices that cannot be given out now are left out.
    pub taints: bool,
    /// Counters. Without them no instances are offered, because the scheduler would not see that they exclude each
    /// other.
    pub counters: bool,
    /// Consumable capacity. Without it each claim gets a whole device, whatever it asks for.
    pub shares: bool,
}

/// The content for the API server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Content {
    /// The devices: first those that are given out in parts, in the order of the inventory, then the instances that
    /// could be made.
    pub devices: Vec<Device>,
    /// The counters that instances take, GPU by GPU.
    pub counter_sets: Vec<CounterSet>,
}

/// The content that describes the node's devices.
#[must_use]
pub(super) fn content(view: &View, support: Support) -> Content {
    let node = view.devices.as_ref();
    let cliques = nvlink_cliques(&node.devices);
    let is_told = |device: &node::Device| support.taints || device.problem.is_none();
    let shared = view.shared().filter(|device| is_told(device));
    let shared = shared.filter_map(|device| shared_device(node, device, cliques.get(device.uuid.as_str()).copied()));
    let mut offers = if support.counters { view.offers() } else { Vec::new() };
    offers.retain(|offer| is_told(offer.gpu));
    let instances = offers.iter().filter_map(|offer| instance(node, offer));
    Content { devices: shared.chain(instances).collect(), counter_sets: counter_sets(&offers) }
}

fn shared_device(node: &Devices, device: &node::Device, clique: Option<&str>) -> Option<Device> {
    Some(Device {
        name: device_name(&device.uuid)?,
        attributes: Some(attributes(node, device, clique.unwrap_or(&device.uuid))),
        capacity: Some(BTreeMap::from([(CORE.into(), core()), (MEMORY.into(), memory(device.memory_bytes))])),
        allow_multiple_allocations: Some(true),
        taints: taints(device),
        ..Device::default()
    })
}

/// The device for an instance that could be made. It goes to one claim as a whole; otherwise its first user would
/// decide about it for all others. A user who wants to share an instance has an administrator make it; such an instance
/// is published as a GPU is.
fn instance(node: &Devices, offer: &Offer<'_>) -> Option<Device> {
    let memory_bytes = offer.profile.memory_bytes / MEMORY_STEP_BYTES * MEMORY_STEP_BYTES;
    let described = node::Device {
        // An instance has no UUID before it is made.
        uuid: String::new(),
        mig_instance: Some(MigInstance {
            gpu_uuid: offer.gpu.uuid.clone(),
            profile: offer.profile.name.clone(),
            placement: Some(offer.placement),
        }),
        ..offer.gpu.clone()
    };
    let whole = |value: String| DeviceCapacity { value: Quantity(value), request_policy: None };
    let name = offer.name()?;
    Some(Device {
        attributes: Some(attributes(node, &described, &name)),
        name,
        capacity: Some(BTreeMap::from([
            (CORE.into(), whole("100".into())),
            (MEMORY.into(), whole(binary(memory_bytes))),
        ])),
        consumes_counters: Some(vec![offer.consumption()?]),
        taints: taints(offer.gpu),
        ..Device::default()
    })
}

fn taints(device: &node::Device) -> Option<Vec<DeviceTaint>> {
    let taint = || DeviceTaint { key: TAINT_UNHEALTHY.into(), effect: "NoSchedule".into(), ..DeviceTaint::default() };
    device.problem.as_ref().map(|_| vec![taint()])
}

fn attributes(node: &Devices, device: &node::Device, clique: &str) -> BTreeMap<String, DeviceAttribute> {
    let mig = device.mig_instance.as_ref();
    let architecture = device.compute_capability.and_then(architecture);
    let capability = device.compute_capability.map(|(major, minor)| format!("{major}.{minor}.0"));
    let placement = mig.and_then(|mig| mig.placement).map(|placement| placement.to_string());
    let own = [
        ("uuid", text(&device.uuid)),
        ("type", text(if mig.is_some() { "mig" } else { "gpu" })),
        ("productName", text(&device.model)),
        ("architecture", text(architecture.unwrap_or_default())),
        ("computeCapability", version(capability)),
        ("driverVersion", version(semantic(&node.driver_version))),
        ("cudaVersion", version(semantic(&node.cuda_version))),
        ("healthy", DeviceAttribute { bool: Some(device.problem.is_none()), ..DeviceAttribute::default() }),
        ("nvlinkClique", text(clique)),
        ("parentUUID", text(mig.map_or(&device.uuid, |mig| &mig.gpu_uuid))),
        ("migProfile", text(mig.map_or("", |mig| &mig.profile))),
        ("migPlacement", text(placement.as_deref().unwrap_or_default())),
    ];
    let of_all_drivers = [
        ("resource.kubernetes.io/pciBusID", device.pci_bus_id.as_deref().map(text)),
        ("resource.kubernetes.io/pcieRoot", device.pcie_root.as_deref().map(text)),
        ("resource.kubernetes.io/numaNode", device.numa_node.map(int)),
    ];
    let known = of_all_drivers.into_iter().filter_map(|(name, attribute)| Some((name, attribute?)));
    own.into_iter().chain(known).map(|(name, attribute)| (name.to_owned(), attribute)).collect()
}

fn int(number: u32) -> DeviceAttribute {
    DeviceAttribute { int: Some(number.into()), ..DeviceAttribute::default() }
}

fn version(semantic: Option<String>) -> DeviceAttribute {
    DeviceAttribute { version: Some(semantic.unwrap_or_else(|| "0.0.0".into())), ..DeviceAttribute::default() }
}

/// A text attribute, cut to the maximum length.
fn text(text: &str) -> DeviceAttribute {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let string = text.get(..end).unwrap_or_default().to_owned();
    DeviceAttribute { string: Some(string), ..DeviceAttribute::default() }
}

/// A version in the form of semantic versions: three numbers, none with a leading zero. Missing numbers of `version`
/// are added.
fn semantic(version: &str) -> Option<String> {
    let mut numbers = [0_u64; 3];
    let parts: Vec<&str> = version.split('.').collect();
    for (at, part) in parts.into_iter().enumerate() {
        *numbers.get_mut(at)? = part.parse().ok()?;
    }
    let [major, minor, patch] = numbers;
    Some(format!("{major}.{minor}.{patch}"))
}

/// NVIDIA's name for the architecture with this compute capability.
fn architecture(capability: (u32, u32)) -> Option<&'static str> {
    Some(match capability {
        (5, _) => "Maxwell",
        (6, _) => "Pascal",
        (7, 5) => "Turing",
        (7, _) => "Volta",
        (8, 9) => "Ada Lovelace",
        (8, _) => "Ampere",
        (9, _) => "Hopper",
        (10..=12, _) => "Blackwell",
        _ => return None,
    })
}

fn core() -> DeviceCapacity {
    capacity("100", "1", "1", "100")
}

/// A capacity of memory in whole steps, so that the default and the maximum are values that can be requested.
fn memory(bytes: u64) -> DeviceCapacity {
    let whole = binary(bytes / MEMORY_STEP_BYTES * MEMORY_STEP_BYTES);
    let step = binary(MEMORY_STEP_BYTES);
    capacity(&whole, &step, &step, &whole)
}

/// A number of bytes in the form that the API server returns, so that the two can be compared.
fn binary(bytes: u64) -> String {
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let whole = suffixes.iter().zip((0..64).step_by(10)).rev().find(|(_, bits)| bytes.trailing_zeros() >= *bits);
    whole.map_or_else(|| bytes.to_string(), |(suffix, bits)| format!("{}{suffix}", bytes >> bits))
}

/// A capacity that claims take a part of; a claim that does not name it takes all of it.
fn capacity(value: &str, min: &str, step: &str, max: &str) -> DeviceCapacity {
    let quantity = |text: &str| Quantity(text.into());
    DeviceCapacity {
        value: quantity(value),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(quantity(value)),
            valid_range: Some(CapacityRequestPolicyRange {
                min: quantity(min),
                step: Some(quantity(step)),
                max: Some(quantity(max)),
            }),
            valid_values: None,
        }),
    }
}

/// The group of devices that NVLink connects, directly or through each other, for each device that is not alone. A
/// group is named by its smallest UUID.
fn nvlink_cliques(devices: &[node::Device]) -> BTreeMap<&str, &str> {
    let mut peers: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for device in devices {
        for peer in &device.nvlink_peers {
            peers.entry(&device.uuid).or_default().insert(peer);
            peers.entry(peer).or_default().insert(&device.uuid);
        }
    }
    let mut cliques = BTreeMap::new();
    // Starts at the smallest UUID, so that it is found first in each group.
    for &first in peers.keys() {
        let mut open = vec![first];
        while let Some(device) = open.pop() {
            if !cliques.contains_key(device) {
                cliques.insert(device, first);
                open.extend(peers.get(device).into_iter().flatten());
            }
        }
    }
    cliques
}

#[cfg(test)]
mod tests;

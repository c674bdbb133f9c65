//! A node's books: what is free on it and on each of its devices.

mod beyond;
mod device;
mod holding;

use std::sync::Arc;

use crate::state::node_parts::NodeParts;
use crate::vocabulary::claim::{Allocation, ClaimId};
use crate::vocabulary::known_node::{DeviceKind, KnownDevice, KnownNode};
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::spec::{Health, NodeSpec};

use beyond::Beyond;
pub use device::Device;

/// A node, its free amounts, and the claims that are placed on it.
///
/// Invariant, for CPU, memory and each counted resource of the node, and for time and memory of each device: free +
/// held by claims = capacity. If claims were seen running that hold more than the capacity: free = 0, and held by
/// claims = capacity + what is held beyond it.
#[derive(Clone, Debug)]
pub struct Node {
    /// The part that stays the same as claims come and go. Copies of the node share it.
    spec: Arc<KnownNode>,
    cpu_free: MilliCpu,
    memory_free: Bytes,
    /// The free amount of each counted resource, in the order of the names that the node has.
    counted_free: Box<[u64]>,
    devices: Box<[Device]>,
    /// In order. There are too few of them for a tree to help.
    claims: Vec<ClaimId>,
    /// How many device requests of its claims have each pair of number of devices and time of each, in order.
    sorts: Vec<((u16, DeviceCore), u32)>,
    /// The number of healthy devices that are wholly free.
    idle_devices: u16,
    /// Sum of the devices' [`Device::usable_thousandths`].
    usable_thousandths: u32,
    /// The most free time on any one healthy device.
    core_free_max: DeviceCore,
    one_model: bool,
    one_numa_node: bool,
    /// Whether a taint makes it less preferred. It is asked for with each bid, and most nodes have none.
    disliked: bool,
    /// What claims hold beyond the capacity; `None`: nothing.
    beyond: Option<Box<Beyond>>,
}

impl Node {
    pub(crate) fn new(spec: KnownNode) -> Self {
        let one_model = spec.devices.windows(2).all(|pair| pair[0].model_resource == pair[1].model_resource);
        let one_numa_node = spec.devices.windows(2).all(|pair| pair[0].numa == pair[1].numa);
        Self::empty(Arc::new(spec), one_model, one_numa_node)
    }

    fn empty(spec: Arc<KnownNode>, one_model: bool, one_numa_node: bool) -> Self {
        let mut node = Self {
            cpu_free: spec.cpu,
            memory_free: spec.memory,
            counted_free: spec.counted.values().copied().collect(),
            devices: spec.devices.iter().map(|device| Device::new(device)).collect(),
            claims: Vec::new(),
            sorts: Vec::new(),
            idle_devices: 0,
            usable_thousandths: 0,
            core_free_max: DeviceCore::ZERO,
            one_model,
            one_numa_node,
            disliked: spec.has_disliked_taint(),
            beyond: None,
            spec,
        };
        node.derive();
        node
    }

    /// The node as it would be without claims.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self::empty(self.spec.clone(), self.one_model, self.one_numa_node)
    }

    /// The node as it would be without claims, and with all of its devices healthy.
    pub(crate) fn at_best(&self) -> Self {
        if self.spec.devices.iter().all(|device| device.health == Health::Healthy) {
            return self.emptied();
        }
        let healthy = |device: &KnownDevice| KnownDevice {
            uuid: device.uuid.clone(),
            kind: Arc::new(DeviceKind { health: Health::Healthy, ..(*device.kind).clone() }),
        };
        Self::new(KnownNode { devices: self.spec.devices.iter().map(healthy).collect(), ..(*self.spec).clone() })
    }

    /// What the node has and is, without regard to the claims on it.
    #[must_use]
    pub fn spec(&self) -> &KnownNode {
        &self.spec
    }

    /// CPU that no claim holds.
    #[must_use]
    pub fn cpu_free(&self) -> MilliCpu {
        self.cpu_free
    }

    /// Node memory that no claim holds.
    #[must_use]
    pub fn memory_free(&self) -> Bytes {
        self.memory_free
    }

    /// The amount of a counted resource that no claim holds.
    #[must_use]
    pub fn counted_free(&self, name: &str) -> u64 {
        self.counted_place(name).map_or(0, |place| self.counted_free[place])
    }

    /// The position of a counted resource in the amounts; `None`: the node has none of it.
    fn counted_place(&self, name: &str) -> Option<usize> {
        self.spec.counted.keys().position(|known| known == name)
    }

    /// Whether enough of each counted resource is free for a request.
    pub(crate) fn has_counted(&self, request: &Request) -> bool {
        self.lacking_counted(request).next().is_none()
    }

    /// The counted resources of which too little is free for a request: name, requested amount, free amount.
    pub(crate) fn lacking_counted<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Iterator<Item = (&'a str, u64, u64)> + use<'a> {
        let compared =
            request.counted.iter().map(move |(name, wanted)| (name.as_str(), *wanted, self.counted_free(name)));
        compared.filter(|(_, wanted, free)| wanted > free)
    }

    /// The devices, in the machine's order.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The claims that are placed here.
    pub fn claims(&self) -> impl Iterator<Item = ClaimId> {
        self.claims.iter().copied()
    }

    /// The different pairs of number of devices and time of each that claims with devices here have asked for.
    pub fn sorts(&self) -> impl Iterator<Item = (u16, DeviceCore)> {
        self.sorts.iter().map(|(sort, _)| *sort)
    }

    /// The number of healthy devices of which no claim holds anything.
    #[must_use]
    pub fn idle_devices(&self) -> u16 {
        self.idle_devices
    }

    /// The sum over its devices of the part that can still be given out in time and memory alike, in thousandths of a
    /// device.
    #[must_use]
    pub fn usable_thousandths(&self) -> u32 {
        self.usable_thousandths
    }

    /// The most free time on any one healthy device.
    #[must_use]
    pub fn core_free_max(&self) -> DeviceCore {
        self.core_free_max
    }

    /// Whether all its devices are of the same model.
    #[must_use]
    pub fn has_one_model(&self) -> bool {
        self.one_model
    }

    /// Whether it has a taint that does not keep claims away, but makes it less preferred.
    pub(crate) fn has_disliked_taint(&self) -> bool {
        self.disliked
    }

    /// Whether claims hold more of the node, or of one of its devices, than there is.
    #[must_use]
    pub fn is_over_committed(&self) -> bool {
        self.beyond.is_some()
    }

    /// Whether an allocation holds some of a resource of which more is held than there is.
    pub(crate) fn holds_over_committed(&self, request: &Request, allocation: &Allocation) -> bool {
        let Some(beyond) = &self.beyond else { return false };
        let of_device = |device: u16| {
            let beyond = beyond.devices.get(usize::from(device));
            beyond.is_some_and(|(core, memory)| *core > DeviceCore::ZERO || *memory > Bytes::ZERO)
        };
        (beyond.cpu > MilliCpu::ZERO && request.cpu > MilliCpu::ZERO)
            || (beyond.memory > Bytes::ZERO && request.memory > Bytes::ZERO)
            || request.counted.iter().any(|(name, amount)| *amount > 0 && beyond.counted.contains_key(name))
            || allocation.devices.iter().any(|part| of_device(part.device))
    }

    /// Whether it has a device of a model whose resource number is among these.
    pub(crate) fn has_model_of(&self, numbers: &[usize]) -> bool {
        self.spec.devices.iter().any(|device| numbers.contains(&device.model_resource))
    }

    /// The resource number of a device's model.
    pub(crate) fn model_resource(&self, device: u16) -> Option<usize> {
        self.spec.devices.get(usize::from(device)).map(|device| device.model_resource)
    }

    /// Whether all its devices are attached to the same NUMA node, as far as known.
    #[must_use]
    pub fn has_one_numa_node(&self) -> bool {
        self.one_numa_node
    }

    /// Gives it the labels, taints, device attributes and cordon of another specification.
    pub(crate) fn relabel(&mut self, like: &NodeSpec, parts: &mut NodeParts) {
        parts.relabel(Arc::make_mut(&mut self.spec), like);
        self.disliked = self.spec.has_disliked_taint();
    }

    /// Sets a device's health. Returns whether there is such a device.
    pub(crate) fn set_health(&mut self, device: u16, health: Health, parts: &mut NodeParts) -> bool {
        let Some(state) = self.devices.get_mut(usize::from(device)) else { return false };
        parts.set_health(Arc::make_mut(&mut self.spec), usize::from(device), health);
        state.healthy = health == Health::Healthy;
        state.derive();
        self.derive();
        true
    }

    fn derive(&mut self) {
        let idle = self.devices.iter().filter(|device| device.is_idle()).count();
        self.idle_devices = u16::try_from(idle).unwrap_or(u16::MAX);
        self.usable_thousandths = self.devices.iter().map(|device| u32::from(device.usable_thousandths)).sum();
        let healthy = self.devices.iter().filter(|device| device.healthy);
        self.core_free_max = healthy.map(|device| device.core_free).max().unwrap_or_default();
    }
}

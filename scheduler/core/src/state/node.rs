//! A node's books: what is free on it and on each of its devices.

mod beyond;
mod device;
mod holding;

use std::sync::Arc;

use crate::state::node_parts::NodeParts;
use crate::vocabulary::claim::{Allocation, ClaimId};
use crate::vocabulary::known_node::KnownNode;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::spec::{Health, NodeSpec};

use beyond::Beyond;
pub use device::Device;

/// A node, what is free on it, and who is there.
///
/// At all times, for CPU, memory and all that is counted of the node, and for time and memory of each device: what is
/// free and what its claims hold add up to what it has. Where claims were seen running that are more than it has, they
/// add up to what it has and what is held beyond that, and nothing is free.
#[derive(Clone, Debug)]
pub struct Node {
    /// What stays the same as claims come and go is shared with copies of the node.
    spec: Arc<KnownNode>,
    cpu_free: MilliCpu,
    memory_free: Bytes,
    /// What is free of each thing that is only counted, in the order of the names that the node has.
    counted_free: Box<[u64]>,
    devices: Box<[Device]>,
    /// In order. These are too few for a tree to be of use.
    claims: Vec<ClaimId>,
    /// How many requests of its claims are for so many devices and so much time of each, in order.
    sorts: Vec<((u16, DeviceCore), u32)>,
    /// Devices that are wholly free and may be given out.
    idle_devices: u16,
    /// Sum of the devices' [`Device::usable_thousandths`].
    usable_thousandths: u32,
    /// The most time that is free on one device that may be given out.
    core_free_max: DeviceCore,
    one_model: bool,
    one_numa_node: bool,
    /// What claims hold beyond what there is; `None`: nothing.
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
            beyond: None,
            spec,
        };
        node.derive();
        node
    }

    /// The node as it would be if nobody were there.
    #[must_use]
    pub fn emptied(&self) -> Self {
        Self::empty(self.spec.clone(), self.one_model, self.one_numa_node)
    }

    /// What the node is.
    #[must_use]
    pub fn spec(&self) -> &KnownNode {
        &self.spec
    }

    /// CPU that nobody holds.
    #[must_use]
    pub fn cpu_free(&self) -> MilliCpu {
        self.cpu_free
    }

    /// Memory that nobody holds.
    #[must_use]
    pub fn memory_free(&self) -> Bytes {
        self.memory_free
    }

    /// How much nobody holds of something that is only counted.
    #[must_use]
    pub fn counted_free(&self, name: &str) -> u64 {
        self.counted_place(name).map_or(0, |place| self.counted_free[place])
    }

    /// Where in the amounts something is that is only counted; `None`: the node has nothing of it.
    fn counted_place(&self, name: &str) -> Option<usize> {
        self.spec.counted.keys().position(|known| known == name)
    }

    /// Whether as much is free of what is only counted as is asked for.
    pub(crate) fn has_counted(&self, request: &Request) -> bool {
        self.lacking_counted(request).next().is_none()
    }

    /// What is only counted and of which less is free than is asked for: name, what is asked for, and what is free.
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

    /// The different numbers of devices, and times of each, that claims with devices here have asked for.
    pub fn sorts(&self) -> impl Iterator<Item = (u16, DeviceCore)> {
        self.sorts.iter().map(|(sort, _)| *sort)
    }

    /// Number of devices that nobody holds anything of, and that may be given out.
    #[must_use]
    pub fn idle_devices(&self) -> u16 {
        self.idle_devices
    }

    /// What can still be given out of its devices in time and memory alike, in thousandths of a device.
    #[must_use]
    pub fn usable_thousandths(&self) -> u32 {
        self.usable_thousandths
    }

    /// The most time that is free on one device that may be given out.
    #[must_use]
    pub fn core_free_max(&self) -> DeviceCore {
        self.core_free_max
    }

    /// Whether all its devices are of the same model.
    #[must_use]
    pub fn has_one_model(&self) -> bool {
        self.one_model
    }

    /// Whether claims hold more of it, or of one of its devices, than there is.
    #[must_use]
    pub fn is_over_committed(&self) -> bool {
        self.beyond.is_some()
    }

    /// Whether an allocation holds some of what more is held of than there is.
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

    /// Whether it has a device of a model with one of these resources' numbers.
    pub(crate) fn has_model_of(&self, numbers: &[usize]) -> bool {
        self.spec.devices.iter().any(|device| numbers.contains(&device.model_resource))
    }

    /// The number of the resource of a device's model.
    pub(crate) fn model_resource(&self, device: u16) -> Option<usize> {
        self.spec.devices.get(usize::from(device)).map(|device| device.model_resource)
    }

    /// Whether all its devices are attached to the same NUMA node, as far as is known.
    #[must_use]
    pub fn has_one_numa_node(&self) -> bool {
        self.one_numa_node
    }

    /// Gives it the labels, taints and attributes of another, and cordons it like that.
    pub(crate) fn relabel(&mut self, like: &NodeSpec, parts: &mut NodeParts) {
        parts.relabel(Arc::make_mut(&mut self.spec), like);
    }

    /// Makes a device healthy or not; says whether there is such a device.
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

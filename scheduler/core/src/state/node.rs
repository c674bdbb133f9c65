//! A node's books: what is free on it and on each of its devices.

mod beyond;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::claim::{Allocation, ClaimId};
use crate::vocabulary::counted;
use crate::vocabulary::not_enough::NotEnough;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::spec::{DeviceSpec, Health, NodeSpec};

use beyond::Beyond;

/// A node, what is free on it, and who is there.
///
/// At all times, for CPU, memory and all that is counted of the node, and for time and memory of each device: what is
/// free and what its claims hold add up to what it has. Where claims were seen running that are more than it has, they
/// add up to what it has and what is held beyond that, and nothing is free.
#[derive(Clone, Debug)]
pub struct Node {
    /// What stays the same as claims come and go is shared with copies of the node.
    spec: Arc<NodeSpec>,
    cpu_free: MilliCpu,
    memory_free: Bytes,
    /// What is free of each thing that is only counted, and that the node has some of.
    counted_free: BTreeMap<String, u64>,
    devices: Vec<Device>,
    claims: BTreeSet<ClaimId>,
    /// How many requests of its claims are for so many devices and so much time of each.
    sorts: BTreeMap<(u16, DeviceCore), u32>,
    /// Devices that are wholly free and may be given out.
    idle_devices: u16,
    /// Sum of the devices' [`Device::usable_thousandths`].
    usable_thousandths: u32,
    /// The most time that is free on one device that may be given out.
    core_free_max: DeviceCore,
    one_model: bool,
    /// By device, the number of its model's resource.
    models: Arc<[usize]>,
    one_numa_node: bool,
    /// What claims hold beyond what there is; `None`: nothing.
    beyond: Option<Box<Beyond>>,
}

/// What is free on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    core_free: DeviceCore,
    memory_free: Bytes,
    memory: Bytes,
    /// Memory in use that no claim was given.
    memory_outside: Bytes,
    holders: u32,
    healthy: bool,
    usable_thousandths: u16,
}

impl Device {
    fn new(spec: &DeviceSpec) -> Self {
        let mut device = Self {
            core_free: DeviceSpec::CORE,
            memory_free: spec.memory,
            memory: spec.memory,
            memory_outside: spec.memory_outside,
            holders: 0,
            healthy: spec.health == Health::Healthy,
            usable_thousandths: 0,
        };
        device.derive();
        device
    }

    /// Time that nobody holds.
    #[must_use]
    pub fn core_free(&self) -> DeviceCore {
        self.core_free
    }

    /// Memory that nobody holds.
    #[must_use]
    pub fn memory_free(&self) -> Bytes {
        self.memory_free
    }

    /// All its memory.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        self.memory
    }

    /// Whether nobody holds any of it and it may be given out.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.holders == 0 && self.healthy
    }

    /// Whether it may be given out.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.healthy
    }

    /// The part of the device that can still be given out in time and memory alike, in thousandths; 0 if it may not be
    /// given out.
    #[must_use]
    pub fn usable_thousandths(&self) -> u16 {
        self.usable_thousandths
    }

    /// What [`Device::usable_thousandths`] will be when `core` and `memory` of it are taken; `None` if there is not so
    /// much.
    #[must_use]
    pub fn usable_after(&self, core: DeviceCore, memory: Bytes) -> Option<u16> {
        if !self.healthy {
            return None;
        }
        let core_left = self.core_free.checked_sub(core)?;
        let memory_left = self.memory_free.checked_sub(memory)?;
        Some(usable_thousandths(core_left, memory_left, self.memory))
    }

    /// Memory that can be taken while at most `threshold_percent` of it are given out, or in use without being given out;
    /// `None` if it is more already.
    #[must_use]
    pub fn memory_below(&self, threshold_percent: Option<u8>) -> Option<Bytes> {
        let Some(percent) = threshold_percent else { return Some(self.memory_free) };
        // Rounded up, so that no more is used than the percentage.
        let kept = (u128::from(self.memory.get()) * u128::from(100 - percent.min(100))).div_ceil(100);
        let kept = u64::try_from(kept).unwrap_or(u64::MAX).saturating_add(self.memory_outside.get());
        self.memory_free.checked_sub(Bytes::new(kept))
    }

    fn derive(&mut self) {
        self.usable_thousandths = match self.healthy {
            true => usable_thousandths(self.core_free, self.memory_free, self.memory),
            false => 0,
        };
    }
}

fn usable_thousandths(core: DeviceCore, memory: Bytes, of: Bytes) -> u16 {
    // A device none of whose memory is taken needs no division, nor does one whose memory nobody counts.
    let memory = if memory == of { 1000 } else { memory.thousandths_of(of) };
    u16::try_from(core.get().min(memory)).unwrap_or(u16::MAX)
}

impl Node {
    pub(crate) fn new(spec: NodeSpec, models: Vec<usize>) -> Self {
        let one_model = spec.devices.windows(2).all(|pair| pair[0].model == pair[1].model);
        let one_numa_node = spec.devices.windows(2).all(|pair| pair[0].numa == pair[1].numa);
        Self::empty(Arc::new(spec), models.into(), one_model, one_numa_node)
    }

    fn empty(spec: Arc<NodeSpec>, models: Arc<[usize]>, one_model: bool, one_numa_node: bool) -> Self {
        let mut node = Self {
            cpu_free: spec.cpu,
            memory_free: spec.memory,
            counted_free: spec.counted.clone(),
            devices: spec.devices.iter().map(Device::new).collect(),
            claims: BTreeSet::new(),
            sorts: BTreeMap::new(),
            idle_devices: 0,
            usable_thousandths: 0,
            core_free_max: DeviceCore::ZERO,
            one_model,
            models,
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
        Self::empty(self.spec.clone(), self.models.clone(), self.one_model, self.one_numa_node)
    }

    /// What the node is.
    #[must_use]
    pub fn spec(&self) -> &NodeSpec {
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
        counted::amount(&self.counted_free, name)
    }

    /// Whether as much is free of what is only counted as is asked for.
    pub(crate) fn has_counted(&self, request: &Request) -> bool {
        counted::is_enough(&self.counted_free, &request.counted)
    }

    /// What is only counted and of which less is free than is asked for: name, what is asked for, and what is free.
    pub(crate) fn lacking_counted<'a>(
        &'a self,
        request: &'a Request,
    ) -> impl Iterator<Item = (&'a str, u64, u64)> + use<'a> {
        counted::lacking(&request.counted, &self.counted_free)
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
        self.sorts.keys().copied()
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
        self.models.iter().any(|model| numbers.contains(model))
    }

    /// The number of the resource of a device's model.
    pub(crate) fn model_resource(&self, device: u16) -> Option<usize> {
        self.models.get(usize::from(device)).copied()
    }

    /// Whether all its devices are attached to the same NUMA node, as far as is known.
    #[must_use]
    pub fn has_one_numa_node(&self) -> bool {
        self.one_numa_node
    }

    pub(crate) fn relabel(&mut self, spec: &NodeSpec) {
        let own = Arc::make_mut(&mut self.spec);
        own.labels.clone_from(&spec.labels);
        own.taints.clone_from(&spec.taints);
        own.cordoned = spec.cordoned;
        for (device, new) in Arc::make_mut(&mut self.spec).devices.iter_mut().zip(&spec.devices) {
            device.attributes.clone_from(&new.attributes);
        }
    }

    pub(crate) fn set_health(&mut self, device: u16, health: Health) -> bool {
        let (Some(spec), Some(state)) = (
            Arc::make_mut(&mut self.spec).devices.get_mut(usize::from(device)),
            self.devices.get_mut(usize::from(device)),
        ) else {
            return false;
        };
        spec.health = health;
        state.healthy = health == Health::Healthy;
        state.derive();
        self.derive();
        true
    }

    /// Takes what an allocation says, all of it or nothing. Whether devices are healthy is not asked: what ran before
    /// stays in the books.
    pub(crate) fn take(&mut self, claim: ClaimId, request: &Request, allocation: &Allocation) -> Result<(), NotEnough> {
        if request.cpu > self.cpu_free {
            return Err(NotEnough::Cpu { wanted: request.cpu, free: self.cpu_free });
        }
        if request.memory > self.memory_free {
            return Err(NotEnough::Memory { wanted: request.memory, free: self.memory_free });
        }
        if let Some((name, wanted, free)) = self.lacking_counted(request).next() {
            return Err(NotEnough::Counted { name: name.to_owned(), wanted, free });
        }
        self.check_shape(request, allocation)?;
        for (number, part) in allocation.devices.iter().enumerate() {
            let Some((core_free, memory_free)) = self.free_for(request, allocation, number) else { continue };
            let device = part.device;
            if part.core > core_free {
                return Err(NotEnough::DeviceCore { device, wanted: part.core, free: core_free });
            }
            if part.memory > memory_free {
                return Err(NotEnough::DeviceMemory { device, wanted: part.memory, free: memory_free });
            }
        }
        self.hold(claim, request, allocation);
        Ok(())
    }

    /// What is free of a device for the part of this number of an allocation, when the parts before it are taken: those
    /// of other requests can be of the same device.
    fn free_for(&self, request: &Request, allocation: &Allocation, number: usize) -> Option<(DeviceCore, Bytes)> {
        let part = allocation.devices.get(number)?;
        let state = self.devices.get(usize::from(part.device))?;
        let free = (state.core_free, state.memory_free);
        if request.has_one_wish() {
            return Some(free);
        }
        let before = allocation.devices.iter().take(number).filter(|before| before.device == part.device);
        Some(before.fold(free, |(core, memory), before| {
            (core.saturating_sub(before.core), memory.saturating_sub(before.memory))
        }))
    }

    /// Takes what an allocation says even if there is not so much.
    pub(crate) fn take_beyond(
        &mut self,
        claim: ClaimId,
        request: &Request,
        allocation: &Allocation,
    ) -> Result<(), NotEnough> {
        self.check_shape(request, allocation)?;
        let missing = self.missing(request, allocation);
        if let Some(missing) = missing {
            let beyond = self.beyond.get_or_insert_with(|| {
                let devices = vec![(DeviceCore::ZERO, Bytes::ZERO); self.devices.len()];
                Box::new(Beyond { cpu: MilliCpu::ZERO, memory: Bytes::ZERO, counted: BTreeMap::new(), devices })
            });
            beyond.add(&missing);
        }
        self.hold(claim, request, allocation);
        Ok(())
    }

    /// What an allocation would take beyond what is free.
    fn missing(&self, request: &Request, allocation: &Allocation) -> Option<Beyond> {
        let mut missing = Beyond {
            cpu: request.cpu.saturating_sub(self.cpu_free),
            memory: request.memory.saturating_sub(self.memory_free),
            counted: self
                .lacking_counted(request)
                .map(|(name, wanted, free)| (name.to_owned(), wanted - free))
                .collect(),
            devices: vec![(DeviceCore::ZERO, Bytes::ZERO); self.devices.len()],
        };
        for (number, part) in allocation.devices.iter().enumerate() {
            let free = self.free_for(request, allocation, number);
            if let Some(((core, memory), missing)) = free.zip(missing.devices.get_mut(usize::from(part.device))) {
                missing.0 = [missing.0, part.core.saturating_sub(core)].into_iter().sum();
                missing.1 = [missing.1, part.memory.saturating_sub(memory)].into_iter().sum();
            }
        }
        (!missing.is_nothing()).then_some(missing)
    }

    /// Whether an allocation is one of this node for this request, whatever is free.
    pub(crate) fn check_shape(&self, request: &Request, allocation: &Allocation) -> Result<(), NotEnough> {
        let (alternative, choices) = (allocation.alternative, request.choice_count());
        if alternative >= choices {
            return Err(NotEnough::NoSuchChoice { alternative, choices });
        }
        let wishes = request.wishes_of(alternative);
        let wanted = wishes.clone().fold(0, |sum: u16, wish| sum.saturating_add(wish.devices.count));
        let allocated = allocation.devices.len();
        if allocated != usize::from(wanted) {
            return Err(NotEnough::DeviceCount { wanted, allocated });
        }
        let mut parts = allocation.devices.iter();
        for wish in wishes {
            let mut next = 0;
            for part in parts.by_ref().take(usize::from(wish.devices.count)) {
                let device = part.device;
                let state = self.devices.get(usize::from(device)).filter(|_| u32::from(device) >= next);
                let state = state.ok_or(NotEnough::NoSuchDevice { device })?;
                next = u32::from(device) + 1;
                if part.core != wish.devices.core || part.memory != wish.devices.memory.on(state.memory) {
                    return Err(NotEnough::Mismatch { device });
                }
            }
        }
        Ok(())
    }

    fn hold(&mut self, claim: ClaimId, request: &Request, allocation: &Allocation) {
        self.cpu_free = self.cpu_free.saturating_sub(request.cpu);
        self.memory_free = self.memory_free.saturating_sub(request.memory);
        for (name, amount) in &request.counted {
            if let Some(free) = self.counted_free.get_mut(name) {
                *free = free.saturating_sub(*amount);
            }
        }
        for part in &allocation.devices {
            if let Some(state) = self.devices.get_mut(usize::from(part.device)) {
                state.core_free = state.core_free.saturating_sub(part.core);
                state.memory_free = state.memory_free.saturating_sub(part.memory);
                state.holders += 1;
                state.derive();
            }
        }
        self.claims.insert(claim);
        let wishes = request.wishes_of(allocation.alternative);
        for devices in wishes.map(|wish| wish.devices).filter(|devices| devices.count > 0) {
            *self.sorts.entry((devices.count, devices.core)).or_default() += 1;
        }
        self.derive();
    }

    /// Gives back what [`Node::take`] or [`Node::take_beyond`] took. What is held beyond what there is goes first.
    pub(crate) fn give_back(&mut self, claim: ClaimId, request: &Request, allocation: &Allocation) {
        debug_assert!(self.claims.contains(&claim), "only who is here can leave");
        self.claims.remove(&claim);
        for devices in request.wishes_of(allocation.alternative).map(|wish| wish.devices) {
            let sort = (devices.count, devices.core);
            if let Some(wishes) = self.sorts.get_mut(&sort) {
                *wishes -= 1;
                if *wishes == 0 {
                    self.sorts.remove(&sort);
                }
            }
        }
        let mut beyond = self.beyond.take();
        let (mut cpu, mut memory) = (request.cpu, request.memory);
        if let Some(beyond) = &mut beyond {
            let (cpu_beyond, memory_beyond) = (beyond.cpu.min(cpu), beyond.memory.min(memory));
            beyond.cpu = beyond.cpu.saturating_sub(cpu_beyond);
            beyond.memory = beyond.memory.saturating_sub(memory_beyond);
            (cpu, memory) = (cpu.saturating_sub(cpu_beyond), memory.saturating_sub(memory_beyond));
        }
        self.cpu_free = self.cpu_free.checked_add(cpu).unwrap_or(self.spec.cpu);
        self.memory_free = self.memory_free.checked_add(memory).unwrap_or(self.spec.memory);
        self.give_back_counted(request, beyond.as_deref_mut());
        for part in &allocation.devices {
            let mut part = *part;
            let held_beyond = beyond.as_mut().and_then(|beyond| beyond.devices.get_mut(usize::from(part.device)));
            if let Some((core, memory)) = held_beyond {
                let (core_beyond, memory_beyond) = ((*core).min(part.core), (*memory).min(part.memory));
                (*core, *memory) = (core.saturating_sub(core_beyond), memory.saturating_sub(memory_beyond));
                part.core = part.core.saturating_sub(core_beyond);
                part.memory = part.memory.saturating_sub(memory_beyond);
            }
            if let Some(state) = self.devices.get_mut(usize::from(part.device)) {
                state.core_free = state.core_free.checked_add(part.core).unwrap_or(DeviceSpec::CORE);
                state.memory_free = state.memory_free.checked_add(part.memory).unwrap_or(state.memory);
                state.holders = state.holders.saturating_sub(1);
                state.derive();
            }
        }
        self.beyond = beyond.filter(|beyond| !beyond.is_nothing());
        self.derive();
    }

    fn give_back_counted(&mut self, request: &Request, mut beyond: Option<&mut Beyond>) {
        for (name, amount) in &request.counted {
            let mut amount = *amount;
            if let Some(beyond) = &mut beyond
                && let Some(held) = beyond.counted.get_mut(name)
            {
                let of_beyond = amount.min(*held);
                (*held, amount) = (*held - of_beyond, amount - of_beyond);
                if *held == 0 {
                    beyond.counted.remove(name);
                }
            }
            if let Some(free) = self.counted_free.get_mut(name) {
                *free = free.checked_add(amount).unwrap_or_else(|| counted::amount(&self.spec.counted, name));
            }
        }
    }

    fn derive(&mut self) {
        let idle = self.devices.iter().filter(|device| device.is_idle()).count();
        self.idle_devices = u16::try_from(idle).unwrap_or(u16::MAX);
        self.usable_thousandths = self.devices.iter().map(|device| u32::from(device.usable_thousandths)).sum();
        let healthy = self.devices.iter().filter(|device| device.healthy);
        self.core_free_max = healthy.map(|device| device.core_free).max().unwrap_or_default();
    }
}

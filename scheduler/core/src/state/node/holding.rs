//! How claims take amounts of a node and give them back.

use std::collections::BTreeMap;

use super::Node;
use super::beyond::Beyond;
use crate::vocabulary::claim::{Allocation, ClaimId};
use crate::vocabulary::counted;
use crate::vocabulary::not_enough::NotEnough;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::request::Request;
use crate::vocabulary::spec::DeviceSpec;

impl Node {
    /// Takes the whole allocation, or nothing. Health is not checked: claims that ran before stay in the books.
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

    /// The free time and memory of a device for one part of an allocation, after the earlier parts are taken. Parts of
    /// other requests can be on the same device.
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

    /// Takes an allocation even if there is not enough room.
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

    /// What an allocation would take beyond the free amounts.
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

    /// Whether an allocation fits this node's devices and this request in form, whatever is free.
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
            if let Some(place) = self.counted_place(name) {
                self.counted_free[place] = self.counted_free[place].saturating_sub(*amount);
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
        if let Err(place) = self.claims.binary_search(&claim) {
            self.claims.insert(place, claim);
        }
        let wishes = request.wishes_of(allocation.alternative);
        for devices in wishes.map(|wish| wish.devices).filter(|devices| devices.count > 0) {
            let sort = (devices.count, devices.core);
            match self.sorts.binary_search_by_key(&sort, |(sort, _)| *sort) {
                Ok(place) => self.sorts[place].1 += 1,
                Err(place) => self.sorts.insert(place, (sort, 1)),
            }
        }
        self.derive();
    }

    /// Gives back what [`Node::take`] or [`Node::take_beyond`] took. Amounts beyond the capacity are given back first.
    pub(crate) fn give_back(&mut self, claim: ClaimId, request: &Request, allocation: &Allocation) {
        let place = self.claims.binary_search(&claim);
        debug_assert!(place.is_ok(), "only a claim that is here can leave");
        if let Ok(place) = place {
            self.claims.remove(place);
        }
        for devices in request.wishes_of(allocation.alternative).map(|wish| wish.devices) {
            let sort = (devices.count, devices.core);
            if let Ok(place) = self.sorts.binary_search_by_key(&sort, |(sort, _)| *sort) {
                self.sorts[place].1 -= 1;
                if self.sorts[place].1 == 0 {
                    self.sorts.remove(place);
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
            if let Some(place) = self.counted_place(name) {
                let sum = self.counted_free[place].checked_add(amount);
                self.counted_free[place] = sum.unwrap_or_else(|| counted::amount(&self.spec.counted, name));
            }
        }
    }
}

//! Numbers of resources, and amounts by these numbers.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::state::by_model::ByModel;
use crate::state::node::Node;
use crate::vocabulary::choices::SingleChoice;
use crate::vocabulary::claim::Allocation;
use crate::vocabulary::device_request::{DeviceMemory, DeviceWish};
use crate::vocabulary::quantity::Bytes;
use crate::vocabulary::request::Request;
use crate::vocabulary::resource::Resource;

/// The number of resources that every cluster has, whatever its devices.
const FIXED: usize = 4;
/// The number of [`Resource::Cpu`].
pub(crate) const CPU: usize = 0;
/// The number of [`Resource::Memory`].
pub(crate) const MEMORY: usize = 1;
/// The number of [`Resource::DeviceCore`].
pub(crate) const DEVICE_CORE: usize = 2;
/// The number of [`Resource::DeviceMemory`].
pub(crate) const DEVICE_MEMORY: usize = 3;

/// Numbers the resources: those of every cluster first, then the models in the order in which they became known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resources {
    models: Vec<ModelKind>,
    by_model: BTreeMap<String, usize>,
}

#[derive(Clone, Debug)]
struct ModelKind {
    name: String,
    /// The number of devices of this model for each size of memory.
    devices: BTreeMap<Bytes, usize>,
}

impl ModelKind {
    /// The least and the greatest memory of a device of this model; `None` if there is no such device.
    fn memory(&self) -> Option<(Bytes, Bytes)> {
        let (least, most) = (self.devices.first_key_value()?, self.devices.last_key_value()?);
        Some((*least.0, *most.0))
    }
}

impl Resources {
    /// Number of resources.
    pub(crate) fn len(&self) -> usize {
        FIXED + self.models.len()
    }

    /// A resource's number. An unknown model becomes known.
    pub(crate) fn number(&mut self, resource: &Resource) -> usize {
        match (self.find(resource), resource) {
            (None, Resource::ModelCore(model)) => FIXED + self.model(model),
            (number, _) => number.unwrap_or_default(),
        }
    }

    /// A resource's number, if it is known.
    pub(crate) fn find(&self, resource: &Resource) -> Option<usize> {
        match resource {
            Resource::Cpu => Some(CPU),
            Resource::Memory => Some(MEMORY),
            Resource::DeviceCore => Some(DEVICE_CORE),
            Resource::DeviceMemory => Some(DEVICE_MEMORY),
            Resource::ModelCore(model) => self.by_model.get(model).map(|number| FIXED + number),
        }
    }

    /// Whether a resource is a device's, and not the node's.
    pub(crate) fn is_of_devices(&self, number: usize) -> bool {
        number >= 2
    }

    /// The resource that has a number.
    pub(crate) fn resource(&self, number: usize) -> Resource {
        match number {
            0 => Resource::Cpu,
            1 => Resource::Memory,
            2 => Resource::DeviceCore,
            3 => Resource::DeviceMemory,
            _ => Resource::ModelCore(self.models.get(number - FIXED).map(|kind| kind.name.clone()).unwrap_or_default()),
        }
    }

    fn model(&mut self, name: &str) -> usize {
        if let Some(number) = self.by_model.get(name) {
            return *number;
        }
        let number = self.models.len();
        self.models.push(ModelKind { name: name.to_owned(), devices: BTreeMap::new() });
        self.by_model.insert(name.to_owned(), number);
        number
    }

    /// Takes in a new device. Returns the resource number of its model, and whether the least or the greatest memory of
    /// the model's devices has changed.
    pub(crate) fn learn_device(&mut self, model: &str, memory: Bytes) -> (usize, bool) {
        let number = self.model(model);
        let kind = &mut self.models[number];
        let before = kind.memory();
        *kind.devices.entry(memory).or_default() += 1;
        (FIXED + number, kind.memory() != before)
    }

    /// Takes out a device. Returns whether the least or the greatest memory of the model's devices has changed. The
    /// model keeps its number: queues may name it, and have used it.
    pub(crate) fn forget_device(&mut self, model: &str, memory: Bytes) -> bool {
        let number = self.by_model.get(model).copied();
        let Some(kind) = number.and_then(|number| self.models.get_mut(number)) else { return false };
        let before = kind.memory();
        if let Some(count) = kind.devices.get_mut(&memory) {
            *count -= 1;
            if *count == 0 {
                kind.devices.remove(&memory);
            }
        }
        kind.memory() != before
    }

    /// The known models, in the order in which they became known.
    pub(crate) fn dump_models(&self) -> Vec<String> {
        self.models.iter().map(|kind| kind.name.clone()).collect()
    }

    /// Makes models known, in this order.
    pub(crate) fn restore_models(&mut self, models: &[String]) {
        models.iter().for_each(|name| _ = self.model(name));
    }

    /// The choices of a request except those in `left_out`, each without devices of the models with these resource
    /// numbers. A choice that no other model can satisfy is omitted.
    pub(crate) fn besides(
        &self,
        request: &Request,
        numbers: &[usize],
        left_out: &BTreeSet<u16>,
    ) -> Vec<SingleChoice<'static>> {
        let choices = request.choices().filter(|choice| !left_out.contains(&choice.number));
        let besides = |choice: SingleChoice<'static>| {
            let request = Cow::Owned(self.of_other_models(&choice.request, numbers)?);
            Some(SingleChoice { request, ..choice })
        };
        choices.filter_map(besides).collect()
    }

    fn of_other_models(&self, request: &Request, numbers: &[usize]) -> Option<Request> {
        if numbers.is_empty() {
            return Some(request.clone());
        }
        let mut besides = request.clone();
        let models = |wish: DeviceWish<'_>| -> Option<BTreeSet<String>> {
            let kinds = (FIXED..).zip(&self.models).filter(|(number, kind)| {
                !kind.devices.is_empty() && !numbers.contains(number) && wish.admit_model(&kind.name)
            });
            // An empty set of models would mean any model.
            Some(kinds.map(|(_, kind)| kind.name.clone()).collect()).filter(|models: &BTreeSet<_>| !models.is_empty())
        };
        let mut all = request.wishes().map(models);
        besides.constraints.models = all.next()??;
        if let Some(further) = &mut besides.further {
            for (of, models) in Arc::make_mut(further).requests.iter_mut().zip(all) {
                of.models = models?;
            }
        }
        Some(besides)
    }

    /// The least and the greatest memory of the devices that a request admits; `None`: no such device is known.
    pub(crate) fn memory_of(&self, request: &Request) -> Option<(Bytes, Bytes)> {
        let is_admitted = |kind: &&ModelKind| request.all_wishes().any(|wish| wish.admit_model(&kind.name));
        let admitted = self.models.iter().filter(is_admitted);
        let sizes = admitted.filter_map(ModelKind::memory);
        sizes.reduce(|(least, most), (low, high)| (least.min(low), most.max(high)))
    }

    /// The least that a request is charged wherever it is placed: for each resource, the minimum over its choices.
    pub(crate) fn least_charge(&self, request: &Request) -> Charge {
        let of_choice = |choice| {
            let mut charge = self.charge(request, choice, |least, _| least, u64::min);
            // With several models it is not known yet which one it will be.
            if charge.models.as_slice().len() > 1 {
                charge.models = ByModel::default();
            }
            charge
        };
        let others = (1..request.choice_count()).map(of_choice);
        others.fold(of_choice(0), |least, other| least.each_with(&other, u64::min))
    }

    /// The most that a request is charged wherever it is placed: for each resource, the maximum over its choices. Its
    /// queue's demand counts this amount, as Kubernetes' quotas do for prioritised lists, so a claim never takes more
    /// than its queue's demand.
    pub(crate) fn most_charge(&self, request: &Request) -> Charge {
        let of_choice = |choice| self.charge(request, choice, |_, most| most, u64::max);
        let others = (1..request.choice_count()).map(of_choice);
        others.fold(of_choice(0), |most, other| most.each_with(&other, u64::max))
    }

    fn charge(
        &self,
        request: &Request,
        choice: u16,
        of: impl Fn(Bytes, Bytes) -> Bytes,
        extreme: impl Fn(u64, u64) -> u64,
    ) -> Charge {
        let mut charge = Charge { fixed: [request.cpu.get(), request.memory.get(), 0, 0], models: ByModel::default() };
        if request.devices.count == 0 {
            return charge;
        }
        for wish in request.wishes_of(choice) {
            let devices = wish.devices;
            charge.fixed[2] = charge.fixed[2].saturating_add(devices.total_core());
            let mut memory = None;
            for (number, kind) in self.models.iter().enumerate() {
                let Some((least, most)) = kind.memory().filter(|_| wish.admit_model(&kind.name)) else {
                    continue;
                };
                let each = devices.memory.on(of(least, most)).get();
                memory = Some(memory.map_or(each, |memory| extreme(memory, each)));
                charge.models.add(FIXED + number, devices.total_core());
            }
            let memory = match devices.memory {
                DeviceMemory::Bytes(bytes) => bytes.get(),
                DeviceMemory::Thousandths(_) => memory.unwrap_or(0),
            };
            charge.fixed[3] = charge.fixed[3].saturating_add(memory.saturating_mul(u64::from(devices.count)));
        }
        charge
    }
}

/// The amounts that one claim takes of each resource.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Charge {
    fixed: [u64; FIXED],
    models: ByModel,
}

impl Charge {
    /// The exact charge of a claim that is placed on `node`.
    pub(crate) fn of(request: &Request, allocation: &Allocation, node: &Node) -> Self {
        let mut charge = Self { fixed: [request.cpu.get(), request.memory.get(), 0, 0], models: ByModel::default() };
        for part in &allocation.devices {
            let core = u64::from(part.core.get());
            charge.fixed[2] += core;
            charge.fixed[3] = charge.fixed[3].saturating_add(part.memory.get());
            let Some(model) = node.model_resource(part.device) else { continue };
            charge.models.add(model, core);
        }
        charge
    }

    /// The amounts that are not zero, by the resource's number.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let fixed = self.fixed.iter().copied().enumerate();
        fixed.chain(self.models.as_slice().iter().copied()).filter(|(_, amount)| *amount > 0)
    }

    /// The amount of one resource.
    pub(crate) fn get(&self, number: usize) -> u64 {
        match self.fixed.get(number) {
            Some(amount) => *amount,
            None => self.models.as_slice().iter().find(|(model, _)| *model == number).map_or(0, |(_, amount)| *amount),
        }
    }

    /// The resource numbers of the models whose device time it takes.
    pub(crate) fn models(&self) -> impl Iterator<Item = usize> + '_ {
        self.models.as_slice().iter().filter(|(_, amount)| *amount > 0).map(|(number, _)| *number)
    }

    /// Whether a number is that of one model's device time.
    pub(crate) fn is_model(number: usize) -> bool {
        number >= FIXED
    }

    /// Whether the charge of a resource can depend on the devices' model at all.
    pub(crate) fn may_depend_on_model(number: usize) -> bool {
        number == DEVICE_MEMORY || Self::is_model(number)
    }

    /// Whether this charge of a resource can depend on the devices' model.
    pub(crate) fn depends_on_model(&self, number: usize) -> bool {
        number == DEVICE_MEMORY && self.fixed[DEVICE_MEMORY] > 0 || self.models().any(|model| model == number)
    }

    /// Whether it takes more than `other` of any resource that is not of one model.
    pub(crate) fn takes_more_than(&self, other: &Self) -> bool {
        self.fixed.iter().zip(&other.fixed).any(|(amount, other)| amount > other)
    }

    /// For each resource, the amount above `other`; 0 if it is not above.
    pub(crate) fn beyond(&self, other: &Self) -> Self {
        let mut beyond = Self::default();
        for (number, amount) in self.parts() {
            let more = amount.saturating_sub(other.get(number));
            match beyond.fixed.get_mut(number) {
                Some(fixed) => *fixed = more,
                None => beyond.models.add(number, more),
            }
        }
        beyond
    }

    /// For each resource, the `extreme` (least or greatest) of both amounts.
    fn each_with(&self, other: &Self, extreme: impl Fn(u64, u64) -> u64) -> Self {
        let mut both = Self { fixed: self.fixed, models: ByModel::default() };
        both.fixed.iter_mut().zip(other.fixed).for_each(|(amount, other)| *amount = extreme(*amount, other));
        let models: BTreeSet<usize> = self.models().chain(other.models()).collect();
        let amount = |number| (number, extreme(self.get(number), other.get(number)));
        both.models = models.into_iter().map(amount).filter(|(_, amount)| *amount > 0).collect();
        both
    }

    /// Device time, in thousandths of one device.
    pub(crate) fn device_core(&self) -> u64 {
        self.fixed[2]
    }

    /// CPU, in thousandths of a core.
    pub(crate) fn cpu(&self) -> u64 {
        self.fixed[0]
    }

    /// Adds what another claim takes.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, amount) in self.fixed.iter_mut().zip(other.fixed) {
            *sum = sum.saturating_add(amount);
        }
        for (number, amount) in other.models.as_slice() {
            self.models.add(*number, *amount);
        }
    }
}

/// Amounts of all resources, by number. They are kept wider than the 64 bits that are read out, so that what was added
/// can always be taken away again.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Amounts(Vec<u128>);

impl Amounts {
    /// The amount of a resource, or the greatest 64-bit number if the amount is greater.
    pub(crate) fn get(&self, number: usize) -> u64 {
        self.0.get(number).map_or(0, |amount| u64::try_from(*amount).unwrap_or(u64::MAX))
    }

    /// One more than the greatest resource number that an amount is kept for.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds what a claim takes.
    pub(crate) fn add(&mut self, charge: &Charge) {
        for (number, amount) in charge.parts() {
            if self.0.len() <= number {
                let last = charge.parts().last().map_or(number, |(last, _)| last);
                self.0.resize(last + 1, 0);
            }
            self.0[number] += u128::from(amount);
        }
    }

    /// Adds other amounts, resource by resource.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(sum, amount)| *sum += amount);
    }

    /// Takes away what a claim has added.
    pub(crate) fn subtract(&mut self, charge: &Charge) {
        for (number, amount) in charge.parts() {
            if let Some(sum) = self.0.get_mut(number) {
                debug_assert!(*sum >= u128::from(amount), "only what was added can be taken away");
                *sum = sum.saturating_sub(u128::from(amount));
            }
        }
    }
}

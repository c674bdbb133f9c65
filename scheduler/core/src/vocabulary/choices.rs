//! The choices of a request that has alternatives.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::alternatives::Alternative;
use crate::vocabulary::claim::Allocation;
use crate::vocabulary::device_request::{DeviceRequest, DeviceWish, FurtherRequest, FurtherRequests, parts};
use crate::vocabulary::request::{Constraints, Request};

/// One of a task's choices, as the request of a task that has only this choice.
#[derive(Clone, Debug)]
pub(crate) struct SingleChoice<'a> {
    /// Its place in the order of preference; see [`Allocation::alternative`].
    pub(crate) number: u16,
    pub(crate) rank: u16,
    pub(crate) request: Cow<'a, Request>,
}

impl Request {
    /// Number of its choices; 1 for most tasks.
    #[must_use]
    pub fn choice_count(&self) -> u16 {
        let others = self.alternatives.as_ref().map_or(0, |alternatives| alternatives.others.len());
        u16::try_from(others).unwrap_or(u16::MAX).saturating_add(1)
    }

    /// The device requests of one of its choices, in order; none if it has no such choice. A choice without devices has
    /// one request, for no device.
    pub fn wishes_of(&self, choice: u16) -> impl Iterator<Item = DeviceWish<'_>> + Clone {
        let (first, further) = match choice.checked_sub(1) {
            None => (Some(self.first_wish()), self.further.as_deref()),
            Some(number) => {
                let others = self.alternatives.as_ref().and_then(|all| all.others.get(usize::from(number)));
                (others.map(Alternative::first_wish), others.and_then(|other| other.further.as_deref()))
            }
        };
        first.into_iter().chain(further.into_iter().flat_map(|further| &further.requests).map(FurtherRequest::wish))
    }

    /// The device requests of all its choices.
    pub(crate) fn all_wishes(&self) -> impl Iterator<Item = DeviceWish<'_>> + Clone {
        (0..self.choice_count()).flat_map(|choice| self.wishes_of(choice))
    }

    /// The request behind each part of a device in an allocation, in the allocation's order.
    pub fn parts_of<'a>(&'a self, allocation: &Allocation) -> impl Iterator<Item = DeviceRequest> + use<'a> {
        parts(self.wishes_of(allocation.alternative))
    }

    /// The device requests of one of its choices, to be changed.
    pub fn devices_mut(&mut self, choice: u16) -> Vec<&mut DeviceRequest> {
        let (devices, further) = match choice.checked_sub(1) {
            None => (&mut self.devices, &mut self.further),
            Some(number) => {
                let others = self.alternatives.as_mut().map(|all| &mut Arc::make_mut(all).others);
                let Some(other) = others.and_then(|others| others.get_mut(usize::from(number))) else {
                    return Vec::new();
                };
                (&mut other.devices, &mut other.further)
            }
        };
        let further = further.as_mut().map(|further| &mut Arc::make_mut(further).requests);
        std::iter::once(devices).chain(further.into_iter().flatten().map(|of| &mut of.devices)).collect()
    }

    /// Each of its choices, in order.
    pub(crate) fn choices(&self) -> impl Iterator<Item = SingleChoice<'static>> + '_ {
        let first = Self { alternatives: None, ..self.clone() };
        let others = self.alternatives.iter().flat_map(|alternatives| &alternatives.others);
        let other = |(number, other): (u16, &Alternative)| {
            let constraints = Constraints {
                models: other.models.clone(),
                attributes: other.attributes.clone(),
                ..self.constraints.clone()
            };
            let further = other.further.clone();
            let request = Self { devices: other.devices, constraints, further, alternatives: None, ..self.clone() };
            SingleChoice { number, rank: other.rank, request: Cow::Owned(request) }
        };
        let first = SingleChoice { number: 0, rank: 0, request: Cow::Owned(first) };
        std::iter::once(first).chain((1..).zip(others).map(other))
    }

    /// The greatest number of device parts that any of its choices asks for.
    #[must_use]
    pub fn device_count_max(&self) -> u16 {
        if self.alternatives.is_none() {
            return self.device_count();
        }
        let counts = (0..self.choice_count())
            .map(|choice| self.wishes_of(choice).fold(0, |sum: u16, wish| sum.saturating_add(wish.devices.count)));
        counts.max().unwrap_or_default()
    }

    /// The least device time that any of its choices asks for, in thousandths of one device.
    #[must_use]
    pub fn least_core(&self) -> u64 {
        if self.alternatives.is_none() {
            return self.total_core();
        }
        let core = |choice| self.wishes_of(choice).map(|wish| wish.devices.total_core()).sum();
        (0..self.choice_count()).map(core).min().unwrap_or_default()
    }

    /// Changes the device requests of this name, in all its choices.
    pub(crate) fn change_devices(&mut self, name: Option<&str>, change: &dyn Fn(&mut DeviceRequest)) {
        for choice in 0..self.choice_count() {
            let named: Vec<bool> = self.wishes_of(choice).map(|wish| wish.name == name).collect();
            let devices = self.devices_mut(choice).into_iter().zip(named);
            devices.filter(|(_, is_named)| *is_named).for_each(|(devices, _)| change(devices));
        }
    }

    /// Changes the models and the attributes that each of its device requests asks for, in all its choices.
    pub fn change_device_constraints(
        &mut self,
        mut change: impl FnMut(&mut BTreeSet<String>, &mut BTreeMap<String, String>),
    ) {
        change(&mut self.constraints.models, &mut self.constraints.attributes);
        let mut change_further = |further: &mut Option<Arc<FurtherRequests>>| {
            if let Some(further) = further {
                let requests = &mut Arc::make_mut(further).requests;
                requests.iter_mut().for_each(|of| change(&mut of.models, &mut of.attributes));
            }
        };
        change_further(&mut self.further);
        let others = self.alternatives.as_mut().map(|all| &mut Arc::make_mut(all).others);
        others.into_iter().flatten().for_each(|other| change_further(&mut other.further));
        let others = self.alternatives.as_mut().map(|all| &mut Arc::make_mut(all).others);
        others.into_iter().flatten().for_each(|other| change(&mut other.models, &mut other.attributes));
    }
}

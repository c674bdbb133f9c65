//! The request of one container, as the translators read it. Values are checked when they are read.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::constraints::Decided;
use crate::dialect::Dialect;
use crate::pod::{Container, NodeFacts, Pod};
use crate::quantity;
use crate::refusal::Refusal;
use crate::wish::{Memory, Share, Wish};

/// The unit of memory of many systems.
pub(crate) const MIB: u64 = 1 << 20;
/// The unit of memory of the others.
pub(crate) const GIB: u64 = 1 << 30;

/// A container with its pod and node.
pub(crate) struct Request<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    /// The container's index in the pod.
    pub(crate) index: usize,
    pub(crate) node: &'a NodeFacts,
}

impl<'a> Request<'a> {
    /// Whether the container asks for this resource.
    pub(crate) fn has(&self, resource: &str) -> bool {
        self.container.resources.contains_key(resource)
    }

    /// A resource's whole number; it may be 0.
    pub(crate) fn number(&self, resource: &str) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.container.resources.get(resource) else { return Ok(None) };
        let number = quantity::whole(text).map_err(|must| Refusal::value(resource, text, must.to_string()))?;
        Ok(Some(number))
    }

    /// A resource's whole number, at least 1.
    pub(crate) fn amount(&self, resource: &str) -> Result<Option<u64>, Refusal> {
        match self.number(resource)? {
            Some(0) => Err(Refusal::value(resource, 0, "at least 1; leave it out where none is needed")),
            found => Ok(found),
        }
    }

    /// A resource's whole number within a range.
    pub(crate) fn amount_within(&self, resource: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, Refusal> {
        let Some(amount) = self.amount(resource)? else { return Ok(None) };
        match u32::try_from(amount).ok().filter(|amount| range.contains(amount)) {
            Some(amount) => Ok(Some(amount)),
            None => Err(Refusal::value(resource, amount, format!("{} to {}", range.start(), range.end()))),
        }
    }

    /// A number of devices, 1 by default.
    pub(crate) fn devices(&self, resource: &str) -> Result<u32, Refusal> {
        Ok(self.amount_within(resource, 1..=u32::from(u16::MAX))?.unwrap_or(1))
    }

    /// A resource that counts memory in units of `unit_bytes`.
    pub(crate) fn memory(&self, resource: &str, unit_bytes: u64) -> Result<Option<Memory>, Refusal> {
        self.memory_of_each(1, resource, unit_bytes)
    }

    /// The same, divided among this number of devices in whole units.
    pub(crate) fn memory_of_each(
        &self,
        devices: u32,
        resource: &str,
        unit_bytes: u64,
    ) -> Result<Option<Memory>, Refusal> {
        let Some(units) = self.amount(resource)? else { return Ok(None) };
        if !units.is_multiple_of(devices.into()) {
            let must = format!("a multiple of {devices}, the number of devices that it is divided among");
            return Err(Refusal::value(resource, units, must));
        }
        match (units / u64::from(devices)).checked_mul(unit_bytes) {
            Some(bytes) => Ok(Some(Memory::Bytes(bytes))),
            None => Err(Refusal::value(resource, units, format!("a number of units of {unit_bytes} bytes"))),
        }
    }

    /// A resource in percent: below 100 a part of one device, in steps of `step`; a multiple of 100 that number of
    /// whole devices.
    pub(crate) fn percent_or_devices(&self, resource: &str, step: u32) -> Result<Option<Percent>, Refusal> {
        let Some(percent) = self.amount_within(resource, 1..=100 * u32::from(u16::MAX))? else { return Ok(None) };
        match percent {
            _ if percent % 100 == 0 => Ok(Some(Percent::Devices(percent / 100))),
            _ if percent < 100 && percent.is_multiple_of(step) => Ok(Some(Percent::Part(percent))),
            _ if percent < 100 => Err(Refusal::value(resource, percent, format!("a multiple of {step} up to 100"))),
            _ => Err(Refusal::value(resource, percent, "at most 100, or a multiple of 100 for several whole devices")),
        }
    }

    /// An annotation of the pod.
    pub(crate) fn annotation(&self, key: &str) -> Option<&'a str> {
        self.pod.annotations.get(key).map(String::as_str)
    }

    /// The entries of a comma-separated annotation, without surrounding blanks and empty entries.
    pub(crate) fn list(&self, key: &str) -> Vec<String> {
        let entries = self.annotation(key).unwrap_or_default().split(',').map(str::trim);
        entries.filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
    }

    /// An annotation that is a number within a range.
    pub(crate) fn annotated<N>(&self, key: &str, range: RangeInclusive<N>) -> Result<Option<N>, Refusal>
    where
        N: FromStr + PartialOrd + Display,
    {
        self.pod.annotated(key, range)
    }

    /// The device indexes that an annotation lists: another scheduler's decision.
    pub(crate) fn decided_indexes(&self, key: &str) -> Result<Option<Decided>, Refusal> {
        let Some(text) = self.annotation(key) else { return Ok(None) };
        let indexes: Result<Vec<u32>, _> = text.split(',').map(|index| index.trim().parse()).collect();
        match indexes {
            Ok(indexes) => Ok(Some(Decided::Indexes(indexes))),
            Err(_) => Err(Refusal::value(key, text, "device numbers with commas, as its scheduler writes them")),
        }
    }

    /// A wish with the default constraints and no variables.
    pub(crate) fn wish(&self, dialect: Dialect, devices: u32, share: Share) -> Wish {
        Wish { dialect, devices, share, priority: None, constraints: Default::default(), variables: Vec::new() }
    }
}

/// The meaning of a resource that counts percent of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Percent {
    /// A part of one device, 1 to 99 percent.
    Part(u32),
    /// This number of whole devices.
    Devices(u32),
}

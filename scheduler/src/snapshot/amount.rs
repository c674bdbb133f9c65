//! Amounts with their units in the keys.

use std::collections::BTreeMap;
use std::fmt;

use aliquot_scheduler_core::{Bytes, Resource};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const GIB: u64 = 1 << 30;

/// A resource with the unit of its amounts: `cpu_milli`, `memory_bytes`, `memory_gib`, `gpus`, `gpu_core_percent`,
/// `gpu_core_milli`, `gpu_memory_bytes`, `gpu_memory_gib`. `gpus:MODEL` and so on mean the time of one model; the model
/// is empty for GPUs that report none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ResourceKey {
    pub(super) resource: Resource,
    /// The size of this unit in the resource's smallest unit.
    pub(super) unit: u64,
}

/// The keys and units. Those for a device's time can also have a model.
const KEYS: [(&str, Resource, u64); 8] = [
    ("cpu_milli", Resource::Cpu, 1),
    ("memory_bytes", Resource::Memory, 1),
    ("memory_gib", Resource::Memory, GIB),
    ("gpu_core_milli", Resource::DeviceCore, 1),
    ("gpu_core_percent", Resource::DeviceCore, 10),
    ("gpus", Resource::DeviceCore, 1000),
    ("gpu_memory_bytes", Resource::DeviceMemory, 1),
    ("gpu_memory_gib", Resource::DeviceMemory, GIB),
];

impl ResourceKey {
    /// The resource with its smallest unit.
    pub(super) fn smallest(resource: Resource) -> Self {
        Self { resource, unit: 1 }
    }

    /// The resource with a common unit, if all these amounts are whole numbers of it.
    pub(super) fn usual(resource: Resource, amounts: &[u64]) -> Self {
        let usual = match resource {
            Resource::DeviceCore | Resource::ModelCore(_) => 10,
            Resource::Memory | Resource::DeviceMemory => GIB,
            Resource::Cpu => 1,
        };
        let unit = if amounts.iter().all(|amount| amount.is_multiple_of(usual)) { usual } else { 1 };
        Self { resource, unit }
    }

    /// Converts an amount to the resource's smallest unit.
    pub(super) fn amount(&self, in_unit: u64) -> Result<u64> {
        in_unit.checked_mul(self.unit).with_context(|| format!("{in_unit} is more than can be counted; say less"))
    }

    /// Amounts by resource, all converted to the smallest unit.
    pub(super) fn amounts(in_units: &BTreeMap<Self, u64>) -> Result<BTreeMap<Resource, u64>> {
        let mut amounts = BTreeMap::new();
        for (key, amount) in in_units {
            let amount = key.amount(*amount).with_context(|| key.to_string())?;
            if amounts.insert(key.resource.clone(), amount).is_some() {
                bail!("{key}: the same resource is named in another unit; name it once");
            }
        }
        Ok(amounts)
    }

    fn of_kind(&self) -> Resource {
        match self.resource {
            Resource::ModelCore(_) => Resource::DeviceCore,
            ref resource => resource.clone(),
        }
    }

    /// Reads `KEY` or `KEY:MODEL`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let (key, model) = match text.split_once(':') {
            Some((key, model)) => (key, Some(model)),
            None => (text, None),
        };
        let known = KEYS
            .iter()
            .find(|(name, resource, _)| *name == key && (model.is_none() || *resource == Resource::DeviceCore));
        let Some((_, resource, unit)) = known else {
            let names: Vec<&str> = KEYS.iter().map(|(name, ..)| *name).collect();
            bail!(
                "{text:?} is not a resource; the resources are {}, gpus:MODEL, gpu_core_percent:MODEL, \
                 gpu_core_milli:MODEL",
                names.join(", ")
            );
        };
        let resource = model.map_or_else(|| resource.clone(), |model| Resource::ModelCore(model.to_owned()));
        Ok(Self { resource, unit: *unit })
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.of_kind();
        let name = KEYS.iter().find(|(_, resource, unit)| *resource == kind && *unit == self.unit);
        f.write_str(name.map_or("", |(name, ..)| name))?;
        match &self.resource {
            Resource::ModelCore(model) => write!(f, ":{model}"),
            _ => Ok(()),
        }
    }
}

impl Serialize for ResourceKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ResourceKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(|error| de::Error::custom(error.to_string()))
    }
}

/// The amount given by one of several keys, each with its unit; `None` if none of the keys is given.
pub(super) fn one_of<const N: usize>(given: [(&str, Option<u64>, u64); N]) -> Result<Option<u64>> {
    let mut amount = None;
    for (key, value, unit) in given {
        let Some(value) = value else { continue };
        if let Some((_, other)) = amount {
            bail!("{other} and {key} are the same resource in different units; give one of them");
        }
        let scaled = value.checked_mul(unit).with_context(|| format!("{key}: {value} is more than can be counted"))?;
        amount = Some((scaled, key));
    }
    Ok(amount.map(|(amount, _)| amount))
}

/// Memory that is given in bytes or in GiB.
pub(super) fn memory(bytes: Option<u64>, gib: Option<u64>) -> Result<Bytes> {
    let amount = one_of([("memory_bytes", bytes, 1), ("memory_gib", gib, GIB)])?;
    Ok(Bytes::new(amount.unwrap_or(0)))
}

/// The entries for an amount of memory: in GiB if it is a whole number of GiB, else in bytes; none for 0.
pub(super) fn memory_entry(bytes: Bytes) -> (Option<u64>, Option<u64>) {
    match bytes.get() {
        0 => (None, None),
        bytes if bytes.is_multiple_of(GIB) => (None, Some(bytes / GIB)),
        bytes => (Some(bytes), None),
    }
}

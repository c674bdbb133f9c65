//! What a task asks for of devices: one request in most cases, several in some.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::known_node::KnownDevice;
use crate::vocabulary::quantity::{Bytes, DeviceCore};

/// Equal parts of a number of devices of one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceRequest {
    /// Number of different devices; 0: none, and what follows is of no account.
    pub count: u16,
    /// Time of each device.
    pub core: DeviceCore,
    /// Memory of each device.
    pub memory: DeviceMemory,
}

impl DeviceRequest {
    /// A part of one device, without memory.
    #[must_use]
    pub fn share(core: DeviceCore) -> Self {
        Self { count: 1, core, memory: DeviceMemory::default() }
    }

    /// Whole devices with all their memory.
    #[must_use]
    pub fn whole(count: u16) -> Self {
        Self { count, core: DeviceCore::WHOLE, memory: DeviceMemory::Thousandths(1000) }
    }

    /// Whether nothing of such a device is left for others, neither time nor memory.
    #[must_use]
    pub fn takes_whole_devices(&self) -> bool {
        self.core == DeviceCore::WHOLE || self.memory == DeviceMemory::Thousandths(1000)
    }

    /// The part of a device with so much memory that others cannot use any more, in thousandths: of its time or of its
    /// memory, whichever is more. More than 1000 if the device has too little memory.
    pub(crate) fn part_of(&self, device_memory: Bytes) -> u32 {
        let of_memory = match self.memory {
            DeviceMemory::Thousandths(part) => part,
            DeviceMemory::Bytes(bytes) if bytes > device_memory => 1001,
            DeviceMemory::Bytes(Bytes::ZERO) => 0,
            // Rounded up: with a thousandth less it would not fit.
            DeviceMemory::Bytes(bytes) => (bytes.thousandths_of(device_memory) + 1).min(1000),
        };
        self.core.get().max(of_memory)
    }

    /// Time of all devices together, in thousandths of one.
    #[must_use]
    pub fn total_core(&self) -> u64 {
        u64::from(self.count) * u64::from(self.core.get())
    }
}

/// Memory of a device: an amount, or a part of what the chosen device has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DeviceMemory {
    /// This much.
    Bytes(Bytes),
    /// So many thousandths of the device's memory, at most 1000.
    Thousandths(u32),
}

impl Default for DeviceMemory {
    fn default() -> Self {
        Self::Bytes(Bytes::ZERO)
    }
}

impl DeviceMemory {
    /// What this is on a device with `memory`.
    #[must_use]
    pub fn on(self, memory: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Thousandths(part) => memory.thousandths(part),
        }
    }
}

/// What a task asks for of devices beside its first request, [`Request::devices`], and what the devices of its requests
/// have to do with each other.
///
/// The devices of one request are different ones. Two requests may have parts of the same device, if it has so much
/// and no link says otherwise.
///
/// [`Request::devices`]: crate::Request::devices
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FurtherRequests {
    /// What the first request is called, for reasons.
    pub first_name: String,
    /// The requests after the first one, in order. No two requests of a task have the same name.
    pub requests: Vec<FurtherRequest>,
    /// All of these must hold.
    pub links: BTreeSet<DeviceLink>,
}

impl FurtherRequests {
    /// The requests of a task that has these parts of devices, each named by its device: one request for all equal parts
    /// of different devices.
    pub fn for_parts<'a>(
        parts: impl IntoIterator<Item = (&'a str, DeviceCore, Bytes)>,
    ) -> (DeviceRequest, Option<Arc<Self>>) {
        let mut requests: Vec<(DeviceRequest, BTreeSet<&str>)> = Vec::new();
        for (device, core, memory) in parts {
            let memory = DeviceMemory::Bytes(memory);
            let is_such = |(of, devices): &&mut (DeviceRequest, BTreeSet<&str>)| {
                (of.core, of.memory) == (core, memory) && !devices.contains(device)
            };
            match requests.iter_mut().find(is_such) {
                Some((of, devices)) => {
                    of.count = of.count.saturating_add(1);
                    devices.insert(device);
                }
                None => requests.push((DeviceRequest { count: 1, core, memory }, BTreeSet::from([device]))),
            }
        }
        let mut requests = requests.into_iter().map(|(devices, _)| devices);
        let first = requests.next().unwrap_or_default();
        let named = |(number, devices): (usize, DeviceRequest)| FurtherRequest {
            name: format!("part {}", number + 2),
            devices,
            ..FurtherRequest::default()
        };
        let requests: Vec<FurtherRequest> = requests.enumerate().map(named).collect();
        let further = (!requests.is_empty())
            .then(|| Arc::new(Self { first_name: "part 1".to_owned(), requests, links: BTreeSet::new() }));
        (first, further)
    }
}

/// A request of a task for devices, after its first one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FurtherRequest {
    /// What it is called, for reasons.
    pub name: String,
    /// Devices and parts of devices: at least one.
    pub devices: DeviceRequest,
    /// Models of which each of its devices must be one; empty: any.
    pub models: BTreeSet<String>,
    /// Attributes that each of its devices must have, with these values.
    pub attributes: BTreeMap<String, String>,
}

impl FurtherRequest {
    pub(crate) fn wish(&self) -> DeviceWish<'_> {
        let Self { name, devices, models, attributes } = self;
        DeviceWish { name: Some(name), devices, models, attributes }
    }
}

/// What the devices of some requests of a task must have in common, or must not. A device without the property will not
/// do.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceLink {
    /// The requests, by their places; 0 is the first one.
    pub requests: BTreeSet<u16>,
    /// What it is about.
    pub property: DeviceProperty,
    /// How the devices are to compare in it.
    pub comparison: Comparison,
}

/// Something that devices can be compared in.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DeviceProperty {
    /// Which device it is.
    Identity,
    /// The group of devices that reach each other by NVLink.
    NvlinkGroup,
    /// The switch that it is attached to.
    Switch,
    /// The value of an attribute.
    Attribute(String),
}

/// How devices are to compare in a property.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Comparison {
    /// All have the same.
    Same,
    /// No two have the same.
    Distinct,
}

/// One of a task's requests for devices: the first or a further one of one of its choices.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWish<'a> {
    /// What it is called; `None`: it is the task's only one.
    pub name: Option<&'a str>,
    /// Devices and parts of devices.
    pub devices: &'a DeviceRequest,
    /// Models of which each of its devices must be one; empty: any.
    pub models: &'a BTreeSet<String>,
    /// Attributes that each of its devices must have, with these values.
    pub attributes: &'a BTreeMap<String, String>,
}

impl DeviceWish<'_> {
    /// Whether a device will do, whatever is free of it.
    #[must_use]
    pub fn admit_device(&self, device: &KnownDevice) -> bool {
        self.admit_model(&device.model)
            && self.attributes.iter().all(|(key, value)| device.attribute(key) == Some(value))
    }

    /// Whether any device will do.
    #[must_use]
    pub fn admit_any_device(&self) -> bool {
        self.models.is_empty() && self.attributes.is_empty()
    }

    /// Whether a device of this model may do.
    #[must_use]
    pub fn admit_model(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.contains(model)
    }
}

/// Each part of a device that requests ask for.
pub(crate) fn parts<'a>(wishes: impl Iterator<Item = DeviceWish<'a>> + 'a) -> impl Iterator<Item = DeviceRequest> + 'a {
    wishes.flat_map(|wish| std::iter::repeat_n(*wish.devices, usize::from(wish.devices.count)))
}

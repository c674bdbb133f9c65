//! The device requests of a task: mostly one request, sometimes several.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::known_node::KnownDevice;
use crate::vocabulary::quantity::{Bytes, DeviceCore};

/// A request for equal parts of one or more devices of one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceRequest {
    /// The number of different devices; with 0, the other fields have no effect.
    pub count: u16,
    /// Time of each device, in thousandths of the device.
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

    /// Whether it leaves nothing of its devices that others could use: no time, or no memory.
    #[must_use]
    pub fn takes_whole_devices(&self) -> bool {
        self.core == DeviceCore::WHOLE || self.memory == DeviceMemory::Thousandths(1000)
    }

    /// The part of a device with this memory that others can no longer use, in thousandths: max(part of its time, part of
    /// its memory). More than 1000 if the device has too little memory.
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

    /// Time of all devices together, in thousandths of one device.
    #[must_use]
    pub fn total_core(&self) -> u64 {
        u64::from(self.count) * u64::from(self.core.get())
    }
}

/// Memory of a device: an amount, or a part of what the chosen device has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DeviceMemory {
    /// The same amount on every device.
    Bytes(Bytes),
    /// This many thousandths of the device's memory, at most 1000.
    Thousandths(u32),
}

impl Default for DeviceMemory {
    fn default() -> Self {
        Self::Bytes(Bytes::ZERO)
    }
}

impl DeviceMemory {
    /// The amount on a device with `memory`.
    #[must_use]
    pub fn on(self, memory: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Thousandths(part) => memory.thousandths(part),
        }
    }
}

/// The device requests of a task after its first one ([`Request::devices`]), and the relations between the devices of
/// its requests.
///
/// The devices of one request are different devices. Two requests may have parts of the same device, if it has enough
/// for both and no link forbids it.
///
/// [`Request::devices`]: crate::Request::devices
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FurtherRequests {
    /// The name of the first request, for reasons.
    pub first_name: String,
    /// The requests after the first one, in order. No two requests of a task have the same name.
    pub requests: Vec<FurtherRequest>,
    /// The links between devices; all of them must hold.
    pub links: BTreeSet<DeviceLink>,
}

impl FurtherRequests {
    /// The requests of a task that has these parts of devices, each given with its device: one request for all equal
    /// parts of different devices.
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

/// A device request of a task, after its first one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FurtherRequest {
    /// The name of the request, for reasons.
    pub name: String,
    /// The devices, or parts of devices, that it asks for: at least one.
    pub devices: DeviceRequest,
    /// Each of its devices must be of one of these models; empty: any model.
    pub models: BTreeSet<String>,
    /// Each of its devices must have these attributes, with these values.
    pub attributes: BTreeMap<String, String>,
}

impl FurtherRequest {
    pub(crate) fn wish(&self) -> DeviceWish<'_> {
        let Self { name, devices, models, attributes } = self;
        DeviceWish { name: Some(name), devices, models, attributes }
    }
}

/// What the devices of some requests of a task must, or must not, have in common. A device without the property is not
/// accepted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DeviceLink {
    /// The positions of the requests; 0 is the first one.
    pub requests: BTreeSet<u16>,
    /// The property that is compared.
    pub property: DeviceProperty,
    /// How the devices must compare in it.
    pub comparison: Comparison,
}

/// A property in which devices can be compared.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DeviceProperty {
    /// The identity of the device.
    Identity,
    /// The group of devices that reach each other by NVLink.
    NvlinkGroup,
    /// The switch that the device is attached to.
    Switch,
    /// The value of this attribute.
    Attribute(String),
}

/// How devices must compare in a property.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Comparison {
    /// All devices have the same value.
    Same,
    /// No two devices have the same value.
    Distinct,
}

/// One device request of one of a task's choices.
#[derive(Clone, Copy, Debug)]
pub struct DeviceWish<'a> {
    /// The name of the request; `None`: it is the task's only one.
    pub name: Option<&'a str>,
    /// The devices, or parts of devices, that it asks for.
    pub devices: &'a DeviceRequest,
    /// Each of its devices must be of one of these models; empty: any model.
    pub models: &'a BTreeSet<String>,
    /// Each of its devices must have these attributes, with these values.
    pub attributes: &'a BTreeMap<String, String>,
}

impl DeviceWish<'_> {
    /// Whether a device is accepted, whatever is free of it.
    #[must_use]
    pub fn admit_device(&self, device: &KnownDevice) -> bool {
        self.admit_model(&device.model)
            && self.attributes.iter().all(|(key, value)| device.attribute(key) == Some(value))
    }

    /// Whether every device is accepted.
    #[must_use]
    pub fn admit_any_device(&self) -> bool {
        self.models.is_empty() && self.attributes.is_empty()
    }

    /// Whether devices of this model can be accepted.
    #[must_use]
    pub fn admit_model(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.contains(model)
    }
}

/// The request behind each part of a device.
pub(crate) fn parts<'a>(wishes: impl Iterator<Item = DeviceWish<'a>> + 'a) -> impl Iterator<Item = DeviceRequest> + 'a {
    wishes.flat_map(|wish| std::iter::repeat_n(*wish.devices, usize::from(wish.devices.count)))
}

//! The request of one task.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::alternatives::Alternatives;
use crate::vocabulary::counted::is_enough;
use crate::vocabulary::device_request::{DeviceMemory, DeviceRequest, DeviceWish, FurtherRequests, parts};
use crate::vocabulary::known_node::{KnownDevice, KnownNode};
use crate::vocabulary::node_term::NodeTerm;
use crate::vocabulary::peers::Peers;
use crate::vocabulary::preference::Preferences;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::taint::{Taint, Toleration};

/// Everything that decides where a task can run. Tasks with equal requests are interchangeable for placement; they form
/// a class.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Request {
    /// CPU of the task, not per device.
    pub cpu: MilliCpu,
    /// Memory of the task, not per device.
    pub memory: Bytes,
    /// The first, and mostly the only, request for devices or parts of devices.
    pub devices: DeviceRequest,
    /// Its further requests for devices; `None`: it has none, as most tasks. The models and attributes of
    /// [`Constraints`] are about [`Request::devices`] alone. [`PlacementRules`] are about the devices of all its
    /// requests.
    pub further: Option<Arc<FurtherRequests>>,
    /// Its other choices of devices, if it cannot have the first one; `None`: it has no other choice, as most tasks.
    pub alternatives: Option<Arc<Alternatives>>,
    /// The constraints on the nodes and devices where it may run.
    pub constraints: Constraints,
    /// The nodes that it prefers; `None`: it has no preference.
    pub preferences: Option<Arc<Preferences>>,
    /// Rules about the devices of a node that it may or should have together.
    pub rules: PlacementRules,
    /// The counted resources of the node that it takes, by name; see [`NodeSpec::counted`](crate::NodeSpec::counted).
    pub counted: BTreeMap<String, u64>,
    /// The groups of tasks that it is a member of, and its rules about the places of other tasks; `None`: it has
    /// neither.
    pub peers: Option<Arc<Peers>>,
}

/// The constraints on where a task may run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Constraints {
    /// Each of its devices must be of one of these models; empty: any model.
    pub models: BTreeSet<String>,
    /// Each of its devices must have these attributes, with these values.
    pub attributes: BTreeMap<String, String>,
    /// Labels that the node must have, with these values.
    pub labels: BTreeMap<String, String>,
    /// The taints that do not keep it away.
    pub tolerations: BTreeSet<Toleration>,
    /// The node's labels must match at least one of these terms; empty: any node is accepted.
    pub node_terms: BTreeSet<NodeTerm>,
}

impl Constraints {
    /// Whether a node's labels and taints allow the task there. Models and attributes are checked for each device.
    #[must_use]
    pub fn admit(&self, node: &KnownNode) -> bool {
        self.missing_labels(node).next().is_none()
            && self.admit_by_terms(node)
            && self.untolerated(node).next().is_none()
    }

    /// The required labels that the node does not have, or has with other values.
    pub(crate) fn missing_labels<'a>(&'a self, node: &'a KnownNode) -> impl Iterator<Item = (&'a str, &'a str)> {
        let missing = self.labels.iter().filter(|(key, value)| node.labels.get(key) != Some(value));
        missing.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether the node's labels match one of the terms. True if there are no terms.
    pub(crate) fn admit_by_terms(&self, node: &KnownNode) -> bool {
        self.node_terms.is_empty() || self.node_terms.iter().any(|term| term.matches(&node.labels))
    }

    /// The node's taints that keep the task away.
    pub(crate) fn untolerated<'a>(&'a self, node: &'a KnownNode) -> impl Iterator<Item = &'a Taint> {
        node.taints.iter().filter(|taint| taint.keeps_away() && !self.tolerates(taint))
    }

    /// The number of untolerated taints of the node that do not keep the task away, but make the node less preferred.
    pub(crate) fn disliked_taints(&self, node: &KnownNode) -> usize {
        node.taints.iter().filter(|taint| !taint.keeps_away() && !self.tolerates(taint)).count()
    }

    fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }

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

/// Rules about the devices of a node that a task may or should have together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PlacementRules {
    /// Whether its devices must, or should, reach each other by NVLink.
    pub nvlink: Alignment,
    /// Whether its devices must, or should, be attached to the same switch. If both are preferred, NVLink is preferred
    /// more.
    pub switch: Alignment,
    /// The most of a device's memory that may be in use, in percent, with what the task itself takes. Devices that would
    /// exceed it are not taken.
    pub memory_threshold_percent: Option<u8>,
}

impl PlacementRules {
    /// The rules that demand what both of these demand.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let percent = [self.memory_threshold_percent, other.memory_threshold_percent];
        Self {
            nvlink: self.nvlink.max(other.nvlink),
            switch: self.switch.max(other.switch),
            memory_threshold_percent: percent.into_iter().flatten().min(),
        }
    }

    /// Whether the rules prefer or require that a task's devices are near each other.
    #[must_use]
    pub fn align(&self) -> bool {
        self.nvlink != Alignment::Any || self.switch != Alignment::Any
    }

    /// Whether the rules require that a task's devices are near each other.
    #[must_use]
    pub fn require_alignment(&self) -> bool {
        self.nvlink == Alignment::Required || self.switch == Alignment::Required
    }
}

/// Whether a task's devices should be near each other. For a single device this has no effect.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Alignment {
    /// It does not matter.
    #[default]
    Any,
    /// The devices are near each other if that is possible on any node.
    Preferred,
    /// The devices must be near each other, or the task does not run.
    Required,
}

impl Request {
    /// The device requests of its first choice, in order. A task without devices has one request, for no device.
    pub fn wishes(&self) -> impl Iterator<Item = DeviceWish<'_>> + Clone {
        self.wishes_of(0)
    }

    /// The first device request of its first choice.
    pub(crate) fn first_wish(&self) -> DeviceWish<'_> {
        let Constraints { models, attributes, .. } = &self.constraints;
        let name = match &self.further {
            Some(further) => Some(further.first_name.as_str()),
            None => self.alternatives.as_ref().map(|alternatives| alternatives.first_name.as_str()),
        };
        DeviceWish { name, devices: &self.devices, models, attributes }
    }

    /// The request behind each part of a device that it gets with its first choice, in the order of allocations.
    pub fn parts(&self) -> impl Iterator<Item = DeviceRequest> + '_ {
        parts(self.wishes())
    }

    /// The number of device parts in its first choice, over all device requests.
    #[must_use]
    pub fn device_count(&self) -> u16 {
        match self.further {
            None => self.devices.count,
            Some(_) => self.wishes().fold(0, |sum, wish| sum.saturating_add(wish.devices.count)),
        }
    }

    /// Device time in its first choice, over all device requests, in thousandths of one device.
    #[must_use]
    pub fn total_core(&self) -> u64 {
        match self.further {
            None => self.devices.total_core(),
            Some(_) => self.wishes().map(|wish| wish.devices.total_core()).sum(),
        }
    }

    /// Whether the task has other choices of devices.
    pub(crate) fn has_alternatives(&self) -> bool {
        self.alternatives.is_some()
    }

    /// Whether it has at most one device request, and no other choice.
    pub(crate) fn has_one_wish(&self) -> bool {
        self.further.is_none() && self.alternatives.is_none()
    }

    /// Each device request of its first choice as the only one of a task. The first of these tasks has what is asked
    /// for of the node. Rules about peers are left out.
    pub(crate) fn singles(&self) -> Vec<Self> {
        let single = |(number, wish): (usize, DeviceWish<'_>)| {
            let constraints = Constraints {
                models: wish.models.clone(),
                attributes: wish.attributes.clone(),
                ..self.constraints.clone()
            };
            let first = match number {
                0 => Self { cpu: self.cpu, memory: self.memory, counted: self.counted.clone(), ..Self::default() },
                _ => Self::default(),
            };
            Self { devices: *wish.devices, constraints, rules: self.rules, ..first }
        };
        self.wishes().enumerate().map(single).collect()
    }

    /// Whether there is room for `other` wherever there is room for this: it asks for at least as much of everything,
    /// and for the same sort of place.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let devices = |this: &DeviceRequest, other: &DeviceRequest| {
            let memory = match (this.memory, other.memory) {
                (DeviceMemory::Bytes(this), DeviceMemory::Bytes(other)) => this >= other,
                (DeviceMemory::Thousandths(this), DeviceMemory::Thousandths(other)) => this >= other,
                _ => false,
            };
            this.count >= other.count && this.core >= other.core && memory
        };
        self.cpu >= other.cpu
            && self.memory >= other.memory
            && (other.devices.count == 0 || devices(&self.devices, &other.devices))
            && (other.further.is_none() || self.further == other.further)
            && (self.alternatives.is_none() || self.alternatives == other.alternatives)
            && self.constraints == other.constraints
            && self.rules == other.rules
            && is_enough(&self.counted, &other.counted)
            // A task without peers is placed wherever there is room.
            && (other.peers.is_none() || self.peers == other.peers)
    }

    /// Checks for requests that can never be met in this form.
    ///
    /// # Errors
    /// If a part of a device is more than a device, if devices are asked for but nothing of them, if a rule can never
    /// be met, or if further requests or alternatives are not as [`FurtherRequests`] and [`Alternatives`] say.
    pub fn validate(&self) -> Result<(), RequestError> {
        let others = self.alternatives.as_ref().map(|alternatives| &alternatives.others);
        if let Some(others) = others.filter(|others| !(1..Alternatives::CHOICES_MAX).contains(&others.len())) {
            return Err(RequestError::Choices { choices: others.len() + 1 });
        }
        let further = others.into_iter().flatten().map(|other| other.further.as_deref());
        for (choice, further) in (0..).zip(std::iter::once(self.further.as_deref()).chain(further)) {
            self.validate_choice(choice, further)?;
        }
        if self.devices.count == 0 {
            return Ok(());
        }
        if let Some(percent) = self.rules.memory_threshold_percent.filter(|percent| !(1..=100).contains(percent)) {
            return Err(RequestError::MemoryThreshold { percent });
        }
        self.all_wishes().try_for_each(|wish| self.validate_devices(wish.devices))
    }

    fn validate_devices(&self, devices: &DeviceRequest) -> Result<(), RequestError> {
        if devices.core > DeviceCore::WHOLE {
            return Err(RequestError::CorePerDevice { core: devices.core });
        }
        match (devices.memory, self.rules.memory_threshold_percent) {
            (DeviceMemory::Thousandths(part), Some(percent)) if part <= 1000 && part > u32::from(percent) * 10 => {
                Err(RequestError::AboveMemoryThreshold { thousandths: part, percent })
            }
            (DeviceMemory::Thousandths(part), _) if part > 1000 => {
                Err(RequestError::MemoryPerDevice { thousandths: part })
            }
            (DeviceMemory::Thousandths(0) | DeviceMemory::Bytes(Bytes::ZERO), _)
                if devices.core == DeviceCore::ZERO =>
            {
                Err(RequestError::NothingOfADevice { count: devices.count })
            }
            _ => Ok(()),
        }
    }

    fn validate_choice(&self, choice: u16, further: Option<&FurtherRequests>) -> Result<(), RequestError> {
        let Some(further) = further else {
            let lacks_device =
                self.alternatives.is_some() && self.wishes_of(choice).any(|wish| wish.devices.count == 0);
            return if lacks_device { Err(RequestError::EmptyChoice { choice }) } else { Ok(()) };
        };
        let mut names = BTreeSet::new();
        for (number, wish) in (0u16..).zip(self.wishes_of(choice)) {
            if wish.devices.count == 0 {
                return Err(RequestError::NoDevice { number });
            }
            if !names.insert(wish.name) {
                return Err(RequestError::SameName { number });
            }
        }
        let requests = names.len();
        let of_links = further.links.iter().flat_map(|link| &link.requests);
        match of_links.max().filter(|number| usize::from(**number) >= requests) {
            Some(number) => Err(RequestError::NoSuchRequest { number: *number, requests }),
            None => Ok(()),
        }
    }
}

/// Why a request is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// More time of each device than a device has.
    #[error("{} thousandths of each device's time are asked for, a device has 1000; ask for more devices", core.get())]
    CorePerDevice {
        /// The requested time of each device.
        core: DeviceCore,
    },
    /// A part of a device's memory that is more than all of it.
    #[error("{thousandths} thousandths of each device's memory are asked for, a device has 1000; ask for more devices")]
    MemoryPerDevice {
        /// The requested part of each device's memory.
        thousandths: u32,
    },
    /// A memory threshold that is not a percentage from 1 to 100.
    #[error("the memory threshold is {percent} %; it must be 1 to 100 %")]
    MemoryThreshold {
        /// The requested threshold, in percent of a device's memory.
        percent: u8,
    },
    /// More memory of each device than the task's own threshold allows.
    #[error(
        "{thousandths} thousandths of each device's memory are asked for, but the memory threshold allows at most \
         {percent} % of a device's memory to be in use; raise the threshold or ask for less"
    )]
    AboveMemoryThreshold {
        /// The requested part of each device's memory.
        thousandths: u32,
        /// The threshold.
        percent: u8,
    },
    /// Devices are asked for, but neither time nor memory of them.
    #[error(
        "{count} devices are asked for, but neither time nor memory of them; ask for time or memory, or for no device"
    )]
    NothingOfADevice {
        /// The requested number of devices.
        count: u16,
    },
    /// One of several device requests is for no device.
    #[error("request {number} of several, counted from 0, asks for no device; ask for one at least, or leave it out")]
    NoDevice {
        /// The position of the request, counted from 0.
        number: u16,
    },
    /// An alternative is for no device, or the first choice is for no device although there are alternatives.
    #[error("choice {choice} of several, counted from 0, asks for no device; ask for one at least, or leave it out")]
    EmptyChoice {
        /// The position of the choice, counted from 0.
        choice: u16,
    },
    /// There are too many choices, or alternatives are given but empty.
    #[error("there are {choices} choices; a task with alternatives has 2 to {max}", max = Alternatives::CHOICES_MAX)]
    Choices {
        /// The number of choices, the first one included.
        choices: usize,
    },
    /// Two requests have the same name.
    #[error("request {number} of several, counted from 0, has the name of one before it; give each its own")]
    SameName {
        /// The position of the later request, counted from 0.
        number: u16,
    },
    /// A link names a request that does not exist.
    #[error("a link names request {number} (counted from 0), but there are {requests} requests; name an existing one")]
    NoSuchRequest {
        /// The position that the link names, counted from 0.
        number: u16,
        /// The number of the task's device requests.
        requests: usize,
    },
}

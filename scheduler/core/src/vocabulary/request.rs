//! What one task asks for.

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

/// All that decides where a task can run. Tasks with equal requests are interchangeable to placement: they form a
/// class.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Request {
    /// CPU of the task, not per device.
    pub cpu: MilliCpu,
    /// Memory of the task, not per device.
    pub memory: Bytes,
    /// Devices and parts of devices.
    pub devices: DeviceRequest,
    /// What else it asks for of devices; `None`: nothing, as most tasks. What [`Constraints`] say of models and
    /// attributes is about [`Request::devices`] alone; [`PlacementRules`] are about the devices of all its requests.
    pub further: Option<Arc<FurtherRequests>>,
    /// What it takes of devices where it cannot have that; `None`: nothing else will do, as for most tasks.
    pub alternatives: Option<Arc<Alternatives>>,
    /// Where it may run.
    pub constraints: Constraints,
    /// On which nodes it would rather run; `None`: on any.
    pub preferences: Option<Arc<Preferences>>,
    /// Which devices of a node it may or should have.
    pub rules: PlacementRules,
    /// What else it takes of the node, by name; see [`NodeSpec::counted`](crate::NodeSpec::counted).
    pub counted: BTreeMap<String, u64>,
    /// What its place has to do with the places of others; `None`: nothing.
    pub peers: Option<Arc<Peers>>,
}

/// Where a task may run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Constraints {
    /// Models of which each of its devices must be one; empty: any.
    pub models: BTreeSet<String>,
    /// Attributes that each of its devices must have, with these values.
    pub attributes: BTreeMap<String, String>,
    /// Labels that the node must have, with these values.
    pub labels: BTreeMap<String, String>,
    /// Taints that do not keep it away.
    pub tolerations: BTreeSet<Toleration>,
    /// Terms of which the node's labels must match at least one; empty: any node will do.
    pub node_terms: BTreeSet<NodeTerm>,
}

impl Constraints {
    /// Whether a node's labels and taints allow the task there. Models and attributes are a matter of each device.
    #[must_use]
    pub fn admit(&self, node: &KnownNode) -> bool {
        self.missing_labels(node).next().is_none()
            && self.admit_by_terms(node)
            && self.untolerated(node).next().is_none()
    }

    /// Labels that are asked for and that the node does not have, or not with these values.
    pub(crate) fn missing_labels<'a>(&'a self, node: &'a KnownNode) -> impl Iterator<Item = (&'a str, &'a str)> {
        let missing = self.labels.iter().filter(|(key, value)| node.labels.get(key) != Some(value));
        missing.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether the node's labels match one of the terms, if there are any.
    pub(crate) fn admit_by_terms(&self, node: &KnownNode) -> bool {
        self.node_terms.is_empty() || self.node_terms.iter().any(|term| term.matches(&node.labels))
    }

    /// The node's taints that keep the task away.
    pub(crate) fn untolerated<'a>(&'a self, node: &'a KnownNode) -> impl Iterator<Item = &'a Taint> {
        node.taints.iter().filter(|taint| taint.keeps_away() && !self.tolerates(taint))
    }

    /// How many taints the node has that only ask the task to stay away.
    pub(crate) fn disliked_taints(&self, node: &KnownNode) -> usize {
        node.taints.iter().filter(|taint| !taint.keeps_away() && !self.tolerates(taint)).count()
    }

    fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.tolerates(taint))
    }

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

/// Which devices of a node a task may or should have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PlacementRules {
    /// Devices that reach each other by NVLink.
    pub nvlink: Alignment,
    /// Devices that are attached to the same switch. Where both are preferred, NVLink is preferred more.
    pub switch: Alignment,
    /// Never a device of whose memory more than this is used then, in percent; what the task itself takes counts.
    pub memory_threshold_percent: Option<u8>,
}

impl PlacementRules {
    /// What both of these demand.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let percent = [self.memory_threshold_percent, other.memory_threshold_percent];
        Self {
            nvlink: self.nvlink.max(other.nvlink),
            switch: self.switch.max(other.switch),
            memory_threshold_percent: percent.into_iter().flatten().min(),
        }
    }

    /// Whether it matters which devices a task has together.
    #[must_use]
    pub fn align(&self) -> bool {
        self.nvlink != Alignment::Any || self.switch != Alignment::Any
    }

    /// Whether some devices are out of the question together.
    #[must_use]
    pub fn require_alignment(&self) -> bool {
        self.nvlink == Alignment::Required || self.switch == Alignment::Required
    }
}

/// Whether a task's devices should be near each other. For a single device it is of no account.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Alignment {
    /// It does not matter.
    #[default]
    Any,
    /// If that can be had, on any node.
    Preferred,
    /// Without that the task does not run.
    Required,
}

impl Request {
    /// Its requests for devices in its first choice, in order. A task without devices has one, of no device.
    pub fn wishes(&self) -> impl Iterator<Item = DeviceWish<'_>> + Clone {
        self.wishes_of(0)
    }

    /// The first of them.
    pub(crate) fn first_wish(&self) -> DeviceWish<'_> {
        let Constraints { models, attributes, .. } = &self.constraints;
        let name = match &self.further {
            Some(further) => Some(further.first_name.as_str()),
            None => self.alternatives.as_ref().map(|alternatives| alternatives.first_name.as_str()),
        };
        DeviceWish { name, devices: &self.devices, models, attributes }
    }

    /// What it asks for of each part of a device that it gets as its first choice, in the order of allocations.
    pub fn parts(&self) -> impl Iterator<Item = DeviceRequest> + '_ {
        parts(self.wishes())
    }

    /// How many parts of devices it asks for in its first choice, in all its requests together.
    #[must_use]
    pub fn device_count(&self) -> u16 {
        match self.further {
            None => self.devices.count,
            Some(_) => self.wishes().fold(0, |sum, wish| sum.saturating_add(wish.devices.count)),
        }
    }

    /// Time of devices that it asks for in its first choice, in all its requests together, in thousandths of one.
    #[must_use]
    pub fn total_core(&self) -> u64 {
        match self.further {
            None => self.devices.total_core(),
            Some(_) => self.wishes().map(|wish| wish.devices.total_core()).sum(),
        }
    }

    /// Whether something else of devices will do.
    pub(crate) fn has_alternatives(&self) -> bool {
        self.alternatives.is_some()
    }

    /// Whether it has one request for devices, or none, and nothing else will do.
    pub(crate) fn has_one_wish(&self) -> bool {
        self.further.is_none() && self.alternatives.is_none()
    }

    /// Each of its requests for devices in its first choice as the only one of a task. What is asked for of the node is in the first of
    /// them. What is said of the places of others is left out.
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

    /// Whether wherever there is room for this there is room for `other`: it asks for as much of everything, and for
    /// the same sort of place.
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
            // Whoever has to do with nobody is placed wherever there is room.
            && (other.peers.is_none() || self.peers == other.peers)
    }

    /// Says what is wrong with a request that can never be met as it stands.
    ///
    /// # Errors If a part of a device is more than a device, devices are asked for of which nothing is wanted, a rule
    /// can never be met, or further requests or alternatives are not what [`FurtherRequests`] and [`Alternatives`] say.
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

/// A request that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// More time of a device than a device has.
    #[error("{} thousandths of each device's time are asked for, a device has 1000; ask for more devices", core.get())]
    CorePerDevice {
        /// What is asked for.
        core: DeviceCore,
    },
    /// A larger part of a device's memory than all of it.
    #[error("{thousandths} thousandths of each device's memory are asked for, a device has 1000; ask for more devices")]
    MemoryPerDevice {
        /// What is asked for.
        thousandths: u32,
    },
    /// A threshold that is no percentage above 0.
    #[error("a memory threshold of {percent} % makes no sense; it must be between 1 and 100")]
    MemoryThreshold {
        /// What is asked for.
        percent: u8,
    },
    /// More memory of each device than may be used of it by the task's own rule.
    #[error(
        "{thousandths} thousandths of each device's memory are asked for, but no device of whose memory more than \
         {percent} % is used; raise the memory threshold or ask for less"
    )]
    AboveMemoryThreshold {
        /// What is asked for of each device's memory.
        thousandths: u32,
        /// The threshold.
        percent: u8,
    },
    /// Devices are asked for, but neither time nor memory of them.
    #[error("{count} devices are asked for, but neither time nor memory of them; ask for some, or for no device")]
    NothingOfADevice {
        /// How many devices.
        count: u16,
    },
    /// One of several requests is for no device.
    #[error("request {number} of several, counted from 0, asks for no device; ask for one at least, or leave it out")]
    NoDevice {
        /// The place of the request, counted from 0.
        number: u16,
    },
    /// An alternative is for no device, or the first choice is and there are alternatives.
    #[error("choice {choice} of several, counted from 0, asks for no device; ask for one at least, or leave it out")]
    EmptyChoice {
        /// The place of the choice, counted from 0.
        choice: u16,
    },
    /// Too many choices, or one alone although alternatives are given.
    #[error("there are {choices} choices; a task with alternatives has 2 to {max}", max = Alternatives::CHOICES_MAX)]
    Choices {
        /// How many choices the task has, with the first one.
        choices: usize,
    },
    /// Two requests have the same name.
    #[error("request {number} of several, counted from 0, has the name of one before it; give each its own")]
    SameName {
        /// The place of the later request, counted from 0.
        number: u16,
    },
    /// A link is about a request that is not there.
    #[error("a link names request {number}, counted from 0, of {requests} requests; name those that there are")]
    NoSuchRequest {
        /// The place that the link names, counted from 0.
        number: u16,
        /// How many requests the task has.
        requests: usize,
    },
}

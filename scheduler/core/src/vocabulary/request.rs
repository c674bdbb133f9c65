//! What one task asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::vocabulary::counted::is_enough;
use crate::vocabulary::node_term::NodeTerm;
use crate::vocabulary::peers::Peers;
use crate::vocabulary::quantity::{Bytes, DeviceCore, MilliCpu};
use crate::vocabulary::spec::{DeviceSpec, NodeSpec};
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
    /// Where it may run.
    pub constraints: Constraints,
    /// Which devices of a node it may or should have.
    pub rules: PlacementRules,
    /// What else it takes of the node, by name; see [`NodeSpec::counted`].
    pub counted: BTreeMap<String, u64>,
    /// What its place has to do with the places of others; `None`: nothing.
    pub peers: Option<Arc<Peers>>,
}

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
    pub fn admit(&self, node: &NodeSpec) -> bool {
        self.missing_labels(node).next().is_none()
            && self.admit_by_terms(node)
            && self.untolerated(node).next().is_none()
    }

    /// Labels that are asked for and that the node does not have, or not with these values.
    pub(crate) fn missing_labels<'a>(&'a self, node: &'a NodeSpec) -> impl Iterator<Item = (&'a str, &'a str)> {
        let missing = self.labels.iter().filter(|(key, value)| node.labels.get(*key) != Some(value));
        missing.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether the node's labels match one of the terms, if there are any.
    pub(crate) fn admit_by_terms(&self, node: &NodeSpec) -> bool {
        self.node_terms.is_empty() || self.node_terms.iter().any(|term| term.matches(&node.labels))
    }

    /// The node's taints that keep the task away.
    pub(crate) fn untolerated<'a>(&'a self, node: &'a NodeSpec) -> impl Iterator<Item = &'a Taint> {
        node.taints.iter().filter(|taint| !self.tolerations.iter().any(|toleration| toleration.tolerates(taint)))
    }

    /// Whether a device will do, whatever is free of it.
    #[must_use]
    pub fn admit_device(&self, device: &DeviceSpec) -> bool {
        self.admit_model(&device.model)
            && self.attributes.iter().all(|(key, value)| device.attributes.get(key) == Some(value))
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
            && self.constraints == other.constraints
            && self.rules == other.rules
            && is_enough(&self.counted, &other.counted)
            // Whoever has to do with nobody is placed wherever there is room.
            && (other.peers.is_none() || self.peers == other.peers)
    }

    /// Says what is wrong with a request that can never be met as it stands.
    ///
    /// # Errors If a part of a device is more than a device, devices are asked for of which nothing is wanted, or a
    /// rule can never be met.
    pub fn validate(&self) -> Result<(), RequestError> {
        let devices = &self.devices;
        if devices.count == 0 {
            return Ok(());
        }
        if devices.core > DeviceCore::WHOLE {
            return Err(RequestError::CorePerDevice { core: devices.core });
        }
        if let Some(percent) = self.rules.memory_threshold_percent {
            if !(1..=100).contains(&percent) {
                return Err(RequestError::MemoryThreshold { percent });
            }
            match devices.memory {
                DeviceMemory::Thousandths(part) if part <= 1000 && part > u32::from(percent) * 10 => {
                    return Err(RequestError::AboveMemoryThreshold { thousandths: part, percent });
                }
                _ => {}
            }
        }
        match devices.memory {
            DeviceMemory::Thousandths(part) if part > 1000 => Err(RequestError::MemoryPerDevice { thousandths: part }),
            DeviceMemory::Thousandths(0) | DeviceMemory::Bytes(Bytes::ZERO) if devices.core == DeviceCore::ZERO => {
                Err(RequestError::NothingOfADevice { count: devices.count })
            }
            _ => Ok(()),
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
}

//! What managers say of their nodes' devices, beside what the API server knows.

use std::collections::BTreeMap;

use aliquot_scheduler_core::{Bytes, DeviceSpec, Health};

use super::Mirror;
use crate::dra;
use crate::scheduling_policy::Enforcement;

/// The attributes of devices whose parts are enforced in this way, or more strictly. Users read the names in the
/// reasons why pods wait.
const SHARES: &str = "guaranteed shares";
const HARDWARE: &str = "separation by hardware";

/// What a manager says of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceSaid {
    /// Why it gets nothing new.
    pub(crate) problem: Option<String>,
    pub(crate) enforcement: Enforcement,
    /// Memory in use that no slice was given, in percent of the device's memory, rounded up.
    pub(crate) outside_percent: u8,
}

/// What a manager says of its node's devices, by UUID.
pub(crate) type DevicesSaid = BTreeMap<String, DeviceSaid>;

/// A device that gets nothing new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IllDevice {
    pub(crate) node: String,
    /// `None`: all devices of the node.
    pub(crate) uuid: Option<String>,
    pub(crate) problem: String,
}

/// The attribute that devices must have for this enforcement; `None`: any device will do.
pub(super) fn attribute_of(enforcement: Enforcement) -> Option<&'static str> {
    match enforcement {
        Enforcement::Any => None,
        Enforcement::Shares => Some(SHARES),
        Enforcement::Hardware => Some(HARDWARE),
    }
}

impl Mirror {
    /// Takes in what the manager of a node says of its devices; `None`: the manager is silent.
    pub(crate) fn manager_says(&mut self, node: &str, said: Option<DevicesSaid>) {
        let before = match said {
            Some(said) if self.said.get(node) == Some(&said) => return,
            Some(said) => self.said.insert(node.to_owned(), said),
            None => self.said.remove(node),
        };
        if (before.is_some() || self.said.contains_key(node)) && self.nodes.contains_key(node) {
            self.changed_nodes.insert(node.to_owned());
            self.elastic_gpus_of_node_changed(node);
        }
    }

    /// Adds to a node's devices what its manager says of them. What it says of other devices is ignored.
    pub(super) fn add_what_is_said(&self, node: &str, devices: &mut [DeviceSpec]) {
        let Some(said) = self.said.get(node) else { return };
        for device in devices {
            let Some(of_device) = self.hardware_uuid(node, &device.uuid).and_then(|uuid| said.get(uuid)) else {
                continue;
            };
            if of_device.problem.is_some() {
                device.health = Health::Unhealthy;
            }
            let outside = u128::from(device.memory.get()) * u128::from(of_device.outside_percent) / 100;
            device.memory_outside = Bytes::new(u64::try_from(outside).unwrap_or(u64::MAX));
            let kept =
                [Enforcement::Shares, Enforcement::Hardware].into_iter().filter(|of| *of <= of_device.enforcement);
            let kept = kept.filter_map(attribute_of).map(|attribute| (attribute.to_owned(), "true".to_owned()));
            device.attributes.extend(kept);
        }
    }

    /// What the manager says of a device that the books know by this name.
    pub(super) fn said_of(&self, node: &str, name: &str) -> Option<&DeviceSaid> {
        self.said.get(node)?.get(self.hardware_uuid(node, name)?)
    }

    /// The UUID of a device that the books know by this name.
    fn hardware_uuid<'a>(&'a self, node: &str, name: &'a str) -> Option<&'a str> {
        match self.device_claims.device(node, name) {
            Some((_, device)) => dra::hardware_uuid(device),
            None => Some(name),
        }
    }

    /// The devices that get nothing new, as their inventories or managers say, and the nodes of which no device does.
    pub(crate) fn ill_devices(&self) -> Vec<IllDevice> {
        let mut ill: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        for (name, node) in &self.nodes {
            let inventory = node.facts.inventory.iter().flatten();
            let told = inventory.flat_map(|inventory| &inventory.devices);
            ill.extend(told.filter_map(|of| Some(((name.as_str(), of.uuid.as_str()), of.problem.as_deref()?))));
            let said = self.said.get(name).into_iter().flatten();
            ill.extend(said.filter_map(|(uuid, of)| Some(((name.as_str(), uuid.as_str()), of.problem.as_deref()?))));
        }
        let ill_device = |node: &str, uuid: Option<&str>, problem: &str| IllDevice {
            node: node.to_owned(),
            uuid: uuid.map(str::to_owned),
            problem: problem.to_owned(),
        };
        let withheld = self.nodes.iter().filter_map(|(name, node)| Some((name, node.withheld.as_ref()?)));
        let whole = withheld.map(|(node, problem)| ill_device(node, None, problem));
        whole.chain(ill.into_iter().map(|((node, uuid), problem)| ill_device(node, Some(uuid), problem))).collect()
    }
}

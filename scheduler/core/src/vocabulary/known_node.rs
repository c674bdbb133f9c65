//! Nodes as a cluster keeps them. Parts that many nodes have in common are in memory once.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::vocabulary::peers::Peers;
use crate::vocabulary::quantity::{Bytes, MilliCpu};
use crate::vocabulary::spec::{DeviceSpec, Health, NodeSpec};
use crate::vocabulary::taint::Taint;
use crate::vocabulary::texts::Texts;

/// A node as a cluster keeps it. [`NodeSpec::from`] makes the reported specification of it again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownNode {
    /// The name, by which the cluster finds the node: [`NodeSpec::name`].
    pub name: String,
    /// See [`NodeSpec::labels`]; keys and texts are shared with other nodes.
    pub labels: Texts,
    /// What keeps claims away, as in [`NodeSpec::taints`].
    pub taints: Box<[Taint]>,
    /// All of the node's CPU time, as in [`NodeSpec::cpu`].
    pub cpu: MilliCpu,
    /// All of the node's memory, as in [`NodeSpec::memory`].
    pub memory: Bytes,
    /// The devices in the order of [`NodeSpec::devices`].
    pub devices: Arc<[KnownDevice]>,
    /// Whether the node takes nothing new: [`NodeSpec::cordoned`].
    pub cordoned: bool,
    /// See [`NodeSpec::counted`]; shared by the nodes that have the same.
    pub counted: Arc<BTreeMap<String, u64>>,
    /// Tasks on the node that are not claims and have to do with rules about peers: [`NodeSpec::foreign`].
    pub foreign: Box<[Arc<Peers>]>,
}

/// A device as a cluster keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownDevice {
    /// The only thing that a device shares with no other: [`DeviceSpec::uuid`].
    pub uuid: Box<str>,
    pub(crate) kind: Arc<DeviceKind>,
}

/// What devices of the same model at the same place in nodes of the same make have in common. A device's name is often
/// reported as an attribute, too. That attribute alone would make each device one of a kind, so its text is left out.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceKind {
    /// The number of its model's resource.
    pub(crate) model_resource: usize,
    /// The name of the model, as in [`DeviceSpec::model`].
    pub model: String,
    /// All of the device's memory, as in [`DeviceSpec::memory`].
    pub memory: Bytes,
    /// Memory that others hold, as in [`DeviceSpec::memory_outside`].
    pub memory_outside: Bytes,
    /// Whether the device can be given out: [`DeviceSpec::health`].
    pub health: Health,
    /// The group that NVLink connects: [`DeviceSpec::nvlink_group`].
    pub nvlink_group: Option<u16>,
    /// The PCIe switch above the device: [`DeviceSpec::switch`].
    pub switch: Option<u16>,
    /// The NUMA node beside the device: [`DeviceSpec::numa`].
    pub numa: Option<u16>,
    /// See [`DeviceSpec::attributes`]; those whose text is the device's name are left out.
    pub(crate) attributes: Texts,
    /// The keys of the attributes whose text is the device's name.
    pub(crate) uuid_keys: Box<[Arc<str>]>,
}

impl KnownNode {
    /// Whether this is how a cluster keeps a node that reports this. The cordon is not compared.
    #[must_use]
    pub fn is_as_reported(&self, spec: &NodeSpec) -> bool {
        let NodeSpec { name, labels, taints, cpu, memory, devices, cordoned: _, counted, foreign } = spec;
        (&self.name, &self.labels, self.cpu, self.memory) == (name, labels, *cpu, *memory)
            && *self.taints == **taints
            && *self.counted == *counted
            && *self.foreign == **foreign
            && self.devices.len() == devices.len()
            && self.devices.iter().zip(devices).all(|(known, reported)| known.is_as_reported(reported))
    }

    /// Whether it has a taint that does not keep claims away, but makes it less preferred.
    pub(crate) fn has_disliked_taint(&self) -> bool {
        self.taints.iter().any(|taint| !taint.keeps_away())
    }
}

impl DeviceKind {
    /// Whether a device of this kind and with this name has exactly these attributes.
    pub(crate) fn has_exactly(&self, attributes: &Texts, uuid: &str) -> bool {
        let (mut others, mut uuid_keys) = (self.attributes.iter(), self.uuid_keys.iter());
        let is_known = |(key, text): (&str, &str)| match text == uuid {
            true => uuid_keys.next().is_some_and(|known| **known == *key),
            false => others.next() == Some((key, text)),
        };
        attributes.iter().all(is_known) && others.next().is_none() && uuid_keys.next().is_none()
    }

    /// The kind that a device of this kind and with this name is of, once these are its attributes.
    pub(crate) fn with_attributes(&self, attributes: &Texts, uuid: &str) -> Self {
        let (attributes, uuid_keys) = attributes.without(uuid);
        Self { model: self.model.clone(), attributes, uuid_keys, ..*self }
    }
}

impl KnownDevice {
    fn is_as_reported(&self, spec: &DeviceSpec) -> bool {
        let DeviceSpec { uuid, model, memory, memory_outside, health, nvlink_group, switch, numa, attributes } = spec;
        (&*self.uuid, &self.model) == (&**uuid, model)
            && (self.memory, self.memory_outside, self.health) == (*memory, *memory_outside, *health)
            && (self.nvlink_group, self.switch, self.numa) == (*nvlink_group, *switch, *numa)
            && self.has_exactly(attributes, uuid)
    }

    /// The text of an attribute; see [`DeviceSpec::attributes`].
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<&str> {
        let is_uuid = || self.kind.uuid_keys.iter().any(|known| **known == *key);
        self.kind.attributes.get(key).or_else(|| is_uuid().then_some(&*self.uuid))
    }
}

impl Deref for KnownDevice {
    type Target = DeviceKind;

    fn deref(&self) -> &DeviceKind {
        &self.kind
    }
}

impl From<&KnownNode> for NodeSpec {
    fn from(known: &KnownNode) -> Self {
        Self {
            name: known.name.clone(),
            labels: known.labels.clone(),
            taints: known.taints.to_vec(),
            cpu: known.cpu,
            memory: known.memory,
            devices: known.devices.iter().map(DeviceSpec::from).collect(),
            cordoned: known.cordoned,
            counted: BTreeMap::clone(&known.counted),
            foreign: known.foreign.to_vec(),
        }
    }
}

impl From<&KnownDevice> for DeviceSpec {
    fn from(known: &KnownDevice) -> Self {
        let mut attributes = known.attributes.clone();
        attributes.extend(known.uuid_keys.iter().map(|key| (key.to_string(), known.uuid.to_string())));
        Self {
            uuid: known.uuid.to_string(),
            model: known.model.clone(),
            memory: known.memory,
            memory_outside: known.memory_outside,
            health: known.health,
            nvlink_group: known.nvlink_group,
            switch: known.switch,
            numa: known.numa,
            attributes,
        }
    }
}

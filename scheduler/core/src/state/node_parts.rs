//! What nodes have in common, kept once for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::vocabulary::known_node::{DeviceKind, KnownDevice, KnownNode};
use crate::vocabulary::shared::Shared;
use crate::vocabulary::spec::{DeviceSpec, Health, NodeSpec};
use crate::vocabulary::texts::Texts;

/// Parts that are equal in many nodes: a cluster has nodes of few makes. What names a node or a device is its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeParts {
    /// Keys and texts of labels and attributes.
    texts: Shared<str>,
    counted: Shared<BTreeMap<String, u64>>,
    devices: Shared<DeviceKind>,
}

impl NodeParts {
    /// Takes in a node. `models` are the numbers of the resources of its devices' models.
    pub(crate) fn join(&mut self, spec: NodeSpec, models: &[usize]) -> KnownNode {
        let NodeSpec { name, labels, taints, cpu, memory, devices, cordoned, counted, foreign } = spec;
        let devices = devices.into_iter().zip(models).map(|(device, model)| self.join_device(device, *model));
        KnownNode {
            devices: devices.collect(),
            name,
            labels: self.join_texts(&labels),
            taints: taints.into(),
            cpu,
            memory,
            cordoned,
            counted: self.counted.join(counted),
            foreign: foreign.into(),
        }
    }

    fn join_device(&mut self, spec: DeviceSpec, model_resource: usize) -> KnownDevice {
        let DeviceSpec { uuid, model, memory, memory_outside, health, nvlink_group, switch, numa, attributes } = spec;
        let kind = DeviceKind { model_resource, model, memory, memory_outside, health, nvlink_group, switch, numa };
        KnownDevice { uuid: uuid.into(), attributes: self.join_texts(&attributes), kind: self.devices.join(kind) }
    }

    fn join_texts(&mut self, texts: &Texts) -> Texts {
        texts.map(|text| self.texts.join(text))
    }

    /// Gives a node the labels, taints and attributes of another, and cordons it like that.
    pub(crate) fn relabel(&mut self, node: &mut KnownNode, like: &NodeSpec) {
        self.exchange_texts(&mut node.labels, &like.labels);
        if *node.taints != *like.taints {
            node.taints = like.taints.as_slice().into();
        }
        node.cordoned = like.cordoned;
        let mut devices = node.devices.iter().zip(&like.devices);
        if devices.any(|(device, like)| device.attributes != like.attributes) {
            for (device, like) in Arc::make_mut(&mut node.devices).iter_mut().zip(&like.devices) {
                self.exchange_texts(&mut device.attributes, &like.attributes);
            }
        }
    }

    fn exchange_texts(&mut self, texts: &mut Texts, new: &Texts) {
        if texts != new {
            let old = std::mem::replace(texts, self.join_texts(new));
            self.leave_texts(&old);
        }
    }

    /// Makes a device of a node healthy or not.
    pub(crate) fn set_health(&mut self, node: &mut KnownNode, device: usize, health: Health) {
        let Some(device) = Arc::make_mut(&mut node.devices).get_mut(device) else { return };
        let kind = self.devices.join(DeviceKind { health, ..DeviceKind::clone(&device.kind) });
        let old = std::mem::replace(&mut device.kind, kind);
        self.devices.leave(&old);
    }

    /// Takes a node out.
    pub(crate) fn leave(&mut self, node: &KnownNode) {
        self.leave_texts(&node.labels);
        self.counted.leave(&node.counted);
        for device in node.devices.iter() {
            self.leave_texts(&device.attributes);
            self.devices.leave(&device.kind);
        }
    }

    fn leave_texts(&mut self, texts: &Texts) {
        texts.iter().flat_map(|(key, text)| [key, text]).for_each(|text| self.texts.leave(text));
    }
}

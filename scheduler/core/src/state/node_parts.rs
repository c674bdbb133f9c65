//! Parts that many nodes have in common, kept once for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::vocabulary::known_node::{DeviceKind, KnownDevice, KnownNode};
use crate::vocabulary::shared::Shared;
use crate::vocabulary::spec::{DeviceSpec, Health, NodeSpec};
use crate::vocabulary::texts::Texts;

/// Parts that are equal in many nodes, as a cluster has nodes of only a few makes. The names of nodes and devices are
/// not shared.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeParts {
    /// Keys and texts of labels and attributes.
    texts: Shared<str>,
    counted: Shared<BTreeMap<String, u64>>,
    devices: Shared<DeviceKind>,
}

impl NodeParts {
    /// Adds a node. `models` are the resource numbers of its devices' models.
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
        let (attributes, uuid_keys) = attributes.without(&uuid);
        let kind = DeviceKind {
            model_resource,
            model,
            memory,
            memory_outside,
            health,
            nvlink_group,
            switch,
            numa,
            attributes,
            uuid_keys,
        };
        KnownDevice { uuid: uuid.into(), kind: self.join_kind(kind) }
    }

    fn join_kind(&mut self, kind: DeviceKind) -> Arc<DeviceKind> {
        let attributes = self.join_texts(&kind.attributes);
        self.devices.join(DeviceKind { attributes, ..kind })
    }

    fn leave_kind(&mut self, kind: &DeviceKind) {
        self.leave_texts(&kind.attributes);
        self.devices.leave(kind);
    }

    fn exchange_kind(&mut self, device: &mut KnownDevice, kind: DeviceKind) {
        let old = std::mem::replace(&mut device.kind, self.join_kind(kind));
        self.leave_kind(&old);
    }

    fn join_texts(&mut self, texts: &Texts) -> Texts {
        texts.map(|text| self.texts.join(text))
    }

    /// Gives a node the labels, taints, device attributes and cordon of another specification.
    pub(crate) fn relabel(&mut self, node: &mut KnownNode, like: &NodeSpec) {
        if node.labels != like.labels {
            let old = std::mem::replace(&mut node.labels, self.join_texts(&like.labels));
            self.leave_texts(&old);
        }
        if *node.taints != *like.taints {
            node.taints = like.taints.as_slice().into();
        }
        node.cordoned = like.cordoned;
        for (number, like) in like.devices.iter().enumerate().take(node.devices.len()) {
            let known = &node.devices[number];
            let (attributes, uuid_keys) = like.attributes.without(&known.uuid);
            if (&attributes, &uuid_keys) != (&known.attributes, &known.uuid_keys) {
                let kind = DeviceKind { attributes, uuid_keys, ..DeviceKind::clone(&known.kind) };
                self.exchange_kind(&mut Arc::make_mut(&mut node.devices)[number], kind);
            }
        }
    }

    /// Sets the health of a node's device.
    pub(crate) fn set_health(&mut self, node: &mut KnownNode, device: usize, health: Health) {
        let Some(device) = Arc::make_mut(&mut node.devices).get_mut(device) else { return };
        let kind = DeviceKind { health, ..DeviceKind::clone(&device.kind) };
        self.exchange_kind(device, kind);
    }

    /// Removes a node, and the shared parts that no other node has.
    pub(crate) fn leave(&mut self, node: &KnownNode) {
        self.leave_texts(&node.labels);
        self.counted.leave(&node.counted);
        node.devices.iter().for_each(|device| self.leave_kind(&device.kind));
    }

    fn leave_texts(&mut self, texts: &Texts) {
        texts.iter().flat_map(|(key, text)| [key, text]).for_each(|text| self.texts.leave(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(number: usize) -> NodeSpec {
        let text = |key: &str, text: &str| (key.to_owned(), text.to_owned());
        let device = |index: u16| {
            let uuid = format!("GPU-{number}-{index}");
            let attributes = Texts::from([text("architecture", "hopper"), text("uuid", &uuid)]);
            DeviceSpec { uuid, model: "H100".to_owned(), switch: Some(index), attributes, ..DeviceSpec::default() }
        };
        let name = format!("node-{number}");
        NodeSpec {
            labels: Texts::from([text("zone", "a"), text("hostname", &name)]),
            name,
            devices: (0..2).map(device).collect(),
            counted: [("pods".to_owned(), 110)].into(),
            ..NodeSpec::default()
        }
    }

    #[test]
    fn nodes_of_one_make_share_all_that_does_not_name_them() {
        let mut parts = NodeParts::default();
        let nodes = [0, 1].map(|number| parts.join(spec(number), &[4, 4]));
        assert_eq!(nodes.each_ref().map(NodeSpec::from), [0, 1].map(spec));
        let [first, second] = &nodes;
        assert!(Arc::ptr_eq(&first.counted, &second.counted));
        for (one, other) in first.devices.iter().zip(second.devices.iter()) {
            assert!(Arc::ptr_eq(&one.kind, &other.kind));
        }
        assert!(!Arc::ptr_eq(&first.devices[0].kind, &first.devices[1].kind), "at other switches");
        let uuid = |node: &KnownNode| node.devices[0].attribute("uuid").map(str::to_owned);
        assert_eq!([first, second].map(uuid), ["GPU-0-0", "GPU-1-0"].map(|uuid| Some(uuid.to_owned())));
        assert_eq!(first.devices[0].attribute("architecture"), Some("hopper"));
    }

    #[test]
    fn a_node_that_changes_leaves_the_others_as_they_are() {
        let mut parts = NodeParts::default();
        let mut node = parts.join(spec(0), &[4, 4]);
        let other = parts.join(spec(1), &[4, 4]);
        let mut changed = spec(0);
        changed.labels.insert("zone".to_owned(), "b".to_owned());
        changed.devices[0].attributes.insert("uuid".to_owned(), "none".to_owned());
        changed.devices[1].health = Health::Unhealthy;
        changed.cordoned = true;
        parts.relabel(&mut node, &changed);
        parts.set_health(&mut node, 1, Health::Unhealthy);
        assert_eq!((NodeSpec::from(&node), NodeSpec::from(&other)), (changed, spec(1)));
        parts.leave(&node);
        parts.leave(&other);
        assert!(parts.texts.is_empty() && parts.counted.is_empty() && parts.devices.is_empty(), "{parts:?}");
    }
}

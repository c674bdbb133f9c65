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
    /// Keys and texts of labels and attributes. They count once for each node and once for each kind of device: a node
    /// has tens of labels and attributes, so to count them for each device would take most of the time of a change.
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
            labels: join_texts(&mut self.texts, &labels),
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
        KnownDevice { uuid: uuid.into(), kind: self.join_kind(&kind, 1) }
    }

    /// Adds devices of a kind.
    fn join_kind(&mut self, kind: &DeviceKind, devices: usize) -> Arc<DeviceKind> {
        let texts = &mut self.texts;
        self.devices.join_with(kind, devices, || {
            Arc::new(DeviceKind { attributes: join_texts(texts, &kind.attributes), ..kind.clone() })
        })
    }

    /// Removes devices of a kind.
    fn leave_kind(&mut self, kind: &DeviceKind, devices: usize) {
        if self.devices.leave(kind, devices) {
            self.leave_texts(&kind.attributes);
        }
    }

    /// Gives devices of the same kind another kind.
    fn exchange_kind(&mut self, devices: &mut [KnownDevice], kind: &DeviceKind) {
        let Some(old) = devices.first().map(|device| Arc::clone(&device.kind)) else { return };
        let kind = self.join_kind(kind, devices.len());
        devices.iter_mut().for_each(|device| device.kind = Arc::clone(&kind));
        self.leave_kind(&old, devices.len());
    }

    /// Gives a node the labels, taints, device attributes and cordon of another specification.
    pub(crate) fn relabel(&mut self, node: &mut KnownNode, like: &NodeSpec) {
        if node.labels != like.labels {
            let old = std::mem::replace(&mut node.labels, join_texts(&mut self.texts, &like.labels));
            self.leave_texts(&old);
        }
        if *node.taints != *like.taints {
            node.taints = like.taints.as_slice().into();
        }
        node.cordoned = like.cordoned;
        let is_as_before =
            |(known, like): (&KnownDevice, &DeviceSpec)| known.has_exactly(&like.attributes, &known.uuid);
        if !node.devices.iter().zip(&like.devices).all(is_as_before) {
            self.relabel_devices(Arc::make_mut(&mut node.devices), &like.devices);
        }
    }

    /// Gives devices the attributes of others. Neighbours that were of one kind and still are cost as much as one.
    fn relabel_devices(&mut self, mut devices: &mut [KnownDevice], mut like: &[DeviceSpec]) {
        while let ([device, ..], [first, ..]) = (&*devices, like) {
            let old = Arc::clone(&device.kind);
            let kind = old.with_attributes(&first.attributes, &device.uuid);
            let is_alike = |(device, like): &(&KnownDevice, &DeviceSpec)| {
                Arc::ptr_eq(&device.kind, &old) && kind.has_exactly(&like.attributes, &device.uuid)
            };
            let alike = 1 + devices.iter().zip(like).skip(1).take_while(is_alike).count();
            let (now, later) = std::mem::take(&mut devices).split_at_mut(alike);
            self.exchange_kind(now, &kind);
            (devices, like) = (later, &like[alike..]);
        }
    }

    /// Sets the health of a node's device.
    pub(crate) fn set_health(&mut self, node: &mut KnownNode, device: usize, health: Health) {
        let Some(device) = Arc::make_mut(&mut node.devices).get_mut(device) else { return };
        let kind = DeviceKind { health, ..DeviceKind::clone(&device.kind) };
        self.exchange_kind(std::slice::from_mut(device), &kind);
    }

    /// Removes a node, and the shared parts that no other node has.
    pub(crate) fn leave(&mut self, node: &KnownNode) {
        self.leave_texts(&node.labels);
        self.counted.leave(&node.counted, 1);
        node.devices.iter().for_each(|device| self.leave_kind(&device.kind, 1));
    }

    fn leave_texts(&mut self, texts: &Texts) {
        texts.iter().flat_map(|(key, text)| [key, text]).for_each(|text| _ = self.texts.leave(text, 1));
    }
}

/// These texts, with each key and text as it is kept.
fn join_texts(known: &mut Shared<str>, texts: &Texts) -> Texts {
    texts.map(|text| known.join_with(text, 1, || Arc::clone(text)))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

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
        assert_is_empty(&parts);
    }

    fn assert_is_empty(parts: &NodeParts) {
        assert!(parts.texts.is_empty() && parts.counted.is_empty() && parts.devices.is_empty(), "{parts:?}");
    }

    #[test]
    fn texts_count_once_for_each_kind_of_device() {
        let mut parts = NodeParts::default();
        let mut nodes = [0, 1, 2].map(|number| parts.join(spec(number), &[4, 4]));
        let count = |parts: &NodeParts, text: &str| parts.texts.counts().find(|(own, _)| *own == text).map(|(_, n)| n);
        assert_eq!(count(&parts, "hopper"), Some(2), "there are two switches");
        let mut spec = spec(0);
        spec.devices.iter_mut().for_each(|device| device.attributes.insert("selected".to_owned(), "true".to_owned()));
        parts.relabel(&mut nodes[0], &spec);
        assert_eq!(["hopper", "selected"].map(|text| count(&parts, text)), [Some(4), Some(2)]);
        nodes.iter().for_each(|node| parts.leave(node));
        assert_is_empty(&parts);
    }

    #[test]
    fn neighbours_that_differ_after_a_change_are_told_apart() {
        let mut parts = NodeParts::default();
        let mut spec = spec(0);
        let device = |index: u16| DeviceSpec { uuid: format!("GPU-{index}"), switch: None, ..spec.devices[0].clone() };
        spec.devices = (0..6).map(device).collect();
        let mut node = parts.join(spec.clone(), &[4; 6]);
        assert_eq!(parts.devices.counts().map(|(_, devices)| devices).collect::<Vec<_>>(), [6]);
        // The first two get the same, then one another key, one stays, one has its name in it, and one has fewer.
        let with = |spec: &mut NodeSpec, device: usize, key: &str, text: &str| {
            spec.devices[device].attributes.insert(key.to_owned(), text.to_owned());
        };
        let changes = [(0, "new", "a"), (1, "new", "a"), (2, "other", "a"), (4, "name", "GPU-4"), (4, "new", "a")];
        changes.into_iter().for_each(|(device, key, text)| with(&mut spec, device, key, text));
        spec.devices[5].attributes = Texts::default();
        parts.relabel(&mut node, &spec);
        assert_eq!(NodeSpec::from(&node), spec);
        let mut counts: Vec<usize> = parts.devices.counts().map(|(_, devices)| devices).collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 1, 1, 1, 2]);
        parts.leave(&node);
        assert_is_empty(&parts);
    }

    /// A node with four devices; each digit chooses one of few texts.
    fn varied(number: usize, [labels, kinds, attributes]: [usize; 3]) -> NodeSpec {
        let text = |key: &str, digit: usize| (key.to_owned(), format!("text-{}", digit % 3));
        let mut spec = spec(number);
        spec.labels.extend([text("zone", labels), text("pool", labels / 3)]);
        let device = |index: usize| {
            let mut device = spec.devices[0].clone();
            device.uuid = format!("GPU-{number}-{index}");
            device.switch = Some(u16::from(index / 2 < kinds % 3));
            device.attributes.extend([text("text-0", attributes >> index), text("last", attributes / 5)]);
            device
        };
        spec.devices = (0..4).map(device).collect();
        spec
    }

    /// What must be counted if these are all nodes: the texts, and the kinds of devices.
    fn expected<'a>(nodes: &'a [KnownNode]) -> (BTreeMap<&'a str, usize>, BTreeMap<&'a DeviceKind, usize>) {
        let (mut texts, mut kinds) = (BTreeMap::new(), BTreeMap::new());
        let devices = nodes.iter().flat_map(|node| node.devices.iter());
        devices.for_each(|device| *kinds.entry(&*device.kind).or_default() += 1);
        let of_kinds = kinds.keys().map(|kind: &&'a DeviceKind| &kind.attributes);
        let all = nodes.iter().map(|node| &node.labels).chain(of_kinds);
        for text in all.flat_map(Texts::iter).flat_map(|(key, text)| [key, text]) {
            *texts.entry(text).or_default() += 1;
        }
        (texts, kinds)
    }

    proptest! {
        #[test]
        fn counts_agree_with_the_nodes_after_any_changes(
            steps in vec((0usize..4, 0usize..8, [0usize..9, 0usize..3, 0usize..16]), 0..60),
        ) {
            let (mut parts, mut nodes, mut specs) = (NodeParts::default(), Vec::new(), Vec::new());
            for (number, (step, at, digits)) in steps.into_iter().enumerate() {
                if step == 0 || nodes.is_empty() {
                    specs.push(varied(number, digits));
                    nodes.push(parts.join(varied(number, digits), &[4; 4]));
                    continue;
                }
                let at = at % nodes.len();
                let (node, spec): (&mut KnownNode, &mut NodeSpec) = (&mut nodes[at], &mut specs[at]);
                match step {
                    1 => {
                        parts.leave(&nodes.swap_remove(at));
                        specs.swap_remove(at);
                    }
                    2 => {
                        let device = digits[0] % 4;
                        spec.devices[device].health = [Health::Healthy, Health::Unhealthy][digits[1] % 2];
                        parts.set_health(node, device, spec.devices[device].health);
                    }
                    _ => {
                        let like = varied(number, digits);
                        spec.labels = like.labels;
                        for (device, like) in spec.devices.iter_mut().zip(like.devices) {
                            device.attributes = like.attributes;
                        }
                        parts.relabel(node, spec);
                    }
                }
            }
            for (node, spec) in nodes.iter().flat_map(|node| specs.iter().map(move |spec| (node, spec))) {
                prop_assert_eq!(node.is_as_reported(spec), NodeSpec::from(node) == *spec);
            }
            prop_assert!(nodes.iter().map(NodeSpec::from).eq(specs));
            let (texts, kinds) = expected(&nodes);
            prop_assert_eq!(parts.texts.counts().collect::<BTreeMap<_, _>>(), texts);
            prop_assert_eq!(parts.devices.counts().collect::<BTreeMap<_, _>>(), kinds);
            nodes.iter().for_each(|node| parts.leave(node));
            assert_is_empty(&parts);
        }
    }
}

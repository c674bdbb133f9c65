//! On which nodes a device can be used.

use std::collections::BTreeMap;

use aliquot_scheduler_core::NodeTerm;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::api::resource::v1::{Device, ResourceSliceSpec};

use crate::placement::{self, NODE_NAME};

/// The nodes on which a device can be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reach {
    /// The one node of this name.
    Node(String),
    Everywhere,
    /// The nodes that match a selector's only term, given as Kubernetes and as the books have it.
    Selected(NodeSelectorTerm, NodeTerm),
    /// No node: the driver names none, or its selector is not supported.
    Nowhere,
}

impl Reach {
    /// Where a slice says that one of its devices can be used.
    pub(super) fn of(slice: &ResourceSliceSpec, device: &Device) -> Reach {
        match slice.per_device_node_selection {
            Some(true) => Reach::read(&device.node_name, device.all_nodes, &device.node_selector),
            _ => Reach::read(&slice.node_name, slice.all_nodes, &slice.node_selector),
        }
    }

    /// Where a slice says that its devices can be used.
    pub(super) fn all_of(slice: &ResourceSliceSpec) -> Vec<Reach> {
        match slice.per_device_node_selection {
            Some(true) => slice.devices.iter().flatten().map(|device| Reach::of(slice, device)).collect(),
            _ => vec![Reach::read(&slice.node_name, slice.all_nodes, &slice.node_selector)],
        }
    }

    fn read(name: &Option<String>, all: Option<bool>, selector: &Option<NodeSelector>) -> Reach {
        let selected = |selector: &NodeSelector| {
            // Kubernetes allows exactly one term.
            let [term] = &selector.node_selector_terms[..] else { return None };
            let [read] = <[NodeTerm; 1]>::try_from(Vec::from_iter(placement::terms(selector).ok()?)).ok()?;
            Some(Reach::Selected(term.clone(), read))
        };
        match (name, all, selector) {
            (Some(name), ..) => Reach::Node(name.clone()),
            (None, Some(true), _) => Reach::Everywhere,
            (None, _, Some(selector)) => selected(selector).unwrap_or(Reach::Nowhere),
            (None, _, None) => Reach::Nowhere,
        }
    }

    /// Whether the device can be used on a node with this name and these labels.
    pub(crate) fn includes(&self, node: &str, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Reach::Node(name) => name == node,
            Reach::Everywhere => true,
            Reach::Selected(_, term) => placement::matches(term, labels),
            Reach::Nowhere => false,
        }
    }
}

/// The nodes on which devices with these reaches can be used together, once they are allocated for `node`; `None`: all.
pub(crate) fn selector<'a>(reaches: impl Iterator<Item = &'a Reach> + Clone, node: &str) -> Option<NodeSelector> {
    if reaches.clone().any(|reach| matches!(reach, Reach::Node(_) | Reach::Nowhere)) {
        return Some(only(node));
    }
    let terms = reaches.filter_map(|reach| match reach {
        Reach::Selected(term, _) => Some(term),
        _ => None,
    });
    let (mut expressions, mut fields) = (Vec::new(), Vec::new());
    for term in terms {
        for (all, of_term) in [(&mut expressions, &term.match_expressions), (&mut fields, &term.match_fields)] {
            for requirement in of_term.iter().flatten() {
                if !all.contains(requirement) {
                    all.push(requirement.clone());
                }
            }
        }
    }
    if expressions.is_empty() && fields.is_empty() {
        return None;
    }
    let some = |of: Vec<_>| Some(of).filter(|of| !of.is_empty());
    let term = NodeSelectorTerm { match_expressions: some(expressions), match_fields: some(fields) };
    Some(NodeSelector { node_selector_terms: vec![term] })
}

/// A selector for one node, by its name.
pub(crate) fn only(node: &str) -> NodeSelector {
    let (key, operator, values) = (NODE_NAME.to_owned(), "In".to_owned(), Some(vec![node.to_owned()]));
    let field = NodeSelectorRequirement { key, operator, values };
    let term = NodeSelectorTerm { match_expressions: None, match_fields: Some(vec![field]) };
    NodeSelector { node_selector_terms: vec![term] }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reach(slice: Value, device: Value) -> Reach {
        let mut slice = slice;
        slice["driver"] = "d".into();
        slice["pool"] = json!({"name": "p", "generation": 1, "resourceSliceCount": 1});
        let mut device = device;
        device["name"] = "x".into();
        Reach::of(&serde_json::from_value(slice).unwrap(), &serde_json::from_value(device).unwrap())
    }

    fn zone(name: &str) -> Value {
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [name]}]}]})
    }

    #[test]
    fn slices_and_devices_say_where_they_can_be_used() {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let per_device = json!({"perDeviceNodeSelection": true});
        for (slice, device, includes) in [
            (json!({"nodeName": "n"}), json!({}), true),
            (json!({"nodeName": "m"}), json!({}), false),
            (json!({"allNodes": true}), json!({}), true),
            (json!({"nodeSelector": zone("a")}), json!({}), true),
            (json!({"nodeSelector": zone("b")}), json!({}), false),
            (json!({}), json!({"nodeName": "n"}), false),
            (per_device.clone(), json!({"nodeName": "n"}), true),
            (per_device.clone(), json!({"allNodes": true}), true),
            (per_device.clone(), json!({"nodeSelector": zone("b")}), false),
            (per_device, json!({}), false),
        ] {
            assert_eq!(reach(slice.clone(), device.clone()).includes("n", &labels), includes, "{slice} {device}");
        }
    }

    #[test]
    fn an_allocation_is_as_narrow_as_its_narrowest_device() {
        let all = reach(json!({"allNodes": true}), json!({}));
        let selected = reach(json!({"nodeSelector": zone("a")}), json!({}));
        let local = reach(json!({"nodeName": "n"}), json!({}));
        let of = |reaches: &[&Reach]| json!(selector(reaches.iter().copied(), "n"));
        assert_eq!(of(&[&all]), Value::Null);
        assert_eq!(of(&[&all, &selected, &selected]), zone("a"));
        assert_eq!(of(&[&all, &local, &selected]), json!(only("n")));
    }
}

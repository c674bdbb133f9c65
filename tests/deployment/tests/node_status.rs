//! The admission policy for the status of nodes: a manager writes only that of its own node, and there only how much
//! the node has of resources, and its inventory.

use std::collections::HashMap;

use aliquot_deployment::object;
use aliquot_kubernetes::INVENTORY;
use aliquot_test_api_server::conditions::{evaluate, value};
use cel::Value as CelValue;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use serde_json::{Value, json};

/// The policy's message if the manager of `own_node` changes the node `before` into `after`; `None`: it admits that.
fn refusal(own_node: &str, before: &Value, after: &Value) -> Option<String> {
    let policy: ValidatingAdmissionPolicy = object("base", "aliquot-manager-nodes");
    let spec = policy.spec.unwrap();
    let evaluate = |expression: &str, variables: &HashMap<String, CelValue>| {
        let variables = variables.clone().into();
        evaluate(expression, [("object", value(after)), ("oldObject", value(before)), ("variables", variables)])
            .unwrap_or_else(|error| panic!("{error}"))
    };
    let mut variables = HashMap::from([("ownNode".to_owned(), own_node.into())]);
    // The variable `ownNode` is given here, because it follows from the user of a request.
    for variable in spec.variables.unwrap().into_iter().filter(|variable| variable.name != "ownNode") {
        variables.insert(variable.name, evaluate(&variable.expression, &variables));
    }
    let evaluate = |expression: &str| evaluate(expression, &variables);
    let is_broken = |expression: &str| match evaluate(expression) {
        CelValue::Bool(holds) => !holds,
        other => panic!("{expression}: {other:?}"),
    };
    let broken = spec.validations.unwrap().into_iter().find(|it| is_broken(&it.expression))?;
    match broken.message_expression.map(|expression| evaluate(&expression)) {
        None => Some(broken.message.unwrap()),
        Some(CelValue::String(text)) => Some(text.to_string()),
        Some(other) => panic!("{other:?}"),
    }
}

fn node() -> Value {
    json!({
        "metadata": {
            "name": "n", "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["f"],
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u"}],
        },
        "status": {
            "capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"kubeletVersion": "v1.36.2"}, "images": [{"names": ["i"]}],
            "volumesAttached": [{"name": "v", "devicePath": "/dev/v"}], "volumesInUse": ["v"],
        },
    })
}

/// A node without optional fields.
fn bare_node() -> Value {
    json!({"metadata": {"name": "n"}, "status": {}})
}

#[test]
fn how_much_the_own_node_has_is_the_manager_s_to_write() {
    for before in [node(), bare_node()] {
        let mut after = before.clone();
        for field in ["capacity", "allocatable"] {
            after["status"][field]["nvidia.com/gpumem"] = "16384".into();
        }
        after["metadata"]["managedFields"] = json!([{"manager": "aliquot-manager"}]);
        assert_eq!(refusal("n", &before, &after), None);
        let other = refusal("another", &before, &after).unwrap();
        assert_eq!(other, "the manager on node another must not write the status of node n");
        assert!(refusal("", &before, &after).unwrap().contains("is bound to no node"));
    }
}

/// The policy's message for a change of other fields.
const NOTHING_ELSE: &str = "a manager may write only a node's amounts of resources and its inventory";

#[test]
fn the_own_node_s_inventory_is_the_manager_s_to_write() {
    for without in [node(), bare_node()] {
        let mut with = without.clone();
        with["metadata"]["annotations"][INVENTORY] = "{}".into();
        let mut changed = with.clone();
        changed["metadata"]["annotations"][INVENTORY] = "{\"devices\": []}".into();
        for (before, after) in [(&without, &with), (&with, &changed), (&changed, &without)] {
            assert_eq!(refusal("n", before, after), None, "{before} {after}");
            assert!(refusal("another", before, after).unwrap().ends_with("must not write the status of node n"));
        }
        for (key, text) in [("c", "another"), ("aliquot.dev/inventory2", "{}"), ("aliquot.dev", "{}")] {
            let mut after = with.clone();
            after["metadata"]["annotations"][key] = text.into();
            assert_eq!(refusal("n", &without, &after).as_deref(), Some(NOTHING_ELSE), "{key}");
            let [before, after] = [after, with.clone()];
            assert_eq!(refusal("n", &before, &after).as_deref(), Some(NOTHING_ELSE), "{key} goes");
        }
    }
}

#[test]
fn nothing_else_of_the_own_node_is() {
    let full = node();
    let fields = |part: &'static str| full[part].as_object().unwrap().keys().map(move |field| (part, field.as_str()));
    let all: Vec<(&str, &str)> = fields("metadata").chain(fields("status")).collect();
    let guarded = all.into_iter().filter(|(_, field)| !["name", "capacity", "allocatable"].contains(field));
    let guarded: Vec<(&str, &str)> = guarded.collect();
    assert_eq!(guarded.len(), 11);
    for (part, field) in guarded {
        let mut taken = full.clone();
        taken[part].as_object_mut().unwrap().remove(field);
        let mut emptied = full.clone();
        emptied[part][field] = if full[part][field].is_array() { json!([]) } else { json!({}) };
        for changed in [taken, emptied] {
            assert_eq!(refusal("n", &full, &changed).as_deref(), Some(NOTHING_ELSE), "{part}.{field} goes");
        }
        let (bare, mut added) = (bare_node(), bare_node());
        added[part][field] = full[part][field].clone();
        assert_eq!(refusal("n", &bare, &added).as_deref(), Some(NOTHING_ELSE), "{part}.{field} comes");
    }
}

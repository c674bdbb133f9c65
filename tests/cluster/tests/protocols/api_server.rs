//! The API server: its refusals, and its answers over HTTP.

use aliquot_test_cluster::{CLAIMS, DEVICE_CLASSES, EVENTS, NAMESPACE, NODE_NAME, NODES, Resource, SLICES};
use serde_json::{Value, json};

use crate::stage::{DRIVER, Stage, part, shared_device, slice};

#[track_caller]
fn refused(stage: &Stage, resource: &'static Resource, object: Value, because: &str) {
    let namespace = if resource.namespaced { NAMESPACE } else { "" };
    let failure = stage.cluster.store().create(resource, namespace, object).expect_err("it is not as it must be");
    assert!(failure.to_string().contains(because), "{failure}");
}

/// A slice of one device that has `key` set to `value`.
fn with(key: &str, value: Value) -> Value {
    let mut device = shared_device("gpu-0");
    device[key] = value;
    slice("slice-1", 1, &json!([device]))
}

#[test]
fn annotations_of_a_node_are_written_with_its_status() {
    let stage = Stage::new();
    let store = stage.cluster.store();
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "claim"},
        "spec": {"devices": {}},
    });
    stage.cluster.create(&CLAIMS, claim);
    let patch = json!({"metadata": {"annotations": {"example.com/a": "b"}}});
    let annotated = |resource, namespace, name, patch: &Value| {
        store.merge(resource, namespace, name, true, patch).unwrap()["metadata"]["annotations"].clone()
    };
    assert_eq!(annotated(&NODES, "", NODE_NAME, &patch), json!({"example.com/a": "b"}));
    // Fields that the patch does not name stay.
    let capacity = json!({"status": {"capacity": {"example.com/c": "1"}}});
    assert_eq!(annotated(&NODES, "", NODE_NAME, &capacity), json!({"example.com/a": "b"}));
    assert_eq!(annotated(&CLAIMS, NAMESPACE, "claim", &patch), Value::Null);
}

#[test]
fn a_slice_must_keep_within_the_limits_of_the_api() {
    let stage = Stage::new();
    let attribute = |value: Value| with("attributes", json!({"x": value}));
    let devices = |count: usize| (0..count).map(|index| json!({"name": format!("gpu-{index}")})).collect::<Value>();
    let many: Value =
        (0..31).map(|index| (format!("a{index}"), json!({"int": index}))).collect::<serde_json::Map<_, _>>().into();
    for (object, because) in [
        (with("name", json!("GPU-0")), "lower case"),
        (with("name", json!("x".repeat(64))), "lower case"),
        (with("attributes", many), "at most 32"),
        (attribute(json!({"string": "x".repeat(65)})), "longer than 64"),
        (attribute(json!({"version": "535.104.05"})), "semver"),
        (attribute(json!({"string": "a", "int": 1})), "exactly one"),
        (attribute(json!({"float": 1.5})), "unknown field"),
        (with("attributes", json!({"a-b": {"int": 1}})), "C identifier"),
        (with("attributes", json!({"gpu.example.org/a/b": {"int": 1}})), "C identifier"),
        (with("allowMultipleAllocations", json!(false)), "allowMultipleAllocations must be true"),
        (with("taints", json!([{"key": "a", "effect": "Sometimes"}])), "not supported"),
        (slice("slice-1", 1, &devices(129)), "at most 128"),
        (slice("slice-1", 0, &devices(1)), "greater than zero"),
        (slice("slice-1", 1, &json!([{"name": "a"}, {"name": "a"}])), "duplicate"),
        (slice("Slice", 1, &devices(1)), "DNS subdomain"),
    ] {
        refused(&stage, &SLICES, object, because);
    }
    let mut tainted = devices(65);
    tainted[0]["taints"] = json!([{"key": "a", "effect": "None"}]);
    refused(&stage, &SLICES, slice("slice-1", 1, &tainted), "at most 64");
    let mut both = slice("slice-1", 1, &devices(1));
    both["spec"]["sharedCounters"] = json!([{"name": "a", "counters": {"b": {"value": "1"}}}]);
    refused(&stage, &SLICES, both, "only one of");
    let mut policy = shared_device("gpu-0");
    policy["capacity"]["core"]["requestPolicy"]["default"] = json!("0");
    refused(&stage, &SLICES, slice("slice-1", 1, &json!([policy])), "min is larger");
    stage.cluster.create(&SLICES, slice("slice-1", 1, &devices(128)));
}

#[test]
fn a_claim_is_judged_and_its_status_names_only_what_it_has() {
    let stage = Stage::new();
    let claim = |devices: Value| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "claim"},
            "spec": {"devices": devices},
        })
    };
    let request = json!([{"name": "gpu", "exactly": {"deviceClassName": DRIVER}}]);
    let config = |parameters: Value, of: &str| {
        claim(json!({"requests": request, "config": [
            {"requests": [of], "opaque": {"driver": DRIVER, "parameters": parameters}}]}))
    };
    refused(&stage, &CLAIMS, config(json!([1]), "gpu"), "JSON object");
    refused(&stage, &CLAIMS, config(json!({"a": "x".repeat(10_240)}), "gpu"), "10240 bytes");
    refused(&stage, &CLAIMS, config(json!({}), "other"), "name of a request");
    refused(&stage, &CLAIMS, claim(json!({"requests": [{"name": "gpu"}]})), "exactly one of");
    stage.claim("claim", &part(30, "1Gi"));
    let store = stage.cluster.store();
    let status = json!({"status": {"devices": [{"driver": DRIVER, "pool": "node-1", "device": "gpu-0"}]}});
    let failure = store.merge(&CLAIMS, NAMESPACE, "claim", true, &status).unwrap_err();
    assert!(failure.message.contains("must be an allocated device"), "{failure}");
    let spec = json!({"spec": {"devices": {"requests": []}}});
    assert!(store.merge(&CLAIMS, NAMESPACE, "claim", false, &spec).unwrap_err().message.contains("immutable"));
}

#[test]
fn events_and_classes_are_judged() {
    let stage = Stage::new();
    let event = |note: String| {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"generateName": "a."},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "example.org/driver",
            "reportingInstance": "node-1", "action": "Prepare", "reason": "Failed", "type": "Warning", "note": note,
            "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "pod", "namespace": NAMESPACE},
        })
    };
    refused(&stage, &EVENTS, event("x".repeat(1025)), "at most 1024");
    let mut elsewhere = event(String::new());
    elsewhere["regarding"]["namespace"] = "other".into();
    refused(&stage, &EVENTS, elsewhere, "does not match event.namespace");
    stage.cluster.create(&EVENTS, event("x".repeat(1024)));
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "class"},
        "spec": {"config": [{"opaque": {"driver": "Upper", "parameters": {}}}]},
    });
    refused(&stage, &DEVICE_CLASSES, class, "DNS subdomain");
}

#[test]
fn a_write_to_an_old_version_is_a_conflict() {
    let stage = Stage::new();
    stage.publish(&json!([shared_device("gpu-0")]));
    let store = stage.cluster.store();
    let read: Value = store.get(&SLICES, "", "slice-1").unwrap();
    let mut changed = read.clone();
    changed["spec"]["pool"]["generation"] = 2.into();
    store.update(&SLICES, &changed, false).unwrap();
    let failure = store.update(&SLICES, &changed, false).unwrap_err();
    assert_eq!(failure.reason, "Conflict", "{failure}");
    // A write that changes nothing does not count as a change.
    let now: Value = store.get(&SLICES, "", "slice-1").unwrap();
    let again = store.update(&SLICES, &now, false).unwrap();
    assert_eq!(again["metadata"]["resourceVersion"], now["metadata"]["resourceVersion"]);
}

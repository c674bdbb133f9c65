//! Pods with an annotation in which a scheduler has chosen the devices.

use aliquot_harness::wait;
use aliquot_test_cluster::PODS;
use serde_json::{Value, json};

use crate::stage::{
    CORE, assert_refused, container, create_annotated, delete, on_paper, part, share_of, slice_of, spec, variables,
    wait_for_units, with_settings,
};

/// A decision that gives the container `main` a fixed part of a device, whatever the container asks for.
fn decided(device: &str) -> Value {
    json!({"aliquot.dev/devices": format!("main={device}/300/2147483648")})
}

#[test]
fn a_pod_gets_the_device_that_the_scheduler_has_decided_on() {
    let world = on_paper(2);
    let device_of = |pod: &str| slice_of(&world, pod, "main").unwrap().parts.remove(0).device_uuid;
    create_annotated(&world, "undecided", &part(30, 8), &json!({}));
    world.cluster.wait_for_phase("undecided", "Running");
    // Both pods would also fit on the first device.
    assert_eq!(device_of("undecided"), world.gpu.uuid(0));
    for (name, device) in [("second", 1), ("first", 0)] {
        create_annotated(&world, name, &part(20, 8), &decided(&world.gpu.uuid(device)));
        world.cluster.wait_for_phase(name, "Running");
        assert_eq!(device_of(name), world.gpu.uuid(device), "{name}");
        // The amounts come from the pod itself.
        assert_eq!(share_of(&world, name, "main"), Some((20, 8 * crate::stage::UNIT_BYTES)));
    }
    world.assert_no_complaints();
}

#[test]
fn a_pod_with_a_claim_gets_as_much_as_was_decided() {
    let world = with_settings(2, "dialects = ['elastic-gpu']");
    let (resource, limits) = ("aliquot.dev/elastic-gpu", json!({"aliquot.dev/elastic-gpu": "1"}));
    wait_for_units(&world, resource, 200);
    let mut annotations = decided(&world.gpu.uuid(1));
    annotations["elastic-gpu-claim.aliquot.dev/main"] = "part".into();
    // The pod was bound by another scheduler, and its creator wrote the decision.
    assert_refused(&world, &limits, &annotations, "needs a decision of Aliquot's scheduler");
    annotations["aliquot.dev/generation"] = "1.2".into();
    create_annotated(&world, "claiming", &limits, &annotations);
    world.cluster.wait_for_phase("claiming", "Running");
    let slice = slice_of(&world, "claiming", "main").unwrap();
    assert_eq!(slice.parts[0].device_uuid, world.gpu.uuid(1));
    assert_eq!(share_of(&world, "claiming", "main"), Some((30, 2 << 30)));
}

#[test]
fn a_pod_of_kai_gets_what_it_asks_for_or_what_was_decided() {
    let world = with_settings(2, "dialects = ['kai']");
    let (resource, limits) = ("aliquot.dev/kai-gpu", json!({"aliquot.dev/kai-gpu": "1"}));
    wait_for_units(&world, resource, 200);
    assert_refused(&world, &limits, &json!({}), "has no effect without gpu-fraction");
    create_annotated(&world, "half", &limits, &json!({"gpu-fraction": "0.5"}));
    let pod = world.cluster.wait_for_phase("half", "Running");
    assert_eq!(share_of(&world, "half", "main"), Some((50, 40 << 30)));
    assert_eq!(variables(&world, &pod, "main").get("GPU_PORTION").map(String::as_str), Some("0.5"));
    let part = |device: usize| format!("{}/250/21474836480", world.gpu.uuid(device));
    let decided = format!("main={},{}", part(0), part(1));
    // The annotation was changed after the pod was bound.
    let annotations = json!({"aliquot.dev/devices": decided, "aliquot.dev/generation": "1.2", "gpu-fraction": "0.9"});
    create_annotated(&world, "two", &limits, &annotations);
    world.cluster.wait_for_phase("two", "Running");
    let parts = slice_of(&world, "two", "main").unwrap().parts;
    let shares = parts.iter().map(|of| (of.core_request_percent, of.core_limit_percent, of.memory_limit_bytes));
    assert_eq!(shares.collect::<Vec<_>>(), [(25, 100, 20 << 30); 2]);
    world.assert_no_complaints();
}

#[test]
fn a_decision_goes_before_kubelet_s_choice_of_whole_devices() {
    let world = with_settings(2, "whole_devices = true");
    let whole = "aliquot.dev/gpu";
    wait_for_units(&world, whole, 2);
    let start = |name: &str, index: usize| {
        let pod = create_annotated(&world, name, &json!({whole: "1"}), &decided(&world.gpu.uuid(index)));
        world.cluster.wait_for_phase(name, "Running");
        assert_eq!(slice_of(&world, name, "main").unwrap().parts[0].device_uuid, world.gpu.uuid(index), "{name}");
        world.cluster.kubelet().device_ids(&pod.metadata.uid.unwrap(), "main", whole)
    };
    let units = start("second", 1);
    assert!(units[0].starts_with(&world.gpu.uuid(0)), "kubelet has chosen another one: {units:?}");
    // The only free unit belongs to the full device. It is used for the other one.
    start("first", 0);
    delete(&world, ["second"]);
    wait_for_units(&world, whole, 2);
    start("third", 1);
    world.assert_no_complaints();
}

#[test]
fn a_decision_that_cannot_be_read_is_refused_with_a_reason() {
    let world = on_paper(1);
    let annotation = json!({"aliquot.dev/devices": "main=GPU-1"});
    let reason = "aliquot.dev/devices is \"main=GPU-1\"; it must be what Aliquot's scheduler writes there";
    assert_refused(&world, &part(30, 8), &annotation, reason);
}

#[test]
fn a_pod_that_was_sent_to_a_full_device_makes_way_for_another() {
    let world = with_settings(2, "room_grace_seconds = 0");
    wait_for_units(&world, CORE, 200);
    create_annotated(&world, "before", &part(60, 8), &decided(&world.gpu.uuid(1)));
    world.cluster.wait_for_phase("before", "Running");
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "u", "controller": true});
    let spec = spec(&[], &[container(&world, "main", &part(60, 8), &[])]);
    let metadata = json!({"name": "sent", "annotations": decided(&world.gpu.uuid(1)), "ownerReferences": [owner]});
    world.cluster.create(&PODS, json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
    wait::until_true("the pod is evicted", || world.cluster.pod("sent").is_none());
    let says = format!("that the scheduler has decided on ({})", world.gpu.uuid(1));
    wait::until_true("an event says why", || {
        world.cluster.events().iter().any(|event| event.starts_with("Evicted: ") && event.contains(&says))
    });
    // The other device has room, and its units are still on offer.
    create_annotated(&world, "successor", &part(90, 8), &decided(&world.gpu.uuid(0)));
    world.cluster.wait_for_phase("successor", "Running");
    world.assert_no_complaints();
}

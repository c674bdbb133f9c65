//! Refused pods: the reason is in kubelet's event and in the plugin's own.

use aliquot_harness::wait;
use aliquot_test_cluster::PODS;
use serde_json::json;

use crate::stage::{
    CORE, MEMORY, assert_refused, container, create_annotated, delete, on_paper, part, spec, wait_for_units,
    with_settings,
};

#[test]
fn what_can_never_be_given_is_refused_with_a_reason() {
    let world = with_settings(1, "dialects = [\"gpushare\", \"qgpu\"]");
    wait_for_units(&world, CORE, 100);
    let none = json!({});
    for (limits, annotations, reason) in [
        (json!({CORE: "30", "aliyun.com/gpu-mem": "4"}), &none, "are of two systems"),
        (json!({CORE: "0", MEMORY: "4"}), &none, "aliquot.dev/gpu-core is \"0\""),
        (json!({"tke.cloud.tencent.com/qgpu-core": "31"}), &none, "a multiple of 5 up to 100"),
        (part(30, 4), &json!({"aliquot.dev/gpu-core-limit": "NaN"}), "aliquot.dev/gpu-core-limit is \"NaN\""),
        (part(30, 4), &json!({"aliquot.dev/gpu-core-limit": "20"}), "at least aliquot.dev/gpu-core, which is 30"),
        (part(30, 4), &json!({"aliquot.dev/priority-class": "urgent"}), "aliquot.dev/priority-class is \"urgent\""),
    ] {
        assert_refused(&world, &limits, annotations, reason);
    }
}

#[test]
fn more_than_a_device_has_left_is_refused_until_there_is_room() {
    let world = on_paper(2);
    // Kubelet counts the units of both devices together.
    for name in ["a", "b"] {
        create_annotated(&world, name, &part(60, 100), &json!({}));
        world.cluster.wait_for_phase(name, "Running");
    }
    create_annotated(&world, "pod", &part(70, 10), &json!({}));
    world.cluster.wait_for_error("pod", "no device found that will do");
    wait::until_true("an event says which devices, and why not", || {
        let says = "70 percent of its time are wanted, 40 are left";
        world.cluster.events().iter().any(|event| event.matches(says).count() == 2)
    });
    delete(&world, ["a"]);
    world.cluster.wait_for_phase("pod", "Running");
}

#[test]
fn memory_of_pods_that_ask_for_time_alone_is_counted_before_they_come() {
    // Each device has 80 GiB, both together 320 units; half of the memory is kept.
    let world = with_settings(2, "core_memory_percent = 50");
    wait_for_units(&world, MEMORY, 320);
    for name in ["a", "b", "c"] {
        create_annotated(&world, name, &json!({CORE: "30"}), &json!({}));
        world.cluster.wait_for_phase(name, "Running");
        assert_eq!(world.cluster.kubelet().capacity(MEMORY), Some((640, 320)), "{name}");
    }
    // The memory on offer can really be used.
    create_annotated(&world, "d", &part(10, 160), &json!({}));
    world.cluster.wait_for_phase("d", "Running");
}

#[test]
fn a_pod_that_no_device_alone_has_room_for_is_evicted_and_its_successor_not_sent_there_again() {
    let world = with_settings(2, "room_grace_seconds = 0");
    wait_for_units(&world, CORE, 200);
    for name in ["a", "b"] {
        create_annotated(&world, name, &part(60, 10), &json!({}));
        world.cluster.wait_for_phase(name, "Running");
    }
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "set", "uid": "u", "controller": true});
    let of_set = |name: &str| {
        let spec = spec(&[], &[container(&world, "main", &part(60, 10), &[])]);
        let metadata = json!({"name": name, "ownerReferences": [owner]});
        world.cluster.create(&PODS, json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
    };
    of_set("first");
    wait::until_true("the pod is evicted", || world.cluster.pod("first").is_none());
    wait::until_true("an event says why", || {
        let says = "60 percent of its time are wanted, 40 are left";
        world.cluster.events().iter().any(|event| event.starts_with("Evicted: ") && event.contains(says))
    });
    // Two pods have 60 each, and 40 are free on both devices together.
    wait_for_units(&world, CORE, 160);
    of_set("second");
    world.cluster.wait_for_error("second", "Insufficient aliquot.dev/gpu-core");
    // The released part has room for it.
    delete(&world, ["a"]);
    world.cluster.wait_for_phase("second", "Running");
}

#[test]
fn a_unit_that_is_too_small_for_the_node_is_told_in_an_event_of_the_node() {
    let world = with_settings(1, "memory_unit_bytes = 1048576");
    wait::until_true("an event says what will do", || {
        let says = "ResourceNotOffered: aliquot.dev/gpu-memory would have 81920 units";
        world
            .cluster
            .events()
            .iter()
            .any(|event| event.starts_with(says) && event.contains("use a unit of 2 MiB or more"))
    });
    wait_for_units(&world, CORE, 100);
    wait::until_true("the resource is there, without units", || {
        world.cluster.kubelet().capacity(MEMORY) == Some((0, 0))
    });
}

//! Containers of a pod that have different requests of one claim: each gets exactly its own.

use std::collections::BTreeSet;

use aliquot_harness::wait;
use aliquot_test_cluster::{DEVICE_CLASSES, DRIVER, World, request, share};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

const RESOURCE: &str = "example.com/gpu";

/// A node with this number of GPUs, and a device class that stands for an extended resource.
fn world(devices: usize) -> World {
    let world = World::on_paper("dra", devices);
    world.wait_for_driver(devices);
    world.cluster.create(
        &DEVICE_CLASSES,
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "units"},
            "spec": {
                "selectors": [{"cel": {"expression": format!("device.driver == '{DRIVER}'")}}],
                "extendedResourceName": RESOURCE,
            },
        }),
    );
    world
}

/// A container that asks for this number of units.
fn container(name: &str, units: u32) -> Value {
    let resources = json!({"limits": {RESOURCE: units.to_string()}});
    json!({"name": name, "image": "none", "resources": resources})
}

/// The devices that a container sees.
fn devices(world: &World, pod: &Pod, container: &str) -> BTreeSet<String> {
    let output = world.cluster.output_of(pod, container);
    let variables: Vec<&str> = output.lines().filter_map(|line| line.strip_prefix("ALIQUOT_DEVICES=")).collect();
    variables.iter().flat_map(|devices| devices.split(',')).map(str::to_owned).collect()
}

#[test]
fn containers_of_a_pod_with_extended_resources_have_devices_of_their_own() {
    let world = world(3);
    let mut setup = container("setup", 1);
    setup["command"] = json!(["true"]);
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [setup],
        "containers": [container("one", 1), container("two", 2)],
    });
    world.cluster.create_pod("pod", &spec);
    let pod = world.cluster.wait_for_phase("pod", "Running");
    let (one, two) = (devices(&world, &pod, "one"), devices(&world, &pod, "two"));
    assert_eq!((one.len(), two.len()), (1, 2));
    assert!(one.is_disjoint(&two), "{one:?} {two:?}");
    // The init container has ended. Its devices were those of the first container.
    assert_eq!(devices(&world, &pod, "setup"), one);
    assert_eq!(world.slices().len(), 2);
    wait::until_true("each slice is told of its own container", || {
        let consumers: BTreeSet<(usize, Vec<String>)> = world
            .slices()
            .into_iter()
            .map(|slice| (slice.parts.len(), slice.consumers.into_iter().map(|it| it.container).collect()))
            .collect();
        consumers == BTreeSet::from([(1, vec!["one".to_owned()]), (2, vec!["two".to_owned()])])
    });
    world.cluster.delete_pod("pod");
    world.wait_until_empty();
    world.assert_no_complaints();
}

#[test]
fn devices_that_cannot_be_divided_between_containers_are_refused_with_a_reason() {
    let world = world(2);
    let spec = json!({
        "restartPolicy": "Never",
        "initContainers": [container("setup", 2)],
        "containers": [container("one", 1), container("two", 1)],
    });
    world.cluster.create_pod("pod", &spec);
    let error = world.cluster.wait_for_error("pod", "NodePrepareResources failed");
    assert!(error.contains("and container \"setup\" of pod \"pod\" has request"), "{error}");
    assert_eq!(world.slices(), []);
    world.cluster.delete_pod("pod");
    world.wait_until_empty();
}

#[test]
fn a_container_has_the_requests_that_it_names_also_after_kubelet_and_manager_were_restarted() {
    let mut world = world(2);
    let wanted = share(30, 1024);
    let requests: Vec<Value> =
        ["left", "right"].iter().map(|name| json!({"name": name, "exactly": request(wanted, 1)})).collect();
    world.claim_of("pair", &json!({"requests": requests}));
    let mut spec = world.pod_spec(&["pair"], &[]);
    let mut container = spec["containers"][0].clone();
    spec["containers"] = ["left", "right", "again"]
        .map(|name| {
            container["name"] = name.into();
            let request = if name == "again" { "right" } else { name };
            container["resources"]["claims"] = json!([{"name": "pair", "request": request}]);
            container.clone()
        })
        .into();
    world.cluster.create_pod("pod", &spec);
    let check = |world: &World, name: &str| {
        let pod = world.cluster.wait_for_phase(name, "Running");
        let [left, right, again] = ["left", "right", "again"].map(|container| devices(world, &pod, container));
        assert_eq!((left.len(), right.len()), (1, 1));
        assert!(left != right && right == again, "{left:?} {right:?} {again:?}");
    };
    check(&world, "pod");
    let before: BTreeSet<String> = world.slices().into_iter().map(|slice| slice.id).collect();
    assert_eq!(before.len(), 2);
    world.node.kill();
    world.cluster.kill_kubelet();
    world.node.restart();
    world.cluster.start_kubelet();
    // The claim is prepared again for this kubelet, as kubelet requires.
    world.cluster.create_pod("second", &spec);
    check(&world, "second");
    world.cluster.delete_pod("pod");
    assert_eq!(world.slices().into_iter().map(|slice| slice.id).collect::<BTreeSet<_>>(), before);
    world.cluster.delete_pod("second");
    world.wait_until_empty();
    world.assert_no_complaints();
}

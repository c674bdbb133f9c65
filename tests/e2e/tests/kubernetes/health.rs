//! Devices that become unhealthy while pods use them, and recover.

use aliquot_harness::wait;
use aliquot_test_cluster::{NODE_NAME, SLICES, World, share};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

/// A cluster with two devices. The pod `before` has a twentieth of one of them; that device's index is returned.
fn world_with_a_pod() -> (World, usize) {
    let world = World::on_paper("dra", 2);
    world.wait_for_driver(2);
    world.claim("before", share(5, 64));
    world.pod("before", &["before"], &[]);
    world.cluster.wait_for_phase("before", "Running");
    let device = device_of(&world, "before");
    (world, device)
}

/// The index of the device of which the claim was given a part.
fn device_of(world: &World, claim: &str) -> usize {
    let given = world.results(claim).remove(0).device;
    (0..2).find(|index| name(world, *index) == given).expect("it is one of the two")
}

/// The device's name in the node's pool.
fn name(world: &World, index: usize) -> String {
    world.gpu.uuid(index).to_lowercase()
}

fn published(world: &World, index: usize) -> Device {
    let slices = world.cluster.store().list::<ResourceSlice>(&SLICES);
    let mut devices = slices.into_iter().flat_map(|slice| slice.spec.devices.unwrap_or_default());
    devices.find(|device| device.name == name(world, index)).expect("the device is published")
}

/// Whether the device is published with a taint against new pods.
fn is_tainted(world: &World, index: usize) -> bool {
    let device = published(world, index);
    let taints = device.taints.unwrap_or_default();
    let is_tainted = taints.iter().any(|taint| taint.key == "gpu.aliquot.dev/unhealthy");
    assert!(taints.iter().all(|taint| taint.effect == "NoSchedule"), "{taints:?}");
    let healthy = device.attributes.and_then(|mut attributes| attributes.remove("healthy")?.bool);
    assert_eq!(healthy, Some(!is_tainted));
    is_tainted
}

/// Whether kubelet was told that the device is healthy.
fn is_healthy_for_kubelet(world: &World, index: usize) -> Option<bool> {
    world.cluster.kubelet().device_health().get(&(NODE_NAME.to_owned(), name(world, index))).copied()
}

fn wait_for_event(world: &World, words: &[&str]) {
    wait::until_true(&format!("an event with {words:?}"), || {
        world.cluster.events().iter().any(|event| words.iter().all(|words| event.contains(words)))
    });
}

#[test]
fn a_device_that_goes_bad_gets_no_new_pods_until_it_is_well() {
    let (world, ill) = world_with_a_pod();
    let before = world.slice_of("before").unwrap();
    world.gpu.machine().set_lost(ill, true);
    wait::until_true("the device is tainted", || is_tainted(&world, ill));
    assert!(!is_tainted(&world, 1 - ill));
    wait::until_true("kubelet knows", || is_healthy_for_kubelet(&world, ill) == Some(false));
    assert_eq!(is_healthy_for_kubelet(&world, 1 - ill), Some(true));
    wait_for_event(&world, &["DeviceUnhealthy: ", &world.gpu.uuid(ill), "fell off the bus"]);

    world.claim("beside", share(10, 64));
    world.pod("beside", &["beside"], &[]);
    world.cluster.wait_for_phase("beside", "Running");
    assert_eq!(device_of(&world, "beside"), 1 - ill);
    // The healthy device has less left, and the unhealthy one accepts no pod.
    world.claim("waits", share(95, 64));
    world.pod("waits", &["waits"], &[]);
    world.cluster.wait_for_error("waits", "0 of 1 fit");
    // The earlier pod is not disturbed.
    assert!(world.is_running("before"));
    assert_eq!(world.slice_of("before").unwrap().parts, before.parts);

    world.gpu.machine().set_lost(ill, false);
    wait::until_true("the taint is gone", || !is_tainted(&world, ill));
    let pod = world.cluster.wait_for_phase("waits", "Running");
    world.assert_identity(&pod, "waits", share(95, 64));
    assert_eq!(device_of(&world, "waits"), ill);
    wait::until_true("kubelet knows", || is_healthy_for_kubelet(&world, ill) == Some(true));
    wait_for_event(&world, &["DeviceRecovered: ", &world.gpu.uuid(ill)]);
    assert_eq!(world.slice_of("before").unwrap().id, before.id);
    world.assert_no_complaints();
}

#[test]
fn a_pod_whose_device_goes_bad_before_it_starts_waits_until_it_is_well() {
    let (mut world, ill) = world_with_a_pod();
    world.cluster.kill_kubelet();
    world.claim("late", share(95, 64));
    // Each device has room for only one of the two claims.
    world.claim("other", share(95, 64));
    for name in ["late", "other"] {
        world.pod(name, &[name], &[]);
        wait::until_true("it is allocated", || !world.results(name).is_empty());
    }
    let late = if device_of(&world, "late") == ill { "late" } else { "other" };
    world.gpu.machine().set_lost(ill, true);
    wait::until_true("the device is tainted", || is_tainted(&world, ill));
    world.cluster.start_kubelet();
    let error = world.cluster.wait_for_error(late, "is unhealthy");
    assert!(error.contains("fell off the bus"), "{error}");
    wait_for_event(&world, &["PrepareFailed: ", "is unhealthy"]);
    world.gpu.machine().set_lost(ill, false);
    for name in ["late", "other"] {
        let pod = world.cluster.wait_for_phase(name, "Running");
        world.assert_identity(&pod, name, share(95, 64));
    }
    assert!(world.is_running("before"));
}

//! On the test cluster: GPUs in MIG mode, divided into instances as claims ask for them.

use std::collections::BTreeSet;
use std::fs;

use aliquot_harness::{PARTITIONABLE_GPU, wait};
use aliquot_test_cluster::{CLAIMS, DEVICE_CLASSES, DRIVER, PODS, World};
use serde_json::json;

/// The device class of MIG instances.
const CLASS: &str = "mig.gpu.aliquot.dev";
/// The number of offered devices: one for each profile at each of its places on the GPU.
const PLACES: usize = 25;
/// More steps than the handling of one claim has.
const MANY: u32 = 200;

/// A node with one GPU in MIG mode that has no instances.
fn world() -> World {
    let world = World::on_paper_with("dra", PARTITIONABLE_GPU, "mig = \"dynamic\"\n");
    let expression = format!("device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'");
    world.cluster.create(
        &DEVICE_CLASSES,
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }),
    );
    world
}

/// Creates a pod with a claim of the same name, for an instance of this profile.
fn start(world: &World, name: &str, profile: &str) {
    let expression = format!("device.attributes['{DRIVER}'].migProfile == '{profile}'");
    let exactly = json!({"deviceClassName": CLASS, "selectors": [{"cel": {"expression": expression}}]});
    world.claim_of(name, &json!({"requests": [{"name": "mig", "exactly": exactly}]}));
    world.pod(name, &[name], &[]);
}

/// Waits until the pod runs. Returns the instance of its slice as text: profile and place.
fn runs_on(world: &World, name: &str) -> String {
    let pod = world.cluster.wait_for_phase(name, "Running");
    let slice = world.slice_of(name).expect("the claim has a slice");
    let [part] = slice.parts.as_slice() else { panic!("{slice:?}") };
    assert!(world.cluster.output(&pod).contains(&format!("ALIQUOT_DEVICES={}\n", part.device_uuid)));
    assert_eq!(part.core_request_percent, 100);
    let devices = world.gpu.config().devices.iter().enumerate();
    let mut found = devices.filter(|(_, device)| device.uuid_text() == part.device_uuid);
    let (index, device) = found.next().expect("the machine has such a device");
    assert!(world.gpu.machine().is_present(index), "{slice:?}");
    assert_eq!(part.memory_limit_bytes, device.memory_bytes);
    let partition = device.partition.as_ref().expect("an instance that was made");
    format!("{} at {}", partition.profile.name, partition.start)
}

/// The device indices of the existing GPU instances.
fn instances(world: &World) -> Vec<usize> {
    (0..world.gpu.config().devices.len()).filter(|&device| world.gpu.machine().has_gpu_instance(device)).collect()
}

/// Deletes the pod and its claim, and waits until their instance is given back.
fn end(world: &World, name: &str) {
    world.cluster.delete_pod(name);
    world.cluster.store().delete(&CLAIMS, "default", name, false).expect("the claim is there");
}

#[test]
fn a_gpu_is_divided_as_claims_want_it() {
    let world = world();
    world.wait_for_driver(PLACES);
    let names: Vec<String> = (0..7).map(|number| format!("small-{number}")).collect();
    names.iter().for_each(|name| start(&world, name, "1g.10gb"));
    let places: BTreeSet<String> = names.iter().map(|name| runs_on(&world, name)).collect();
    assert_eq!(places, (0..7).map(|start| format!("1g.10gb at {start}")).collect());
    start(&world, "one-too-many", "1g.10gb");
    world.cluster.wait_for_error("one-too-many", "mig");
    assert_eq!(instances(&world).len(), 7);
    // The next instance takes the place of one that has ended.
    end(&world, "small-3");
    assert_eq!(runs_on(&world, "one-too-many"), "1g.10gb at 3");
    world.delete_everything();
    world.wait_until_empty();
    assert_eq!(instances(&world), Vec::<usize>::new());

    start(&world, "four", "4g.40gb");
    start(&world, "three", "3g.40gb");
    assert_eq!(runs_on(&world, "four"), "4g.40gb at 0");
    assert_eq!(runs_on(&world, "three"), "3g.40gb at 4");
    start(&world, "two", "2g.20gb");
    world.cluster.wait_for_error("two", "mig");
    end(&world, "three");
    assert_eq!(runs_on(&world, "two"), "2g.20gb at 4");
    world.delete_everything();
    world.wait_until_empty();
    assert_eq!(instances(&world), Vec::<usize>::new());
    world.assert_no_complaints();
}

#[test]
fn instances_made_by_an_administrator_are_offered_and_kept() {
    let world = world();
    world.wait_for_driver(PLACES);
    let made = world.gpu.instance(0, "3g.40gb", 4);
    world.gpu.machine().create_instance(made).expect("there is room");
    // Devices that are still offered: four of 1g, with and without the media engines, two of 1g.20gb and of 2g, one of
    // 3g and one of 4g.
    world.wait_for_driver(1 + 4 + 4 + 2 + 2 + 1 + 1);
    start(&world, "whole", "7g.80gb");
    world.cluster.wait_for_error("whole", "mig");
    start(&world, "four", "4g.40gb");
    start(&world, "three", "3g.40gb");
    assert_eq!(runs_on(&world, "four"), "4g.40gb at 0");
    assert_eq!(runs_on(&world, "three"), "3g.40gb at 4");
    world.delete_everything();
    world.wait_until_empty();
    assert_eq!(instances(&world), [made]);
    assert!(world.gpu.machine().is_present(made));
}

#[test]
fn a_pod_ends_although_its_gpu_has_left_mig_mode() {
    let world = world();
    world.wait_for_driver(PLACES);
    start(&world, "pod", "2g.20gb");
    assert_eq!(runs_on(&world, "pod"), "2g.20gb at 0");
    world.gpu.machine().set_mig_mode(0, false);
    world.delete_everything();
    world.wait_until_empty();
}

#[test]
fn a_pod_ends_although_its_gpu_is_lost() {
    let world = world();
    world.wait_for_driver(PLACES);
    start(&world, "pod", "2g.20gb");
    assert_eq!(runs_on(&world, "pod"), "2g.20gb at 0");
    world.gpu.machine().set_lost(0, true);
    world.cluster.delete_pod("pod");
    wait::until_true("the pod is gone", || world.cluster.pod("pod").is_none());
    assert!(world.slice_of("pod").is_none());
}

#[test]
fn a_damaged_record_leaves_no_orphaned_instance() {
    let mut world = world();
    world.wait_for_driver(PLACES);
    start(&world, "pod", "2g.20gb");
    assert_eq!(runs_on(&world, "pod"), "2g.20gb at 0");
    world.node.kill();
    let records = world.node.state_dir().join("kubernetes/claims");
    let uid = world.claim_now("pod").metadata.uid.expect("a claim has a uid");
    fs::write(records.join(format!("{uid}.json")), "{").expect("the claim has a record");
    world.node.restart();
    world.delete_everything();
    world.wait_until_empty();
    assert_eq!(instances(&world), Vec::<usize>::new());
    world.wait_for_driver(PLACES);
}

#[test]
fn a_kill_at_any_step_leaves_no_orphaned_instance() {
    let mut world = world();
    let made = world.gpu.instance(0, "1g.10gb", 0);
    world.gpu.machine().create_instance(made).expect("there is room");
    let offered = 1 + 6 + 6 + 3 + 2 + 1;
    for number in 1.. {
        assert!(number < MANY, "a claim's life has no end");
        world.wait_for_driver(offered);
        let killer = world.node.kill_at_step(number);
        start(&world, "pod", "2g.20gb");
        let mut has_run = false;
        let killed = world.until_done_or_killed(killer, "the pod has come and gone", |world| {
            if !has_run && world.is_running("pod") {
                has_run = true;
                world.cluster.store().delete(&PODS, "default", "pod", false).expect("it is there");
            }
            world.cluster.pod("pod").is_none()
        });
        if killed {
            if has_run {
                wait::until_true("the pod is gone", || world.cluster.pod("pod").is_none());
            } else {
                assert_eq!(runs_on(&world, "pod"), "2g.20gb at 2", "killed at step {number}");
                assert_eq!(instances(&world).len(), 2, "killed at step {number}");
            }
        }
        world.delete_everything();
        world.wait_until_empty();
        assert_eq!(instances(&world), [made], "killed at step {number}");
        if !killed {
            assert!(number > 3, "there were only {number} steps");
            return;
        }
    }
}

//! Slices are removed with their containers, neither later nor earlier, although the plugin waits long before it
//! believes a kubelet that no longer lists a pod.

use std::process::Command;

use aliquot_harness::{Process, tool, wait};
use aliquot_test_cluster::{NAMESPACE, PODS, World};
use serde_json::json;

use crate::stage::{CORE, container, create, delete, part, slice_of, spec, wait_for_plugin, with_settings};

/// A cluster with a grace period so long that a test which waits for its end fails.
fn with_long_grace() -> World {
    let world = with_settings(1, "gone_grace_seconds = 3600");
    wait_for_plugin(&world, 1);
    world
}

#[track_caller]
fn create_running(world: &World, name: &str) {
    create(world, name, &part(10, 2));
    world.cluster.wait_for_phase(name, "Running");
}

#[track_caller]
fn wait_for_slices_of(world: &World, pods: &[&str]) {
    wait::until_true(&format!("these and no others have slices: {pods:?}"), || {
        world.slices().len() == pods.len() && pods.iter().all(|pod| slice_of(world, pod, "main").is_some())
    });
}

#[test]
fn a_slice_goes_when_its_pod_is_deleted() {
    let world = with_long_grace();
    ["goes", "stays"].iter().for_each(|name| create_running(&world, name));
    delete(&world, ["goes"]);
    wait_for_slices_of(&world, &["stays"]);
}

#[test]
fn a_slice_goes_when_its_pod_was_deleted_while_kubelet_was_down() {
    let mut world = with_long_grace();
    ["goes", "stays"].iter().for_each(|name| create_running(&world, name));
    world.cluster.kill_kubelet();
    world.cluster.store().delete(&PODS, NAMESPACE, "goes", true).expect("the pod is there");
    world.cluster.start_kubelet();
    wait_for_slices_of(&world, &["stays"]);
}

#[test]
fn a_slice_goes_although_a_new_pod_of_that_name_waits() {
    let world = with_long_grace();
    ["stays", "web-0"].iter().for_each(|name| create_running(&world, name));
    delete(&world, ["web-0"]);
    // No node has so many units.
    world.cluster.create_pod("web-0", &spec(&[], &[container(&world, "main", &json!({CORE: "5000"}), &[])]));
    wait_for_slices_of(&world, &["stays"]);
}

/// Starts a process in a mount namespace of its own, with a region mounted as in a container.
fn start_with_region(region: &str, mount_point: &str) -> Process {
    let script = format!("mount --bind {region} {mount_point} && echo mounted && exec sleep infinity");
    let mut command = Command::new(tool("unshare", "util-linux"));
    let mut process = Process::start(command.args(["--mount", "--propagation=private", "sh", "-c", &script]));
    process.wait_for("mounted");
    process
}

#[test]
fn a_slice_stays_as_long_as_a_process_of_its_container_runs() {
    let world = with_long_grace();
    ["a-runs", "b-ended"].iter().for_each(|name| create_running(&world, name));
    let slice = slice_of(&world, "a-runs", "main").unwrap();
    let dir = tempfile::tempdir().unwrap();
    // The process has used no device, so the manager does not know it otherwise.
    let process = start_with_region(&slice.region_path, dir.path().to_str().unwrap());
    delete(&world, ["a-runs", "b-ended"]);
    // Slices are checked in the order of their names.
    wait_for_slices_of(&world, &["a-runs"]);
    process.kill();
    wait_for_slices_of(&world, &[]);
}

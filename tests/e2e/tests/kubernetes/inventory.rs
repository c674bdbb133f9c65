//! What the cluster knows of the node's devices.

use std::process::Command;

use aliquot_harness::{artifacts, run, wait};
use aliquot_test_cluster::{NODE_NAME, NODES, SLICES, World};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use serde_json::json;

#[test]
fn a_driver_removes_the_inventory_of_a_plugin_and_nothing_else() {
    let mut world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    world.node.stop();
    let annotations = json!({"aliquot.dev/inventory": "{}", "example.com/other": "stays"});
    let patch = json!({"metadata": {"annotations": annotations}});
    world.cluster.store().merge(&NODES, "", NODE_NAME, false, &patch).unwrap();
    world.node.restart();
    wait::until_true("the annotation is gone", || {
        let node: Node = world.cluster.store().get(&NODES, "", NODE_NAME).unwrap();
        let keys: Vec<String> = node.metadata.annotations.into_iter().flat_map(|all| all.into_keys()).collect();
        keys == ["example.com/other"]
    });
}

#[test]
fn doctor_says_that_a_cluster_gives_whole_devices_only() {
    let mut world = World::on_paper("dra", 2);
    world.wait_for_driver(2);
    let doctor = |world: &World| {
        let mut command = Command::new(artifacts::cli());
        command.env("ALIQUOT_SOCKET", world.node.socket()).env("KUBERNETES_SERVICE_HOST", "10.96.0.1").arg("doctor");
        run(&mut command).success().stdout
    };
    let said = doctor(&world);
    assert!(!said.contains("DRAConsumableCapacity"), "{said}");

    world.node.stop();
    world.cluster.api_server().set_whole_devices(true);
    for slice in world.cluster.store().list::<ResourceSlice>(&SLICES) {
        world.cluster.store().delete(&SLICES, "", &slice.metadata.name.unwrap(), true).unwrap();
    }
    world.node.restart();
    world.wait_for_driver(2);
    wait::until_true("doctor says it", || {
        let said = doctor(&world);
        let mut lines = said.lines().skip_while(|line| !line.contains("each claim gets a whole device"));
        let is_warning = lines.next().is_some_and(|line| line.starts_with("warn  Kubernetes"));
        is_warning && lines.next().is_some_and(|remedy| remedy.contains("feature gate DRAConsumableCapacity"))
    });
}

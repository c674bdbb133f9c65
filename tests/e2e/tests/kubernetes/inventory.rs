//! The annotation that a device plugin has left on the node.

use aliquot_harness::wait;
use aliquot_test_cluster::{NODE_NAME, NODES, World};
use k8s_openapi::api::core::v1::Node;
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

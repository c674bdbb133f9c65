//! The node's annotation from which a scheduler learns the node's devices.

use aliquot_api_server::{INVENTORY, Inventory};
use aliquot_harness::wait;
use aliquot_test_cluster::{NODE_NAME, NODES, World};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::stage::with_settings;

/// The text of the annotation.
fn annotation(world: &World) -> Option<String> {
    let node: Node = world.cluster.store().get(&NODES, "", NODE_NAME).expect("the node is there");
    node.metadata.annotations?.remove(INVENTORY)
}

/// Waits for an annotation for which `holds` is true, and answers its text.
fn wait_for(world: &World, what: &str, holds: impl Fn(&Inventory) -> bool) -> String {
    wait::until(what, || {
        let text = annotation(world)?;
        let inventory: Inventory = serde_json::from_str(&text).expect("a scheduler can read it");
        assert!(inventory.reading().is_ok(), "{text}");
        holds(&inventory).then_some(text)
    })
}

#[test]
fn a_node_tells_its_devices_and_how_it_reads_requests() {
    let mut world = with_settings(2, "dialects = [\"hami\"]\ncore_memory_percent = 50\nslots_per_device = 7");
    let is_well = |inventory: &Inventory| inventory.devices.iter().all(|device| device.problem.is_none());
    let found: Value = serde_json::from_str(&wait_for(&world, "an annotation", is_well)).unwrap();
    let device = |index: usize| {
        json!({
            "uuid": world.gpu.uuid(index), "index": index, "model": "NVIDIA H100 80GB HBM3",
            "memoryBytes": 80_u64 << 30,
        })
    };
    let expected = json!({
        "devices": [device(0), device(1)],
        "dialects": ["aliquot", "hami"],
        "memoryUnitBytes": 256 << 20,
        "coreMemoryPercent": 50,
        "wholeDevices": false,
        "gpushareUnitBytes": 1 << 30,
        "qgpuPolicy": "best-effort",
        "slotsPerDevice": 7,
        "nvidiaReplicas": 1,
        "awsVgpus": 10,
    });
    assert_eq!(found, expected);

    world.gpu.machine().set_lost(1, true);
    wait_for(&world, "the ill device is told", |inventory| {
        inventory.devices[0].problem.is_none() && inventory.devices[1].problem.is_some()
    });
    world.gpu.machine().set_lost(1, false);
    wait_for(&world, "all devices are well", is_well);

    // A manager writes the annotation again when it starts.
    world.node.stop();
    let nothing = json!({"metadata": {"annotations": {INVENTORY: null}}});
    world.cluster.store().merge(&NODES, "", NODE_NAME, false, &nothing).unwrap();
    world.node.restart();
    wait_for(&world, "the annotation is there again", is_well);
}

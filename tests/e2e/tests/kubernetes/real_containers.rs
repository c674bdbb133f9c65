//! Pods with containers that really run: podman starts them in their slices, on the simulated GPU.

use aliquot_harness::{MIB, wait};
use serde_json::json;

use aliquot_test_cluster::{World, request, share};

#[test]
fn a_container_has_exactly_what_its_claim_was_given() {
    let world = World::with_containers("dra", 1, &["exact"]);
    world.wait_for_driver(1);
    world.claim("part", share(30, 64));
    let bytes = (64 * MIB).to_string();
    world.pod("pod", &["part"], &["/bin/exact-linked", &bytes]);
    let pod = world.cluster.wait_for_phase("pod", "Succeeded");
    let said = world.cluster.output(&pod);
    assert!(said.starts_with(&format!("free: {bytes}\none byte more than all: 2\n")), "{said}");
    world.cluster.delete_pod("pod");
    world.wait_until_empty();
    world.assert_no_complaints();
}

#[test]
fn containers_of_two_pods_that_share_a_claim_share_its_memory() {
    let world = World::with_containers("dra", 1, &["exact", "hold"]);
    world.wait_for_driver(1);
    world.claim("shared", share(30, 64));
    world.pod("holder", &["shared"], &["/bin/hold-linked", &(16 * MIB).to_string()]);
    let holder = world.cluster.wait_for_phase("holder", "Running");
    wait::until_true("the first pod holds memory", || world.cluster.output(&holder).contains("held"));
    let left = (48 * MIB).to_string();
    world.pod("other", &["shared"], &["/bin/exact-linked", &left]);
    let other = world.cluster.wait_for_phase("other", "Succeeded");
    assert!(world.cluster.output(&other).starts_with(&format!("free: {left}\n")), "{}", world.cluster.output(&other));
    let slice = world.slice_of("shared").unwrap().name;
    // Not at once: a look that fell between two steps of an allocation shows until the next look.
    wait::until_true("the slice uses what the first pod holds", || {
        world.node.client().usage(&slice).unwrap().parts[0].memory_used_bytes == 16 * MIB
    });
    world.delete_everything();
    world.wait_until_empty();
}

#[test]
fn a_container_sees_the_devices_of_its_claim_and_no_others() {
    let world = World::with_containers("dra", 3, &["devices"]);
    world.wait_for_driver(3);
    world.claim_of("pair", &json!({"requests": [{"name": "gpu", "exactly": request(share(40, 32), 2)}]}));
    world.pod("pod", &["pair"], &["/bin/devices-linked"]);
    let pod = world.cluster.wait_for_phase("pod", "Succeeded");
    let said = world.cluster.output(&pod);
    let total = format!("total {}, ", 32 * MIB);
    assert_eq!(said.matches(&total).count(), 2, "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn running_containers_outlive_kubelet_and_manager() {
    let mut world = World::with_containers("dra", 1, &["hold"]);
    world.wait_for_driver(1);
    world.claim("part", share(30, 64));
    world.pod("pod", &["part"], &["/bin/hold-linked", &(16 * MIB).to_string()]);
    let pod = world.cluster.wait_for_phase("pod", "Running");
    wait::until_true("it holds memory", || world.cluster.output(&pod).contains("held"));
    world.cluster.kill_kubelet();
    world.node.kill();
    world.node.restart();
    world.cluster.start_kubelet();
    world.wait_for_driver(1);
    let slice = world.slice_of("part").unwrap().name;
    wait::until_true("the manager knows what it uses", || {
        world.node.client().usage(&slice).unwrap().parts[0].memory_used_bytes == 16 * MIB
    });
    world.cluster.wait_for_phase("pod", "Running");
    world.cluster.delete_pod("pod");
    world.wait_until_empty();
}

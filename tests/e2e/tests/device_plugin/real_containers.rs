//! Pods with containers that really run: podman starts them in their slices, on the simulated GPU.

use aliquot_harness::{MIB, wait};
use aliquot_test_cluster::World;
use serde_json::json;

use crate::stage::{MEMORY, UNIT_BYTES, container, part, slice_of, spec, wait_for_plugin};

/// A name that no other test uses: all publish in one directory, and slices are named after their pods.
fn unique(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

#[test]
fn a_container_gets_both_names_of_its_slice_and_has_exactly_what_it_asked_for() {
    let world = World::with_containers("device-plugin", 1, &["exact"]);
    wait_for_plugin(&world, 1);
    let name = unique("exact");
    let bytes = UNIT_BYTES.to_string();
    let command = ["/bin/exact-linked", &bytes];
    world.cluster.create_pod(&name, &spec(&[], &[container(&world, "main", &part(30, 1), &command)]));
    let pod = world.cluster.wait_for_phase(&name, "Succeeded");
    let said = world.cluster.output(&pod);
    assert!(said.starts_with(&format!("free: {bytes}\none byte more than all: 2\n")), "{said}");
    world.assert_no_complaints();
}

#[test]
fn init_containers_and_containers_run_in_their_own_slices() {
    let world = World::with_containers("device-plugin", 1, &["exact", "hold"]);
    wait_for_plugin(&world, 1);
    let name = unique("init");
    let exactly = |units: u64| (units * UNIT_BYTES).to_string();
    let init = container(&world, "init", &json!({MEMORY: "3"}), &["/bin/exact-linked", &exactly(3)]);
    let main = container(&world, "main", &json!({MEMORY: "2"}), &["/bin/hold-linked", &(16 * MIB).to_string()]);
    world.cluster.create_pod(&name, &spec(&[init], &[main]));
    let pod = world.cluster.wait_for_phase(&name, "Running");
    let said = world.cluster.output_of(&pod, "init");
    assert!(said.starts_with(&format!("free: {}\n", exactly(3))), "{said}");
    wait::until_true("the container holds memory", || world.cluster.output_of(&pod, "main").contains("held"));
    let slice = slice_of(&world, &name, "main").unwrap();
    assert_eq!(slice.parts[0].memory_limit_bytes, 2 * UNIT_BYTES);
    // Not at once: a look that fell between two steps of an allocation shows until the next look.
    wait::until_true("the slice uses what the container holds", || {
        world.node.client().usage(&slice.name).unwrap().parts[0].memory_used_bytes == 16 * MIB
    });
}

#[test]
fn running_containers_outlive_kubelet_and_manager() {
    let mut world = World::with_containers("device-plugin", 1, &["hold"]);
    wait_for_plugin(&world, 1);
    let name = unique("outlives");
    let command = ["/bin/hold-linked", &(16 * MIB).to_string()];
    world.cluster.create_pod(&name, &spec(&[], &[container(&world, "main", &part(30, 1), &command)]));
    let pod = world.cluster.wait_for_phase(&name, "Running");
    wait::until_true("it holds memory", || world.cluster.output(&pod).contains("held"));
    world.cluster.kill_kubelet();
    world.node.kill();
    world.node.restart();
    world.cluster.start_kubelet();
    wait_for_plugin(&world, 1);
    wait::until_true("the manager knows whose slice it is", || slice_of(&world, &name, "main").is_some());
    let slice = slice_of(&world, &name, "main").unwrap().name;
    wait::until_true("the manager knows what it uses", || {
        world.node.client().usage(&slice).unwrap().parts[0].memory_used_bytes == 16 * MIB
    });
    world.cluster.wait_for_phase(&name, "Running");
}

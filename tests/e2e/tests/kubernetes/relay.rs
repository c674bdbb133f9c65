//! A relay between kubelet and the managers: kubelet has a driver at any time.

use std::cell::Cell;

use aliquot_harness::wait;
use aliquot_test_cluster::{DRIVER, World, share};

/// Creates a pod, with a claim of the same name.
fn come(world: &World, number: usize) {
    let name = format!("pod-{number}");
    world.claim(&name, share(2, 64));
    world.pod(&name, &[&name], &[]);
}

/// Waits until these pods run in their slices, and checks that kubelet has never had to repeat a call.
fn assert_run(world: &World, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let name = format!("pod-{number}");
        let pod = world.cluster.wait_for_phase(&name, "Running");
        world.assert_identity(&pod, &name, share(2, 64));
        assert_eq!(world.cluster.kubelet().pod_error(&pod.metadata.uid.unwrap()), None);
        world.cluster.delete_pod(&name);
    }
}

#[test]
fn claims_wait_for_the_next_manager_and_are_asked_for_once() {
    let mut world = World::on_paper_with("dra", &"[[device]]\n".repeat(2), "relay = true\n");
    let mut relay = world.relay("first", 1);
    world.wait_for_driver(2);
    let count = Cell::new(0);
    for round in 0..10 {
        let before = count.get();
        world.node.kill();
        come(&world, count.replace(count.get() + 1));
        assert!(world.cluster.kubelet().has_driver(DRIVER));
        world.node.restart();
        assert_run(&world, before..count.get());

        let before = count.get();
        world.roll_out(&mut relay, &format!("round-{round}"), 1, |world| {
            come(world, count.replace(count.get() + 1));
            assert!(world.cluster.kubelet().has_driver(DRIVER));
        });
        assert_run(&world, before..count.get());
    }
    wait::until_true("no slice is left", || world.slices().is_empty());
    world.assert_no_complaints();
}

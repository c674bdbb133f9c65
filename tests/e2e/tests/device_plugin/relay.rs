//! A relay between kubelet and the managers: no pod fails while managers are killed and replaced.

use std::cell::RefCell;

use aliquot_test_cluster::World;

use crate::stage::{CORE, create_bound, delete, part, wait_for_units, with_relay, wrong};

/// The resources of the plugin: time and memory.
const RESOURCES: usize = 2;

/// Pods that are created one after the other, each already bound to the node. If a pod's units are missing, it fails
/// for good.
#[derive(Default)]
struct Comers(RefCell<Vec<String>>);

impl Comers {
    fn come(&self, world: &World, count: usize) {
        for _ in 0..count {
            let mut names = self.0.borrow_mut();
            let name = format!("pod-{}", names.len());
            create_bound(world, &name, &part(2, 1));
            names.push(name);
        }
    }

    /// Waits until all pods after the first `before` run in their slices, and deletes them.
    fn assert_run(&self, world: &World, before: usize) {
        let names = &self.0.borrow()[before..];
        for name in names {
            let pod = world.cluster.wait_for_phase(name, "Running");
            assert_eq!(wrong(world, &pod, "main", 2, 1), None);
        }
        delete(world, names.iter().map(String::as_str));
    }

    fn count(&self) -> usize {
        self.0.borrow().len()
    }
}

#[test]
fn no_pod_fails_while_managers_are_killed_and_replaced() {
    let mut world = with_relay(2);
    let (comers, mut relay) = (Comers::default(), world.relay("first", RESOURCES));
    wait_for_units(&world, CORE, 200);
    for round in 0..5 {
        let before = comers.count();
        world.node.kill();
        comers.come(&world, 10);
        // This is the number in the node's status: the scheduler still sees all units.
        assert_eq!(world.cluster.kubelet().capacity(CORE), Some((200, 200)));
        world.node.restart();
        comers.assert_run(&world, before);

        let before = comers.count();
        world.roll_out(&mut relay, &format!("round-{round}"), RESOURCES, |world| {
            comers.come(world, 3);
            assert_eq!(world.cluster.kubelet().capacity(CORE), Some((200, 200)));
        });
        comers.assert_run(&world, before);
    }
    assert!(comers.count() >= 100, "there were only {} pods", comers.count());
    world.assert_no_complaints();
}

#[test]
fn a_kubelet_that_was_restarted_has_the_relay_s_units_although_no_manager_is_there() {
    let mut world = with_relay(1);
    let _relay = world.relay("only", RESOURCES);
    wait_for_units(&world, CORE, 100);
    world.node.kill();
    world.cluster.kill_kubelet();
    world.cluster.start_kubelet();
    wait_for_units(&world, CORE, 100);
    create_bound(&world, "pod", &part(30, 8));
    world.node.restart();
    let pod = world.cluster.wait_for_phase("pod", "Running");
    assert_eq!(wrong(&world, &pod, "main", 30, 8), None);
    world.assert_no_complaints();
}

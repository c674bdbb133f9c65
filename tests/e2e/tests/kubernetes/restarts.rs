//! Restarts of kubelet and the manager in every order, with pods created and deleted in between.

use aliquot_test_cluster::{Share, World, share};

/// The interruptions of the node's daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    KillManager,
    StartManager,
    KillKubelet,
    StartKubelet,
}

use Step::{KillKubelet, KillManager, StartKubelet, StartManager};

/// Every order of killing and starting both.
const ORDERS: [[Step; 4]; 6] = [
    [KillManager, StartManager, KillKubelet, StartKubelet],
    [KillManager, KillKubelet, StartManager, StartKubelet],
    [KillManager, KillKubelet, StartKubelet, StartManager],
    [KillKubelet, KillManager, StartManager, StartKubelet],
    [KillKubelet, KillManager, StartKubelet, StartManager],
    [KillKubelet, StartKubelet, KillManager, StartManager],
];

impl Step {
    fn take(self, world: &mut World) {
        match self {
            KillManager => world.node.kill(),
            StartManager => world.node.restart(),
            KillKubelet => world.cluster.kill_kubelet(),
            StartKubelet => world.cluster.start_kubelet(),
        }
    }
}

/// Runs a pod through all of `order`, and deletes one pod and creates another after each step.
fn go_through(order: [Step; 4]) {
    let mut world = World::on_paper("dra", 2);
    world.wait_for_driver(2);
    let all: Vec<(String, Share)> = (0..9).map(|index| (format!("pod-{index}"), share(10, 64 + index))).collect();
    for (name, share) in &all {
        world.claim(name, *share);
    }
    // Pods 0 to 4 run before. After each step, one of 1 to 4 is deleted and one of 5 to 8 created.
    for (name, _) in &all[..5] {
        world.pod(name, &[name], &[]);
        world.cluster.wait_for_phase(name, "Running");
    }
    let before = world.slice_of("pod-0").unwrap();
    for (index, step) in order.into_iter().enumerate() {
        step.take(&mut world);
        let (leaving, coming) = (&all[1 + index].0, &all[5 + index].0);
        world.cluster.store().delete(&aliquot_test_cluster::PODS, "default", leaving, false).unwrap();
        world.pod(coming, &[coming], &[]);
    }
    for (name, share) in all[5..].iter().chain(&all[..1]) {
        let pod = world.cluster.wait_for_phase(name, "Running");
        world.assert_identity(&pod, name, *share);
    }
    aliquot_harness::wait::until_true("only what runs has slices", || world.slices().len() == 5);
    let after = world.slice_of("pod-0").unwrap();
    let same = (&after.id, &after.parts) == (&before.id, &before.parts);
    assert!(same, "{order:?}: who ran before has been disturbed: {before:?}, then {after:?}");
    world.assert_no_complaints();
    world.delete_everything();
    world.wait_until_empty();
}

#[test]
fn pods_come_and_go_whatever_is_restarted_first() {
    for order in ORDERS {
        go_through(order);
    }
}

#[test]
fn an_upgrade_of_the_manager_leaves_running_pods_alone() {
    let mut world = World::on_paper("dra", 1);
    world.wait_for_driver(1);
    world.claim("old", share(10, 64));
    world.claim("new", share(20, 128));
    world.pod("old", &["old"], &[]);
    world.cluster.wait_for_phase("old", "Running");
    let before = world.slice_of("old").unwrap();
    world.node.upgrade();
    world.pod("new", &["new"], &[]);
    let pod = world.cluster.wait_for_phase("new", "Running");
    world.assert_identity(&pod, "new", share(20, 128));
    let after = world.slice_of("old").unwrap();
    assert_eq!((after.region_path, after.shim_path), (before.region_path, before.shim_path));
    world.cluster.delete_pod("old");
    world.cluster.delete_pod("new");
    world.wait_until_empty();
}

//! Kubelet and the manager stop, are killed, and restart.

use std::fs;

use aliquot_harness::wait;
use aliquot_test_cluster::World;
use serde_json::Value;

use crate::stage::{
    CORE, create, delete, on_paper, on_paper_without_grace, part, slice_of, wait_for_plugin, wait_for_units, wrong,
};

/// Waits until a pod with this request runs, and fails the test unless its slice equals the request.
#[track_caller]
fn assert_runs(world: &World, name: &str, core: u32, memory_units: u64) {
    let pod = world.cluster.wait_for_phase(name, "Running");
    assert_eq!(wrong(world, &pod, "main", core, memory_units), None);
}

#[test]
fn running_containers_keep_their_slices_whatever_is_restarted() {
    let mut world = on_paper(1);
    create(&world, "before", &part(30, 8));
    assert_runs(&world, "before", 30, 8);
    let before = slice_of(&world, "before", "main").unwrap();
    for (number, restart) in [
        |world: &mut World| {
            world.cluster.kill_kubelet();
            world.cluster.start_kubelet();
        },
        |world: &mut World| {
            world.kill_manager();
            world.node.restart();
        },
        |world: &mut World| {
            world.cluster.kill_kubelet();
            world.node.kill();
            world.cluster.start_kubelet();
            world.node.restart();
        },
        |world: &mut World| {
            world.node.kill();
            world.cluster.kill_kubelet();
            world.node.restart();
            world.cluster.start_kubelet();
        },
        |world: &mut World| {
            world.kill_manager();
            world.node.upgrade();
        },
    ]
    .into_iter()
    .enumerate()
    {
        restart(&mut world);
        // Allocated units are on offer as well: kubelet knows that they are taken.
        wait_for_plugin(&world, 1);
        let name = format!("after-{number}");
        create(&world, &name, &part(10, 2));
        assert_runs(&world, &name, 10, 2);
    }
    wait::until_true("the manager knows whose slice it is", || slice_of(&world, "before", "main").is_some());
    assert_eq!(slice_of(&world, "before", "main").unwrap(), before);
    assert_eq!(world.slices().len(), 6);
    world.assert_no_complaints();
}

#[test]
fn the_next_manager_knows_for_which_pod_a_slice_was_made() {
    let mut world = on_paper(1);
    let uid = create(&world, "pod", &part(30, 8)).metadata.uid.expect("the API server gives it one");
    assert_runs(&world, "pod", 30, 8);
    for _ in 0..2 {
        let checkpoint = fs::read(world.node.state_dir().join("checkpoint.json")).expect("the manager has written it");
        let checkpoint: Value = serde_json::from_slice(&checkpoint).expect("it is JSON");
        assert_eq!(checkpoint["slices"][0]["pod_uid"], uid.as_str(), "{checkpoint}");
        world.kill_manager();
        world.node.restart();
        wait_for_plugin(&world, 1);
    }
}

/// More steps than the handling of one container has.
const MANY: u32 = 200;

#[test]
fn a_container_starts_in_its_slice_although_the_manager_is_killed_at_any_step() {
    let mut world = on_paper_without_grace(1);
    for number in 1.. {
        assert!(number < MANY, "starting a container has no end");
        wait_for_plugin(&world, 1);
        let killer = world.node.kill_at_step(number);
        create(&world, "pod", &part(30, 8));
        let killed = world.until_done_or_killed(killer, "the pod runs", |world| world.is_running("pod"));
        assert_runs(&world, "pod", 30, 8);
        assert_eq!(world.slices().len(), 1, "killed at step {number}");
        delete(&world, ["pod"]);
        wait::until_true("its slice is gone", || world.slices().is_empty());
        if !killed {
            assert!(number > 2, "there were only {number} steps");
            return;
        }
    }
}

#[test]
fn a_container_that_cannot_start_without_the_manager_starts_when_it_is_back() {
    let mut world = on_paper(1);
    world.kill_manager();
    create(&world, "pod", &part(30, 8));
    // Kubelet allocates units only while the plugin answers.
    world.cluster.wait_for_error("pod", "Insufficient aliquot.dev/gpu-");
    world.node.restart();
    assert_runs(&world, "pod", 30, 8);
}

#[test]
fn slices_of_pods_deleted_without_the_manager_are_removed_later() {
    let mut world = on_paper_without_grace(1);
    wait_for_plugin(&world, 1);
    for name in ["goes", "stays"] {
        create(&world, name, &part(30, 8));
        assert_runs(&world, name, 30, 8);
    }
    world.kill_manager();
    delete(&world, ["goes"]);
    world.node.restart();
    wait::until_true("one slice is left", || world.slices().len() == 1);
    wait::until_true("it is the one that is needed", || slice_of(&world, "stays", "main").is_some());
    wait_for_units(&world, CORE, 100);
}

//! The manager is killed at each step of its work for a claim. A step is a system call that changes a file system.

use aliquot_test_cluster::{World, share};

/// More steps than the handling of one claim has.
const MANY: u32 = 200;

#[test]
fn a_claim_is_prepared_although_the_manager_is_killed_at_any_step() {
    let mut world = World::on_paper("dra", 1);
    let wanted = share(30, 256);
    for number in 1.. {
        assert!(number < MANY, "preparing a claim has no end");
        world.wait_for_driver(1);
        world.claim("claim", wanted);
        let killer = world.node.kill_at_step(number);
        world.pod("pod", &["claim"], &[]);
        let killed = world.until_done_or_killed(killer, "the pod runs", |world| world.is_running("pod"));
        let pod = world.cluster.wait_for_phase("pod", "Running");
        world.assert_identity(&pod, "claim", wanted);
        assert_eq!(world.slices().len(), 1, "killed at step {number}");
        world.delete_everything();
        world.wait_until_empty();
        if !killed {
            assert!(number > 3, "there were only {number} steps");
            return;
        }
    }
}

#[test]
fn a_claim_is_given_back_although_the_manager_is_killed_at_any_step() {
    let mut world = World::on_paper("dra", 1);
    for number in 1.. {
        assert!(number < MANY, "giving back a claim has no end");
        world.wait_for_driver(1);
        world.claim("claim", share(30, 256));
        world.pod("pod", &["claim"], &[]);
        world.cluster.wait_for_phase("pod", "Running");
        let killer = world.node.kill_at_step(number);
        world.cluster.store().delete(&aliquot_test_cluster::PODS, "default", "pod", false).unwrap();
        let is_gone = |world: &World| world.cluster.pod("pod").is_none();
        let killed = world.until_done_or_killed(killer, "the pod is gone", is_gone);
        world.delete_everything();
        world.wait_until_empty();
        if !killed {
            assert!(number > 2, "there were only {number} steps");
            return;
        }
    }
}

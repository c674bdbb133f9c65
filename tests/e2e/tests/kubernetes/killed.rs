//! The manager killed at each step of what it does for a claim. A step is a system call that changes a file system.

use std::process::Command;

use aliquot_harness::{Process, tool, wait};

use aliquot_test_kubelet::{World, share};

/// Whatever a change of the node is made of.
const STEPS: &str =
    "mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,fsync,fdatasync,ftruncate,fallocate,link,symlink";

/// More steps than anything has that is done for one claim.
const MANY: u32 = 200;

/// Kills the manager when one of its threads is about to take step number `number`, counted for each thread and call.
fn kill_at(world: &World, number: u32) -> Process {
    let inject = format!("inject={STEPS}:signal=KILL:when={number}");
    let mut command = Command::new(tool("strace", "strace"));
    command.args(["-f", "-o", "/dev/null", "-e", &inject, "-p", &world.node.manager_id().to_string()]);
    let strace = Process::start(&mut command);
    wait::until_true("strace has attached", || strace.errors().contains("attached"));
    strace
}

fn is_dead(strace: &mut Process) -> bool {
    strace.has_ended()
}

#[test]
fn a_claim_is_prepared_although_the_manager_is_killed_at_any_step() {
    let mut world = World::on_paper("dra", 1);
    let wanted = share(30, 256);
    for number in 1.. {
        assert!(number < MANY, "preparing a claim has no end");
        world.wait_for_driver(1);
        world.claim("claim", wanted);
        let mut strace = kill_at(&world, number);
        world.pod("pod", &["claim"], &[]);
        let killed = wait::until("the pod runs or the manager is dead", || {
            let runs = world.cluster.pod("pod")?.status?.phase? == "Running";
            if is_dead(&mut strace) { Some(true) } else { runs.then_some(false) }
        });
        drop(strace);
        if killed {
            world.node.kill();
            world.node.restart();
        }
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
        let mut strace = kill_at(&world, number);
        world.cluster.store().delete(&aliquot_test_kubelet::PODS, "default", "pod", false).unwrap();
        let killed = wait::until("the pod is gone or the manager is dead", || {
            if is_dead(&mut strace) { Some(true) } else { world.cluster.pod("pod").is_none().then_some(false) }
        });
        drop(strace);
        if killed {
            world.node.kill();
            world.node.restart();
        }
        world.delete_everything();
        world.wait_until_empty();
        if !killed {
            assert!(number > 2, "there were only {number} steps");
            return;
        }
    }
}

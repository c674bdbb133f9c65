//! Gangs of which some pods have succeeded when others are made anew.

use serde_json::{Value, json};

use super::{made_by, of_gang};
use crate::gang::GangKind;
use crate::mirror::tests::World;

const BEGUN: &str = "2026-01-01T10:00:00Z";
const ENDED: &str = "2026-01-01T10:10:00Z";
const AGAIN: &str = "2026-01-01T10:21:00Z";

/// A pod of a JobSet with two Jobs.
fn of_set(job: &str, restarts: &str, created: &str) -> Value {
    let labels = json!({
        "jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/jobset-uid": "u",
        "jobset.sigs.k8s.io/restart-attempt": restarts,
    });
    made_by(job, created, json!({"metadata": {"labels": labels}}))
}

/// One Job of the JobSet has succeeded, and the other one is at work.
fn half_finished() -> World {
    let mut world = World::new();
    world.node("n", 2);
    let job = json!({"name": "w", "replicas": 2, "template": {}});
    world.gang(GangKind::JobSet, "s", json!({"replicatedJobs": [job]}));
    world.pod("a", 100, of_set("job0", "0", BEGUN));
    world.pod("b", 100, of_set("job1", "0", BEGUN));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a", "b"]);
    world.end("a", "Succeeded", Some(ENDED));
    world.reconcile();
    world
}

#[test]
fn the_rest_of_a_half_finished_job_set_starts_again() {
    // The first Job's pod may be gone, and there may be a new leader.
    for (is_gone, is_led_anew) in [(false, false), (true, false), (false, true)] {
        let mut world = half_finished();
        if is_gone {
            world.delete("a");
        }
        world.delete("b");
        world.reconcile();
        if is_led_anew {
            world.change_leader();
        }
        world.pod("b2", 100, of_set("job1", "0", AGAIN));
        world.reconcile();
        assert!(world.bound().contains_key("b2"), "{}", world.why_waiting("b2"));
    }
}

#[test]
fn a_job_set_that_restarts_needs_all_its_pods() {
    let mut world = half_finished();
    world.delete("b");
    // It ends well at last, after the restart.
    world.end("a", "Succeeded", Some(AGAIN));
    world.pod("b2", 100, of_set("new1", "1", AGAIN));
    world.reconcile();
    assert!(!world.bound().contains_key("b2"), "{:?}", world.log);
    world.delete("a");
    world.pod("a2", 100, of_set("new0", "1", AGAIN));
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["a2", "b2"]);
}

#[test]
fn nothing_is_kept_of_a_job_set_that_is_gone() {
    for is_set_gone_first in [false, true] {
        let mut world = half_finished();
        if is_set_gone_first {
            world.mirror.gang_gone(GangKind::JobSet, "default", "s");
        }
        ["a", "b"].into_iter().for_each(|name| world.delete(name));
        world.reconcile();
        if !is_set_gone_first {
            world.mirror.gang_gone(GangKind::JobSet, "default", "s");
        }
        let (_, set) = world.gangs.pop_first().unwrap();
        world.gang(GangKind::JobSet, "s", set["spec"].clone());
        world.pod("b2", 100, of_set("job1", "0", AGAIN));
        world.reconcile();
        assert!(world.bound().is_empty(), "{:?}", world.log);
    }
}

#[test]
fn the_rest_of_a_half_finished_group_of_kueue_starts_again() {
    let mut world = World::new();
    world.node("n", 2);
    let pod = |created: &str| {
        json!({"metadata": {
            "labels": {"kueue.x-k8s.io/pod-group-name": "g"}, "creationTimestamp": created,
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"},
        }})
    };
    ["a", "b"].iter().for_each(|name| world.pod(name, 100, pod(BEGUN)));
    world.reconcile();
    world.end("a", "Succeeded", Some(ENDED));
    world.delete("b");
    world.reconcile();
    world.change_leader();
    world.pod("b2", 100, pod(AGAIN));
    world.reconcile();
    assert!(world.bound().contains_key("b2"), "{}", world.why_waiting("b2"));
}

#[test]
fn the_rest_of_a_half_finished_gang_of_two_jobs_starts_again() {
    let mut world = World::new();
    world.node("n", 3);
    world.pod("a", 100, made_by("job0", BEGUN, of_gang("g", 2)));
    world.pod("b", 100, made_by("job1", BEGUN, of_gang("g", 2)));
    world.reconcile();
    world.end("a", "Succeeded", Some(ENDED));
    world.delete("b");
    world.reconcile();
    world.pod("b2", 100, made_by("job1", AGAIN, of_gang("g", 2)));
    world.reconcile();
    assert!(world.bound().contains_key("b2"), "{}", world.why_waiting("b2"));
    // A Job of a later run needs a partner of its own.
    world.end("b2", "Succeeded", Some(AGAIN));
    world.pod("c", 100, made_by("job2", "2026-01-01T11:00:00Z", of_gang("g", 2)));
    world.reconcile();
    assert!(!world.bound().contains_key("c"), "{:?}", world.log);
}

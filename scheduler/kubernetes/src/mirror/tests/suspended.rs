//! Workloads that are suspended instead of their pods being evicted one by one.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Access, World, Write};
use crate::workload::{Workload, WorkloadKind};

/// Three pods of a Job, each with half a GPU. `more` is merged into them.
fn job(world: &mut World, name: &str, more: Value) {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": name, "controller": true});
    let annotations = json!({"aliquot.dev/gang": name, "aliquot.dev/gang-size": "3"});
    let mut pod =
        json!({"metadata": {"annotations": annotations, "ownerReferences": [owner]}, "spec": {"priority": 0}});
    json_patch::merge(&mut pod, &more);
    (0..3).for_each(|member| world.pod(&format!("{name}-{member}"), 50, pod.clone()));
}

/// A world with two GPUs, of which a Job holds three halves.
fn with_job(more: Value) -> World {
    let mut world = World::new();
    world.node("n", 2);
    job(&mut world, "j", more);
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["j-0", "j-1", "j-2"], "{:#?}", world.log);
    world.log.clear();
    world
}

fn urgent(world: &mut World) {
    world.pod("u-0", 100, json!({"spec": {"priority": 90}}));
    world.pod("u-1", 100, json!({"spec": {"priority": 90}}));
}

fn evicted(world: &World) -> Vec<&String> {
    world.log.iter().filter(|line| line.ends_with("evicted")).collect()
}

fn has(world: &World, line: &str) -> bool {
    world.log.iter().any(|of| of == line)
}

#[test]
fn a_job_that_loses_all_its_pods_is_suspended_and_resumed() {
    let mut world = with_job(json!({}));
    urgent(&mut world);
    world.reconcile();
    assert!(evicted(&world).is_empty() && has(&world, "jobs.batch/j suspended"), "{:#?}", world.log);
    assert!(has(&world, "jobs.batch/j resumed"), "{:#?}", world.log);
    assert_eq!(world.names_of_bound(), ["u-0", "u-1"]);
    let why = world.why_waiting("j-0");
    assert!(why.contains("0 of 3 members that must be placed together find room"), "{why}");
    // It has its turn again, as a gang.
    world.delete("u-0");
    world.delete("u-1");
    world.reconcile();
    assert_eq!(world.names_of_bound(), ["j-0", "j-1", "j-2"]);
}

#[test]
fn a_job_stays_suspended_until_its_last_pod_is_gone() {
    let mut world = with_job(json!({}));
    world.ending = Some(BTreeSet::new());
    urgent(&mut world);
    world.reconcile();
    for name in ["j-0", "j-1"] {
        world.replace(name);
    }
    world.reconcile();
    assert!(has(&world, "jobs.batch/j suspended") && !has(&world, "jobs.batch/j resumed"), "{:#?}", world.log);
    world.replace("j-2");
    world.reconcile();
    assert!(has(&world, "jobs.batch/j resumed"), "{:#?}", world.log);
    assert_eq!(world.names_of_bound(), ["u-0", "u-1"]);
}

#[test]
fn the_next_leader_resumes_what_the_last_one_has_suspended() {
    let mut world = with_job(json!({}));
    world.ending = Some(BTreeSet::new());
    urgent(&mut world);
    world.reconcile();
    world.change_leader();
    world.reconcile();
    assert!(!has(&world, "jobs.batch/j resumed"), "{:#?}", world.log);
    for name in ["j-0", "j-1", "j-2"] {
        world.replace(name);
    }
    world.change_leader();
    world.reconcile();
    assert!(has(&world, "jobs.batch/j resumed"), "{:#?}", world.log);
}

#[test]
fn a_job_that_is_stuck_is_resumed_after_an_hour() {
    let mut world = with_job(json!({}));
    world.ending = Some(BTreeSet::new());
    urgent(&mut world);
    world.reconcile();
    assert!(!has(&world, "jobs.batch/j resumed"));
    world.now_ms += 3_600_000;
    world.reconcile();
    assert!(has(&world, "jobs.batch/j resumed"), "{:#?}", world.log);
}

#[test]
fn pods_are_evicted_where_the_workload_must_not_be_suspended() {
    let of_kueue = json!({"metadata": {"labels": {"kueue.x-k8s.io/podset": "main"}}});
    for (what, more) in
        [("pods of Kueue", of_kueue), ("a budget", json!({"metadata": {"labels": {"protected": "true"}}}))]
    {
        let mut world = with_job(more);
        urgent(&mut world);
        world.reconcile();
        assert!(!has(&world, "jobs.batch/j suspended"), "{what}: {:#?}", world.log);
        assert_eq!(evicted(&world).len(), if what == "a budget" { 0 } else { 3 }, "{what}: {:#?}", world.log);
    }
    let mut world = with_job(json!({}));
    world.mirror.suspendables_are(WorkloadKind::Job, Access::Forbidden);
    urgent(&mut world);
    world.reconcile();
    assert_eq!(evicted(&world).len(), 3, "{:#?}", world.log);
}

#[test]
fn a_workload_that_keeps_a_pod_is_not_suspended() {
    // The gang needs two of its three pods.
    let mut world = with_job(json!({"metadata": {"annotations": {"aliquot.dev/gang-size": "2"}}}));
    world.pod("u-0", 100, json!({"spec": {"priority": 90}}));
    world.reconcile();
    assert_eq!(evicted(&world).len(), 1, "{:#?}", world.log);
    // A pod of the workload belongs to another scheduler, and runs on.
    let mut world = with_job(json!({}));
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true});
    let spec = json!({"schedulerName": "other", "nodeName": "n"});
    world.pod("launcher", 0, json!({"metadata": {"ownerReferences": [owner]}, "spec": spec}));
    urgent(&mut world);
    world.reconcile();
    assert_eq!(evicted(&world).len(), 3, "{:#?}", world.log);
}

#[test]
fn a_job_of_which_only_some_pods_have_a_place_is_suspended() {
    let mut world = World::new();
    world.node("n", 1);
    job(&mut world, "j", json!({"metadata": {"annotations": null}}));
    world.reconcile();
    assert_eq!(world.names_of_bound().len(), 2, "{:#?}", world.log);
    world.pod("u", 100, json!({"spec": {"priority": 90}}));
    world.reconcile();
    assert!(evicted(&world).is_empty() && has(&world, "jobs.batch/j suspended"), "{:#?}", world.log);
    assert_eq!(world.names_of_bound(), ["u"]);
}

#[test]
fn a_suspension_takes_no_pod_that_has_got_a_place_since() {
    let mut world = with_job(json!({}));
    urgent(&mut world);
    world.wait_for_writes();
    let suspension = world.writes.iter().find_map(|write| match write {
        Write::Suspend(suspension) => Some(suspension.clone()),
        _ => None,
    });
    let suspension = suspension.unwrap();
    assert!(world.mirror.is_whole(&suspension));
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": true});
    let more = |node: Value| json!({"metadata": {"ownerReferences": [owner]}, "spec": {"nodeName": node}});
    world.pod("waits", 0, more(Value::Null));
    assert!(world.mirror.is_whole(&suspension));
    world.pod("runs", 0, more("n".into()));
    assert!(!world.mirror.is_whole(&suspension));
}

#[test]
fn pods_that_stay_after_a_suspension_are_evicted_a_while_later() {
    for (age_ms, count) in [(0, 0), (40_000, 0), (60_000, 3)] {
        let mut world = with_job(json!({}));
        // The controller has not yet seen that an earlier leader has suspended it, or does not heed it.
        let suspended = super::Suspended {
            uid: "j".into(),
            namespace: "default".into(),
            workload: Workload { kind: WorkloadKind::Job, name: "j".into() },
            pods_of: Workload { kind: WorkloadKind::Job, name: "j".into() },
            since_ms: world.now_ms - age_ms,
        };
        world.mirror.suspended(suspended);
        urgent(&mut world);
        world.reconcile();
        assert_eq!(evicted(&world).len(), count, "{age_ms}: {:#?}", world.log);
        world.now_ms += 60_000;
        world.reconcile();
        assert_eq!(evicted(&world).len(), 3, "{age_ms}: {:#?}", world.log);
    }
}

//! Lost answers, outages and leaders that die.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use aliquot_kubernetes_scheduler::ServeError;
use aliquot_test_api_server::{Fault, LEASES, PODS, VOLUME_CLAIMS, VOLUMES};
use serde_json::json;

use crate::kit::{Cluster, Scheduler};

/// A leader that does not renew its lease leads for so long.
const LEASE: Duration = Duration::from_secs(10);

/// The first bindings meet this fault.
fn first_bindings(cluster: &Cluster, number: usize, fault: Fault) -> Arc<AtomicUsize> {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    cluster.server().set_fault(move |_, path| match path.ends_with("/binding") {
        true if counted.fetch_add(1, Ordering::SeqCst) < number => fault,
        _ => Fault::None,
    });
    seen
}

#[test]
fn a_binding_whose_answer_is_lost_is_found_again() {
    let mut cluster = Cluster::with_faults();
    cluster.node("n", 1);
    let bindings = first_bindings(&cluster, 2, Fault::AnswerLost);
    let _scheduler = cluster.scheduler();
    for name in ["a", "b", "c"] {
        cluster.pod(name, 50, json!({}));
    }
    cluster.wait_until("the third pod waits", |cluster| {
        cluster.bound().len() == 2 && ["a", "b", "c"].iter().any(|name| cluster.why_waiting(name).is_some())
    });
    assert_eq!(bindings.load(Ordering::SeqCst), 2, "each pod is bound once");
}

#[test]
fn a_binding_that_did_not_happen_is_made_again() {
    let mut cluster = Cluster::with_faults();
    cluster.node("n", 1);
    first_bindings(&cluster, 2, Fault::Refused);
    let _scheduler = cluster.scheduler();
    cluster.pod("a", 50, json!({}));
    cluster.pod("b", 50, json!({}));
    cluster.wait_until_bound(&["a", "b"]);
}

#[test]
fn another_replica_goes_on_when_the_leader_dies() {
    let mut cluster = Cluster::start();
    cluster.node("n", 2);
    let leader = cluster.scheduler();
    for name in ["a", "b", "c"] {
        cluster.pod(name, 50, json!({}));
    }
    cluster.wait_until_bound(&["a", "b", "c"]);
    let uid = |cluster: &Cluster| cluster.get("a")["metadata"]["uid"].clone();
    let before = uid(&cluster);
    leader.kill();
    let _next = cluster.scheduler();
    cluster.pod("d", 50, json!({}));
    cluster.pod("e", 50, json!({}));
    cluster.wait_until("one of them waits", |cluster| {
        let waits = cluster.why_waiting("d").or_else(|| cluster.why_waiting("e"));
        cluster.bound().len() == 4 && waits.is_some()
    });
    assert_eq!(cluster.bound().len(), 4);
    assert_eq!(uid(&cluster), before, "nothing was evicted");
    let lease = cluster.objects.get(&LEASES, "aliquot-system", "aliquot-scheduler");
    assert_eq!(lease["spec"]["holderIdentity"], cluster.identity(2));
    assert!(lease["spec"]["leaseTransitions"].as_i64() > Some(1), "{lease}");
}

#[test]
fn a_leader_that_stops_gives_its_lease_back() {
    // It has two seconds for that, which may not do on a slow machine.
    assert!((0..5).any(|_| gives_its_lease_back()), "the lease was never given back");
}

fn gives_its_lease_back() -> bool {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let leader = cluster.scheduler();
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
    leader.stop();
    let lease = cluster.objects.get(&LEASES, "aliquot-system", "aliquot-scheduler");
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().is_empty()
}

#[test]
fn one_of_two_replicas_leads() {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let first = cluster.scheduler();
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
    let _second = cluster.scheduler();
    cluster.pod("b", 50, json!({}));
    cluster.wait_until_bound(&["a", "b"]);
    first.stop();
    cluster.objects.delete(&PODS, "default", "a");
    cluster.pod("c", 50, json!({}));
    cluster.wait_until_bound(&["b", "c"]);
}

#[test]
fn a_replica_that_finds_no_lease_lets_its_holder_lead_on() {
    // On a slow machine the lease of the holder can be over.
    assert!((0..5).any(|_| lets_the_holder_lead_on()), "the holder never led on");
}

/// Checks it, or returns `false` if the holder's lease can have been over.
fn lets_the_holder_lead_on() -> bool {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let first = cluster.scheduler();
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
    let leads = |of: &Scheduler| of.metric("leader") == Some(1.0);
    let is_noted = |cluster: &Cluster| {
        cluster.objects.list(&LEASES).iter().any(|lease| lease["metadata"]["name"] == "aliquot-scheduler-has-led")
    };
    cluster.wait_until("it is noted that a replica has led", is_noted);
    let deleted = Instant::now();
    cluster.objects.delete(&LEASES, "aliquot-system", "aliquot-scheduler");
    // Just before the holder finds out.
    let second = cluster.scheduler();
    let second_leads = || {
        let leads = leads(&second);
        assert!(!leads || deleted.elapsed() >= LEASE, "it leads, too");
        leads
    };
    cluster.wait_until("the lease is made again", |cluster| {
        second_leads() || cluster.holder() == Some(cluster.identity(1))
    });
    cluster.pod("b", 50, json!({}));
    cluster.wait_until_bound(&["a", "b"]);
    !second_leads() && leads(&first)
}

#[test]
fn a_leader_without_an_api_server_ends() {
    let (cluster, mut scheduler) = Cluster::with_one_gpu_and_faults();
    cluster.pod("a", 50, json!({}));
    cluster.wait_until_bound(&["a"]);
    cluster.server().set_out(true);
    assert!(matches!(scheduler.end(), Err(ServeError::LeaseLost(_))));
}

#[test]
fn what_changes_while_watches_are_broken_is_seen() {
    let (cluster, _scheduler) = Cluster::with_one_gpu_and_faults();
    cluster.pod("a", 60, json!({}));
    cluster.wait_until_bound(&["a"]);
    cluster.pod("b", 60, json!({}));
    cluster.wait_until("b waits", |cluster| cluster.why_waiting("b").is_some());
    cluster.server().set_fault(|method, _| if method == "GET" { Fault::Refused } else { Fault::None });
    cluster.server().compact();
    cluster.objects.delete(&PODS, "default", "a");
    cluster.server().compact();
    cluster.server().set_fault(|_, _| Fault::None);
    cluster.wait_until_bound(&["b"]);
}

#[test]
fn two_leaders_at_once_bind_a_pod_once() {
    // On a slow machine the lease of the first one can be over too early.
    assert!((0..10).any(|_| is_bound_once_by_two_leaders()), "two never led at once");
}

/// Checks it, or returns `false` if two did not lead at once.
fn is_bound_once_by_two_leaders() -> bool {
    let mut cluster = Cluster::with_faults();
    cluster.node("n", 1);
    cluster.claim_for_node("data");
    let first = cluster.scheduler();
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    cluster.pod("a", 50, json!({"spec": {"volumes": volumes}}));
    let lead = |of: &Scheduler| of.metric("leader") == Some(1.0);
    let binds = |of: &Scheduler| of.metric("pods{state=\"binding\"}") == Some(1.0);
    cluster.wait_until("the first one waits for the volume", |_| binds(&first));
    // The first one is not answered when it wants to renew its lease, and goes on until the end of it. Then somebody
    // empties the lease.
    let (holds, looks, bindings) = (Arc::new(AtomicBool::new(true)), Arc::default(), Arc::new(AtomicUsize::new(0)));
    let (is_held, seen, tries): (_, Arc<AtomicUsize>, _) =
        (Arc::clone(&holds), Arc::clone(&looks), Arc::clone(&bindings));
    cluster.server().set_fault(move |method, path| {
        tries.fetch_add(path.ends_with("/binding").into(), Ordering::SeqCst);
        if method == "GET" && path.contains("/leases/") && is_held.load(Ordering::SeqCst) {
            seen.fetch_add(1, Ordering::SeqCst);
            return Fault::AnswerHeld;
        }
        Fault::None
    });
    // The server looks at a request, and again before it holds the answer.
    cluster.wait_until("the answer is held", |_| looks.load(Ordering::SeqCst) >= 2);
    holds.store(false, Ordering::SeqCst);
    let nobody = json!({"spec": {"holderIdentity": null}});
    cluster.objects.merge(&LEASES, "aliquot-system", "aliquot-scheduler", &nobody);
    let second = cluster.scheduler();
    cluster.wait_until("both wait for the volume", |_| binds(&second) || !lead(&first));
    if !lead(&first) || !binds(&first) {
        return false;
    }
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/none"},
    }});
    cluster.objects.create(&VOLUMES, "", volume);
    cluster.objects.merge(&VOLUME_CLAIMS, "default", "data", &json!({"spec": {"volumeName": "v"}}));
    let status = json!({"status": {"phase": "Bound"}});
    cluster.objects.merge_status(&VOLUME_CLAIMS, "default", "data", &status);
    cluster.wait_until_bound(&["a"]);
    let generation = |cluster: &Cluster| cluster.get("a")["metadata"]["annotations"]["aliquot.dev/generation"].clone();
    let (bound_by, uid) = (generation(&cluster), cluster.get("a")["metadata"]["uid"].clone());
    cluster.wait_until("the second one leads alone", |_| lead(&second) && !lead(&first));
    cluster.pod("b", 50, json!({}));
    cluster.wait_until_bound(&["a", "b"]);
    assert_eq!((generation(&cluster), &cluster.get("a")["metadata"]["uid"]), (bound_by, &uid), "nobody did it again");
    assert!(bindings.load(Ordering::SeqCst) >= 2);
    true
}

#[test]
fn conditions_are_written_several_at_once() {
    let (cluster, scheduler) = Cluster::with_one_gpu_and_faults();
    cluster.pod("a", 100, json!({}));
    cluster.wait_until_bound(&["a"]);
    let names = ["b", "c", "d", "e"];
    let written = Arc::new(Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&written);
    cluster.server().set_fault(move |method, path| {
        let is_condition = method == "PATCH" && path.contains("/pods/") && path.ends_with("/status");
        if is_condition {
            seen.lock().unwrap().insert(path.to_owned());
        }
        if is_condition { Fault::AnswerHeld } else { Fault::None }
    });
    names.iter().for_each(|name| cluster.pod(name, 60, json!({})));
    cluster.wait_until("no write waits for another", |_| written.lock().unwrap().len() == names.len());
    cluster.server().set_fault(|_, _| Fault::None);
    cluster.wait_until("there are events about all of them", |cluster| {
        names.iter().all(|name| !cluster.events_about(name).is_empty())
    });
    assert_eq!(scheduler.metric("failed_writes_total{write=\"condition\"}"), Some(0.0), "no answer came too late");
}

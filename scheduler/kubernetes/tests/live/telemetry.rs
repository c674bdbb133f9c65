//! What replicas tell Prometheus and probes.

use std::collections::BTreeSet;

use aliquot_test_api_server::{NODES, QUEUES};
use serde_json::json;

use crate::kit::Cluster;

#[test]
fn metrics_say_who_holds_and_waits_for_what() {
    // A replica that has lost its lease on a slow machine counts from zero again.
    assert!((0..5).any(|_| metrics_are_as_the_cluster_is()), "the replica never kept its lease");
}

fn metrics_are_as_the_cluster_is() -> bool {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    cluster.node("m", 1);
    let queue = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "small"},
        "spec": {"resources": {"gpu": {"quota": 0.5, "limit": 0.75}}},
    });
    cluster.objects.create(&QUEUES, "", queue);
    let scheduler = cluster.scheduler();
    let labels = json!({"metadata": {"labels": {"aliquot.dev/queue": "small"}}});
    cluster.pod("a", 50, labels.clone());
    cluster.wait_until_bound(&["a"]);
    cluster.pod("b", 50, labels);
    let of_nobody = json!({"metadata": {"annotations": {"scheduling.k8s.io/group-name": "nobody"}}});
    cluster.pod("c", 10, of_nobody);
    cluster.wait_until("b says why it waits", |cluster| cluster.why_waiting("b").is_some());
    let of_m = json!({"spec": {"unschedulable": true}});
    cluster.objects.merge(&NODES, "", "m", &of_m);
    let is = |name: &str, value: f64| scheduler.metric(name) == Some(value);
    let is_counted = scheduler.counts(&[
        ("pods{state=\"waiting\"}", 1.0),
        ("pods{state=\"not-supported\"}", 1.0),
        ("nodes{state=\"cordoned\"}", 1.0),
        ("waiting{reason=\"quota\"}", 1.0),
        ("leader", 1.0),
        ("queue_quota_gpus{queue=\"small\"}", 0.5),
        ("queue_limit_gpus{queue=\"small\"}", 0.75),
        ("queue_held_gpus{queue=\"small\"}", 0.5),
        ("queue_pending_gpus{queue=\"small\"}", 0.5),
        ("bindings_total{outcome=\"bound\"}", 1.0),
        ("bindings_total{outcome=\"failed\"}", 0.0),
        ("pods{state=\"bound\"}", 1.0),
        ("nodes{state=\"up\"}", 1.0),
        ("nodes{state=\"silent\"}", 0.0),
        ("devices{model=\"NVIDIA H100\"}", 2.0),
        ("devices_given{model=\"NVIDIA H100\"}", 0.5),
        ("binding_seconds_count", 1.0),
        ("start_wait_seconds_count", 1.0),
    ]);
    if !is_counted {
        return false;
    }
    let is_over_zero = |name: &str| scheduler.metric(name).is_some_and(|value| value > 0.0);
    cluster.wait_until("the engine was asked", |_| {
        ["cycles_total", "leader_term", "decision_seconds_count"].into_iter().all(is_over_zero)
    });
    cluster.objects.merge_status(
        &NODES,
        "",
        "m",
        &json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
    );
    cluster.wait_until("m is silent", |_| is("nodes{state=\"silent\"}", 1.0));
    true
}

#[test]
fn alerts_are_about_metrics_that_there_are() {
    let mut cluster = Cluster::start();
    let scheduler = cluster.scheduler();
    let alerts = include_str!("../../../../deploy/kubernetes/components/monitoring/alerts.yaml");
    let names = alerts.split(|character: char| !character.is_ascii_alphanumeric() && character != '_');
    let names: BTreeSet<&str> = names.filter(|name| name.starts_with("aliquot_scheduler_")).collect();
    assert!(names.len() > 5, "{names:?}");
    cluster.wait_until("a leader shows the metrics of all alerts", |_| {
        let (_, text) = scheduler.ask("/metrics");
        let is_there = |name: &&&str| text.lines().any(|line| line.split(['{', ' ']).next() == Some(**name));
        let missing: Vec<&&str> = names.iter().filter(|name| !is_there(name)).collect();
        if !missing.is_empty() {
            eprintln!("not there yet: {missing:?}");
        }
        missing.is_empty()
    });
}

#[test]
fn queues_say_what_they_hold_and_what_is_wrong() {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let mut queues = vec![
        ("good", json!({"resources": {"gpu": {"quota": 0.5, "limit": -1}}}), "True", "Used"),
        ("orphan", json!({"parentQueue": "nobody"}), "False", "UnknownParent"),
        ("circle", json!({"parentQueue": "circle"}), "False", "Cycle"),
    ];
    // A real API server refuses it by the rules of the kind. Without them, the scheduler says what is wrong.
    if !cluster.objects.is_real() {
        queues.push(("negative", json!({"resources": {"gpu": {"quota": -0.5}}}), "False", "NegativeNumber"));
    }
    for (name, spec, ..) in &queues {
        let (api, kind) = ("aliquot.dev/v1alpha1", "Queue");
        let queue = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec});
        cluster.objects.create(&QUEUES, "", queue);
    }
    let _scheduler = cluster.scheduler();
    cluster.pod("a", 40, json!({"metadata": {"labels": {"aliquot.dev/queue": "good"}}}));
    let status = |cluster: &Cluster, name: &str| cluster.objects.get(&QUEUES, "", name)["status"].clone();
    cluster.wait_until("the queue says what it holds", |cluster| {
        let good = status(cluster, "good");
        good["gpu"]["held"] == 0.4 && good["running"] == 1 && good["waiting"] == 0
    });
    let condition = |cluster: &Cluster, name: &str| {
        let of = status(cluster, name)["conditions"][0].clone();
        let text = |field: &str| of[field].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"))
    };
    for (name, _, is_valid, reason) in queues {
        let expected = (is_valid.to_owned(), reason.to_owned());
        cluster.wait_until(name, |cluster| condition(cluster, name) == expected);
    }
}

#[test]
fn a_leader_and_a_standby_are_ready() {
    let (mut cluster, leader) = Cluster::with_one_gpu();
    cluster.wait_until("the leader leads", |_| leader.metric("leader") == Some(1.0));
    cluster.wait_until("the leader is ready", |_| leader.ask("/readyz").0 == 200);
    let standby = cluster.scheduler();
    cluster.wait_until("the standby is ready", |_| standby.ask("/readyz").0 == 200);
    assert_eq!(standby.ask("/healthz"), (200, "ok\n".to_owned()));
    // On a slow machine the two may have changed places.
    cluster.wait_until("one of the two leads", |_| {
        let leading = [&leader, &standby].map(|replica| replica.metric("leader"));
        leading.contains(&Some(1.0)) && leading.contains(&Some(0.0))
    });
    leader.stop();
    cluster.wait_until("the standby leads", |_| standby.metric("leader") == Some(1.0));
    cluster.wait_until("it is ready as a leader", |_| standby.ask("/readyz").0 == 200);
}

#[test]
fn a_replica_without_an_api_server_is_healthy_and_not_ready() {
    let (cluster, scheduler) = Cluster::with_one_gpu_and_faults();
    cluster.wait_until("the replica is ready", |_| scheduler.ask("/readyz").0 == 200);
    cluster.server().set_out(true);
    cluster.wait_until("the replica is not ready, and says why", |_| {
        let (status, text) = scheduler.ask("/readyz");
        status == 503 && text.contains("the API server has not answered")
    });
    assert_eq!(scheduler.ask("/healthz").0, 200);
    cluster.server().set_out(false);
    cluster.wait_until("the replica is ready again", |_| scheduler.ask("/readyz").0 == 200);
}

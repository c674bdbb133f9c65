//! Affinity, anti-affinity and topology spread among pods.

use std::collections::BTreeMap;

use aliquot_test_api_server::{NODES, PODS};
use serde_json::{Value, json};

use crate::kit::{Cluster, Scheduler};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";

/// Nodes named after their zone and number, `a0` say, each with one GPU, and a scheduler.
fn zones(nodes: &[&str]) -> (Cluster, Scheduler) {
    let mut cluster = Cluster::start();
    for name in nodes {
        cluster.node(name, 1);
        let labels = json!({"metadata": {"labels": {(ZONE): name[..1], (HOST): name}}});
        cluster.objects.merge(&NODES, "", name, &labels);
    }
    let scheduler = cluster.scheduler();
    (cluster, scheduler)
}

fn required(of: &str, key: &str, app: &str) -> Value {
    let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
    json!({"affinity": {(of): {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
}

fn pod(cluster: &Cluster, name: &str, app: &str, spec: &Value) {
    cluster.pod(name, 20, json!({"metadata": {"labels": {"app": app}}, "spec": spec}));
}

/// Waits until the reason why a pod waits contains this.
fn wait_for_reason(cluster: &Cluster, name: &str, part: &str) {
    cluster.wait_until(&format!("{name} says {part}"), |cluster| {
        cluster.why_waiting(name).is_some_and(|(_, message)| message.contains(part))
    });
}

#[test]
fn one_pod_of_an_app_runs_on_each_host() {
    let (cluster, _scheduler) = zones(&["a0", "a1", "b0"]);
    // Bound by another scheduler.
    pod(
        &cluster,
        "other",
        "web",
        &json!({"schedulerName": "default-scheduler", "nodeName": "a0", "containers": [
            {"name": "main", "image": "none"},
        ]}),
    );
    let alone = required("podAntiAffinity", HOST, "web");
    for name in ["w1", "w2"] {
        pod(&cluster, name, "web", &alone);
    }
    cluster.wait_until_bound(&["other", "w1", "w2"]);
    let bound = cluster.bound();
    assert!(bound["w1"] != bound["w2"] && bound["w1"] != "a0" && bound["w2"] != "a0", "{bound:?}");
    pod(&cluster, "w3", "web", &alone);
    wait_for_reason(&cluster, "w3", "anti-affinity avoids: pods with app in (web) of namespace default");
    // More nodes would help.
    assert_eq!(cluster.why_waiting("w3").unwrap().0, "Unschedulable");
    cluster.objects.delete(&PODS, "default", "other");
    cluster.wait_until_bound(&["w1", "w2", "w3"]);
    assert_eq!(cluster.bound()["w3"], "a0");
}

#[test]
fn pods_are_spread_over_zones_by_one() {
    let (cluster, _scheduler) = zones(&["a0", "b0"]);
    // Zone b is full.
    cluster.pod("full", 100, json!({"spec": {"nodeSelector": {(ZONE): "b"}}}));
    cluster.wait_until_bound(&["full"]);
    let constraint = json!({
        "maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    });
    let spread = json!({"topologySpreadConstraints": [constraint]});
    pod(&cluster, "w1", "web", &spread);
    cluster.wait_until_bound(&["full", "w1"]);
    pod(&cluster, "w2", "web", &spread);
    wait_for_reason(&cluster, "w2", "topology.kubernetes.io/zone=a, which has 1 of those to be spread");
    cluster.objects.delete(&PODS, "default", "full");
    cluster.wait_until_bound(&["w1", "w2"]);
    for name in ["w3", "w4"] {
        pod(&cluster, name, "web", &spread);
    }
    cluster.wait_until_bound(&["w1", "w2", "w3", "w4"]);
    let mut zones: BTreeMap<String, usize> = BTreeMap::new();
    cluster.bound().values().for_each(|node| *zones.entry(node[..1].to_owned()).or_default() += 1);
    assert_eq!(zones, BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 2)]));
}

#[test]
fn workers_wait_for_their_leader_and_follow_it() {
    let (cluster, _scheduler) = zones(&["a0", "b0", "b1"]);
    let near = required("podAffinity", ZONE, "leader");
    for name in ["w1", "w2"] {
        pod(&cluster, name, "worker", &near);
    }
    wait_for_reason(&cluster, "w1", "affinity asks for: pods with app in (leader) of namespace default");
    pod(&cluster, "leader", "leader", &json!({"nodeSelector": {(HOST): "b1"}}));
    cluster.wait_until_bound(&["leader", "w1", "w2"]);
    assert!(cluster.bound().values().all(|node| node.starts_with('b')), "{:?}", cluster.bound());
}

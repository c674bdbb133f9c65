//! What a leader goes on with that it cannot know from other objects.

use std::time::{SystemTime, UNIX_EPOCH};

use aliquot_test_api_server::{CONFIG_MAPS, QUEUES};
use serde_json::{Value, json};

use crate::kit::{Cluster, Scheduler};

const NAMESPACE: &str = "aliquot-system";
const NAME: &str = "aliquot-scheduler-memory";

/// A cluster with a queue that has had 40 % of all GPU time, as this text says it.
fn cluster_with_memory(memory: &str) -> Cluster {
    let cluster = Cluster::with_faults();
    cluster.node("n", 2);
    let spec = json!({"resources": {"gpu": {"quota": 1, "limit": 2}}});
    let queue =
        json!({"apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "team"}, "spec": spec});
    cluster.objects.create(&QUEUES, "", queue);
    let config_map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {"format": "5", "memory": memory},
    });
    cluster.objects.create(&CONFIG_MAPS, NAMESPACE, config_map);
    cluster
}

/// A memory of 40 % of all GPU time, so much that what comes during the test makes no difference.
fn memory() -> String {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let usage =
        |integral: &str| json!({"until_ms": now_ms, "integrals": [{"resource": "device_core", "integral": integral}]});
    let (used, there_was) = (usage("400000000000000"), usage("1000000000000000"));
    json!({"capacity": there_was, "usage": [{"queue": "team", "usage": used}]}).to_string()
}

/// The memory that is stored now, if it can be read.
fn stored(cluster: &Cluster) -> Option<Value> {
    let config_map = cluster.objects.list(&CONFIG_MAPS).into_iter().find(|of| of["metadata"]["name"] == NAME)?;
    serde_json::from_str(config_map["data"]["memory"].as_str()?).ok()
}

/// What the queue has had, as a part of all GPU time.
fn past_usage(scheduler: &Scheduler) -> Option<f64> {
    scheduler.metric("queue_past_usage_ratio{queue=\"team\"}")
}

#[test]
fn each_leader_knows_what_queues_have_used_before_it() {
    let mut cluster = cluster_with_memory(&memory());
    for _ in 0..2 {
        let scheduler = cluster.scheduler();
        cluster.wait_until("the leader knows what was used", |_| {
            past_usage(&scheduler).is_some_and(|ratio| (0.399..=0.4).contains(&ratio))
        });
        // It has written that for the next leader, with the queue that no memory has named so far.
        cluster.wait_until("the leader has written the memory", |cluster| {
            stored(cluster).is_some_and(|memory| memory["usage"].as_array().is_some_and(|usage| usage.len() > 1))
        });
        scheduler.stop();
    }
}

#[test]
fn a_memory_that_cannot_be_read_is_replaced() {
    for spoilt in ["{", r#"{"capacity": 7}"#] {
        let mut cluster = cluster_with_memory(spoilt);
        let scheduler = cluster.scheduler();
        cluster.wait_until("the leader knows of no use", |_| past_usage(&scheduler) == Some(0.0));
        cluster.wait_until("the memory is replaced", |cluster| {
            stored(cluster).is_some_and(|memory| memory["usage"].is_array())
        });
        scheduler.stop();
    }
}

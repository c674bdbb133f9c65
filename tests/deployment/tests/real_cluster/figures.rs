//! How long things take.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use aliquot_harness::{tool, wait};
use serde_json::{Value, json};

use super::Tests;
use super::objects::pod_with;

/// Pods of each kind that are started one after the other.
const PODS: usize = 20;

impl Tests<'_> {
    /// Pods without and with a claim take turns, so that both find the machine in the same state. Now and then the API
    /// server's node authorizer does not know the pod yet when kubelet asks for its claim; kubelet asks again at its
    /// next look.
    pub(crate) fn how_long_pods_take_to_start(&self) {
        let starts = Starts::of(self.namespace.name());
        let sleep = ["/bin/sh", "-c", "sleep 1000"].map(String::from);
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for number in 0..PODS {
            let plain = format!("plain-{number}");
            self.namespace.apply(&[pod_with(&plain, self.image, &sleep, &json!({}))]);
            without.push(starts.wait_for(&plain));
            self.namespace.delete("pod", &plain);
            let claims = format!("claims-{number}");
            self.namespace.apply(&self.asks(&claims, &sleep, 5, 64));
            with.push(starts.wait_for(&claims));
            self.remove(&claims);
        }
        println!("scheduled to running, without a claim: {}", quantiles(without));
        println!("scheduled to running, with a claim: {}", quantiles(with));
    }

    /// Prints the figures in the managers' logs and in kubelet's metrics since their start.
    pub(crate) fn how_long_claims_take_to_be_prepared(&self) {
        let took = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            Some(Duration::from_micros(line["fields"]["took_us"].as_u64()?))
        };
        let took = self.manager.logs().lines().filter_map(took).collect();
        println!("claims prepared, as the manager sees it: {}", quantiles(took));
        for node in self.cluster.list("nodes", None) {
            let name = node["metadata"]["name"].as_str().unwrap_or_default();
            let metrics = self.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{name}/proxy/metrics")], "");
            let of_claims = |line: &&str| line.starts_with("dra_") && line.contains("Prepare");
            let told =
                |line: &&str| line.contains("_sum{") || line.contains("_count{") || line.contains(r#"le="0.1"}"#);
            metrics.lines().filter(of_claims).filter(told).for_each(|line| println!("{name}: {line}"));
        }
    }
}

/// When pods of a namespace were seen scheduled, and running.
struct Starts {
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    watch: Child,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    scheduled: Option<Instant>,
    running: Option<Instant>,
}

impl Starts {
    fn of(namespace: &str) -> Starts {
        let template = r#"--output=jsonpath={.metadata.name}|{.spec.nodeName}|{.status.phase}{"\n"}"#;
        let mut kubectl = Command::new(tool("kubectl", "kubernetes-client"));
        kubectl.args(["get", "pods", "--watch", template, "--namespace", namespace]).stdout(Stdio::piped());
        let mut watch = kubectl.spawn().expect("kubectl runs");
        let lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
        let seen: Arc<Mutex<BTreeMap<String, Seen>>> = Arc::default();
        let told = Arc::clone(&seen);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let now = Instant::now();
                let [name, node, phase] = line.split('|').collect::<Vec<_>>()[..] else { continue };
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                let pod = told.entry(name.to_owned()).or_default();
                if !node.is_empty() {
                    pod.scheduled.get_or_insert(now);
                }
                if phase == "Running" {
                    pod.running.get_or_insert(now);
                }
            }
        });
        Starts { seen, watch }
    }

    /// Waits until the pod runs. Returns how long after it was scheduled.
    fn wait_for(&self, pod: &str) -> Duration {
        wait::until("the pod runs", || {
            let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(pod).copied()?;
            Some(seen.running?.duration_since(seen.scheduled?))
        })
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}

fn quantiles(mut took: Vec<Duration>) -> String {
    took.sort_unstable();
    let Some(&longest) = took.last() else { return "none".into() };
    let quantile = |percent: usize| took.get(took.len() * percent / 100).copied().unwrap_or(longest);
    format!("{} times, p50 {:?}, p90 {:?}, p99 {:?}", took.len(), quantile(50), quantile(90), quantile(99))
}

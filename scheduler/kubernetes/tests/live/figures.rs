//! How many pods are scheduled in a second through a real API server: see [`crate::objects`]. What else users and
//! administrators wait for is in [`rows`].
//!
//! Where `ALIQUOT_TEST_PEER` names another scheduler that runs, for example `default-scheduler`, the same number of
//! pods without devices is given to it in the same run, and to Aliquot's.

mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::kit::Cluster;

/// Nodes with 8 GPUs, and pods that come.
const SIZES: [(usize, usize); 3] = [(100, 1000), (1000, 2000), (5000, 2000)];
/// Pods that are created at the same time.
const AT_ONCE: usize = 64;
/// Pods that a scheduler is given before those that are measured.
const FIRST: usize = 500;

#[test]
#[ignore = "a benchmark: see BENCHMARKS.md"]
fn pods_in_a_second_of_a_real_api_server() {
    assert!(std::env::var_os("ALIQUOT_TEST_KUBECONFIG").is_some(), "the project's own says nothing about its speed");
    for (nodes, pods) in SIZES {
        let mut cluster = Cluster::start();
        (0..nodes).for_each(|node| cluster.node(&format!("n{node}"), 8));
        let _scheduler = cluster.scheduler();
        // It has its lease and knows all nodes before anything is measured.
        cluster.pod("first", 10, json!({}));
        cluster.wait_until_bound(&["first"]);
        let (client, runtime) = cluster.objects.client();
        runtime.block_on(remove_pods(&Api::default_namespaced(client.clone())));
        let peer = std::env::var("ALIQUOT_TEST_PEER").ok();
        let runs: Vec<_> = [("aliquot", true), ("aliquot", false)]
            .into_iter()
            .chain(peer.as_deref().map(|peer| (peer, false)))
            .collect();
        // Each scheduler makes its connections before anything is measured.
        for (scheduler, has_devices) in &runs {
            runtime.block_on(run(&client, scheduler, *has_devices, FIRST));
        }
        for (scheduler, has_devices) in runs {
            let what = if has_devices { "parts of GPUs" } else { "no devices" };
            let line = runtime.block_on(run(&client, scheduler, has_devices, pods));
            println!("{nodes} nodes, {pods} pods, {what}, {scheduler}: {line}");
        }
    }
}

/// Gives pods to a scheduler, and waits until all are bound.
async fn run(client: &Client, scheduler: &str, has_devices: bool, number: usize) -> String {
    let pod = |number: usize| {
        let percent = [10, 25, 50, 100][number % 4];
        let limits = if has_devices { json!({"aliquot.dev/gpu-core": percent.to_string()}) } else { json!({}) };
        manifest(&format!("p{number}"), scheduler, &limits)
    };
    let took = create(client, (0..number).map(pod).collect(), is_bound).await;
    remove_pods(&Api::default_namespaced(client.clone())).await;
    took.to_string()
}

fn manifest(name: &str, scheduler: &str, limits: &Value) -> Value {
    let resources = json!({"limits": limits, "requests": {"cpu": "10m"}});
    json!({
        "metadata": {"name": name},
        "spec": {
            "schedulerName": scheduler, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        },
    })
}

fn is_bound(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some())
}

/// How long pods have waited, each since it was created.
struct Took {
    creating: Duration,
    all: Duration,
    /// The shortest first.
    waits: Vec<Duration>,
}

impl Took {
    fn at_share(&self, share: usize) -> u128 {
        self.waits[(self.waits.len() - 1) * share / 100].as_millis()
    }
}

impl Display for Took {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let a_second = |time: Duration| self.waits.len() as f64 / time.as_secs_f64();
        let (done, created) = (a_second(self.all), a_second(self.creating));
        let (median, p99) = (self.at_share(50), self.at_share(99));
        write!(f, "{done:.0} a second ({created:.0} created), since created {median} ms (median), {p99} ms (p99)")
    }
}

/// Creates pods as fast as the API server takes them, and waits until this is so of each.
async fn create(client: &Client, manifests: Vec<Value>, is_so: fn(&Pod) -> bool) -> Took {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let names = manifests.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    let (watches, is_watching) = oneshot::channel();
    let watching = tokio::spawn(seen(pods.clone(), names, is_so, watches));
    is_watching.await.unwrap();
    let began = Instant::now();
    let created: BTreeMap<String, Instant> = stream::iter(manifests)
        .map(|pod| {
            let (pods, pod): (_, Pod) = (&pods, serde_json::from_value(pod).unwrap());
            async move {
                let made = pods.create(&PostParams::default(), &pod).await.unwrap();
                (made.metadata.name.unwrap(), Instant::now())
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let creating = began.elapsed();
    let seen = watching.await.unwrap();
    let all = seen.values().max().unwrap().duration_since(began);
    let mut waits: Vec<Duration> = seen.iter().map(|(name, at)| at.saturating_duration_since(created[name])).collect();
    waits.sort_unstable();
    Took { creating, all, waits }
}

/// Removes all pods, and waits until they are gone.
async fn remove_pods(pods: &Api<Pod>) {
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await.unwrap();
    while !pods.list(&ListParams::default()).await.unwrap().items.is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
}

/// When this was first seen of each of these pods.
async fn seen(
    pods: Api<Pod>,
    names: BTreeSet<String>,
    is_so: fn(&Pod) -> bool,
    watches: oneshot::Sender<()>,
) -> BTreeMap<String, Instant> {
    use kube::runtime::watcher::{Config, Event, watcher};
    let (mut seen, mut watches) = (BTreeMap::new(), Some(watches));
    let mut events = std::pin::pin!(watcher(pods, Config::default()));
    while seen.len() < names.len() {
        match events.next().await.unwrap() {
            Ok(Event::InitDone) => _ = watches.take().map(|watches| watches.send(())),
            Ok(Event::Apply(pod) | Event::InitApply(pod)) if is_so(&pod) => {
                if let Some(name) = pod.metadata.name.filter(|name| names.contains(name)) {
                    seen.entry(name).or_insert_with(Instant::now);
                }
            }
            _ => {}
        }
    }
    seen
}

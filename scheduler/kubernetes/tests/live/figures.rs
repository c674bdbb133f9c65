//! How many pods are scheduled in a second through a real API server: see [`crate::objects`].
//!
//! Where `ALIQUOT_TEST_PEER` names another scheduler that runs, for example `default-scheduler`, the same number of
//! pods without devices is given to it in the same run, and to Aliquot's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::kit::Cluster;

/// Nodes with 8 GPUs, and pods that come.
const SIZES: [(usize, usize); 3] = [(100, 1000), (1000, 2000), (5000, 2000)];
/// Pods that are created at the same time.
const AT_ONCE: usize = 64;

#[test]
#[ignore = "a benchmark: see BENCHMARKS.md"]
fn pods_in_a_second_of_a_real_api_server() {
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
        let runs = [("aliquot", true), ("aliquot", false)].into_iter();
        for (scheduler, has_devices) in runs.chain(peer.as_deref().map(|peer| (peer, false))) {
            let what = if has_devices { "parts of GPUs" } else { "no devices" };
            let line = runtime.block_on(run(&client, scheduler, has_devices, pods));
            println!("{nodes} nodes, {pods} pods, {what}, {scheduler}: {line}");
        }
    }
}

/// Creates pods as fast as the API server takes them, and waits until all are bound.
async fn run(client: &Client, scheduler: &str, has_devices: bool, number: usize) -> String {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let (watches, is_watching) = oneshot::channel();
    let watching = tokio::spawn(bound_times(pods.clone(), number, watches));
    is_watching.await.unwrap();
    let began = Instant::now();
    let created: BTreeMap<String, Instant> = stream::iter(0..number)
        .map(|pod| {
            let (pods, name) = (&pods, format!("p{pod}"));
            let percent = [10, 25, 50, 100][pod % 4];
            let limits = if has_devices { json!({"aliquot.dev/gpu-core": percent.to_string()}) } else { json!({}) };
            let resources = json!({"limits": limits, "requests": {"cpu": "10m"}});
            let pod = json!({
                "metadata": {"name": name},
                "spec": {
                    "schedulerName": scheduler, "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "none", "resources": resources}],
                },
            });
            async move {
                pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
                (name, Instant::now())
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let creating = began.elapsed();
    let bound = watching.await.unwrap();
    let took = bound.values().max().unwrap().duration_since(began);
    let mut waits: Vec<Duration> = bound.iter().map(|(name, at)| at.saturating_duration_since(created[name])).collect();
    waits.sort_unstable();
    let at_share = |share: usize| waits[(waits.len() - 1) * share / 100].as_millis();
    remove_pods(&pods).await;
    let a_second = |time: Duration| number as f64 / time.as_secs_f64();
    format!(
        "{:.0} pods a second bound ({:.0} created), from created to bound {} ms (median), {} ms (p99)",
        a_second(took),
        a_second(creating),
        at_share(50),
        at_share(99)
    )
}

/// Removes all pods, and waits until they are gone.
async fn remove_pods(pods: &Api<Pod>) {
    pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await.unwrap();
    while !pods.list(&ListParams::default()).await.unwrap().items.is_empty() {
        sleep(Duration::from_millis(100)).await;
    }
}

/// When each pod was seen bound.
async fn bound_times(pods: Api<Pod>, number: usize, watches: oneshot::Sender<()>) -> BTreeMap<String, Instant> {
    use kube::runtime::watcher::{Config, Event, watcher};
    let (mut bound, mut watches) = (BTreeMap::new(), Some(watches));
    let mut events = std::pin::pin!(watcher(pods, Config::default()));
    while bound.len() < number {
        match events.next().await.unwrap() {
            Ok(Event::InitDone) => _ = watches.take().map(|watches| watches.send(())),
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                let is_bound = pod.spec.is_some_and(|spec| spec.node_name.is_some());
                if let (Some(name), true) = (pod.metadata.name, is_bound) {
                    bound.entry(name).or_insert_with(Instant::now);
                }
            }
            _ => {}
        }
    }
    bound
}

//! What users and administrators wait for, and what the scheduler takes: claims, gangs, verdicts, the next leader, memory.
//!
//! ```sh
//! cargo test --release -p aliquot-kubernetes-scheduler --test live figures::rows -- --ignored --nocapture
//! ```
//!
//! With `ALIQUOT_TEST_KUBECONFIG` it is a real API server, see [`crate::objects`]. Otherwise it is the project's own, in
//! the same process. `ALIQUOT_TEST_ROWS=gangs,memory` takes these rows alone.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Instant;

use aliquot_kubernetes_scheduler::{Listeners, serve};
use aliquot_test_api_server::{NODES, PODS, SCHEDULING_POLICIES};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::{FIRST, create, is_bound, manifest, remove_pods, run};
use crate::kit::{self, Cluster, Extras};

/// A label of nodes.
const RACK: &str = "example.com/rack";
/// Where the scheduler that is a process of its own finds the API server, and how it is called.
const OF_PROCESS: [&str; 2] = ["ALIQUOT_TEST_PROCESS_KUBECONFIG", "ALIQUOT_TEST_PROCESS_IDENTITY"];

#[test]
#[ignore = "a benchmark: see BENCHMARKS.md"]
fn what_is_waited_for() {
    let server = std::env::var_os("ALIQUOT_TEST_KUBECONFIG").map_or("the project's own", |_| "a real");
    println!("through {server} API server:");
    let rows: [(&str, fn()); 6] = [
        ("claims", claims),
        ("gangs", gangs),
        ("kinds", kinds),
        ("verdicts", verdicts),
        ("failover", failover),
        ("memory", memory),
    ];
    let wanted = std::env::var("ALIQUOT_TEST_ROWS").ok();
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|word| word == name));
    rows.into_iter().filter(|(name, _)| is_wanted(name)).for_each(|(_, row)| row());
}

/// Each pod has a claim of its own for half of a GPU.
fn claims() {
    const NODES_OF_8: usize = 500;
    const NUMBER: usize = 2000;
    let mut cluster = Cluster::start();
    cluster.device_classes();
    (0..NODES_OF_8).for_each(|node| cluster.node_with_driver(&format!("n{node}"), &["NVIDIA H100"; 8]));
    (0..NUMBER).for_each(|claim| cluster.claim(&format!("c{claim}"), "50", json!({})));
    let _scheduler = cluster.scheduler();
    wait_for_leader(&cluster);
    let pod = |number: usize| {
        let mut pod = manifest(&format!("p{number}"), "aliquot", &json!({}));
        pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimName": format!("c{number}")}]);
        pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "gpu"}]);
        pod
    };
    let (client, runtime) = cluster.objects.client();
    let took = runtime.block_on(create(&client, (0..NUMBER).map(pod).collect(), is_bound));
    println!("{NODES_OF_8} nodes, {NUMBER} pods with a claim each, until bound: {took}");
}

/// Gangs of 8 pods with a GPU each, each gang in one rack of 16 nodes.
fn gangs() {
    const NODES_OF_8: usize = 512;
    const GANGS: usize = 250;
    let mut cluster = Cluster::start();
    for node in 0..NODES_OF_8 {
        let name = format!("n{node}");
        cluster.node(&name, 8);
        let labels = json!({"metadata": {"labels": {(RACK): format!("r{}", node / 16)}}});
        cluster.objects.merge(&NODES, "", &name, &labels);
    }
    let policy = json!({
        "apiVersion": "aliquot.dev/v1alpha1", "kind": "SchedulingPolicy", "metadata": {"name": "rack"},
        "spec": {"topologyPolicy": {"requiredLevel": RACK}},
    });
    cluster.objects.create(&SCHEDULING_POLICIES, "", policy);
    let _scheduler = cluster.scheduler_with(Extras { level: Some(RACK), ..Extras::default() });
    wait_for_leader(&cluster);
    let pod = |number: usize| {
        let mut pod = manifest(&format!("p{number}"), "aliquot", &json!({"aliquot.dev/gpu-core": "100"}));
        let gang = format!("g{}", number / 8);
        pod["metadata"]["annotations"] = json!({"aliquot.dev/gang": gang, "aliquot.dev/gang-size": "8"});
        pod["metadata"]["labels"] = json!({"aliquot.dev/scheduling-policy": "rack"});
        pod
    };
    let (client, runtime) = cluster.objects.client();
    let took = runtime.block_on(create(&client, (0..8 * GANGS).map(pod).collect(), is_bound));
    println!("{NODES_OF_8} nodes, {GANGS} gangs of 8 within racks, until bound: {took}");
}

/// Pods with parts of GPUs and pods without devices, in turns. Connections are made before the first turn.
fn kinds() {
    let mut cluster = Cluster::start();
    (0..100).for_each(|node| cluster.node(&format!("n{node}"), 8));
    let scheduler = cluster.scheduler();
    wait_for_leader(&cluster);
    let (client, runtime) = cluster.objects.client();
    runtime.block_on(remove_pods(&Api::default_namespaced(client.clone())));
    runtime.block_on(run(&client, "aliquot", false, FIRST));
    let bindings = || ["sum", "count"].map(|of| scheduler.metric(&format!("binding_seconds_{of}")).unwrap_or_default());
    for turn in 0..6 {
        let (has_devices, before) = (turn % 2 == 0, bindings());
        let what = if has_devices { "parts of GPUs" } else { "no devices" };
        let line = runtime.block_on(run(&client, "aliquot", has_devices, 1000));
        let [seconds, count] = bindings();
        let of_each_ms = 1000.0 * (seconds - before[0]) / (count - before[1]);
        println!("100 nodes, 1000 pods, {what}: {line}; of that a binding takes {of_each_ms:.1} ms (mean)");
    }
}

/// Pods that find no room, until their condition says so.
fn verdicts() {
    const NODES_OF_1: usize = 100;
    let mut cluster = Cluster::start();
    (0..NODES_OF_1).for_each(|node| cluster.node(&format!("n{node}"), 1));
    let _scheduler = cluster.scheduler();
    wait_for_leader(&cluster);
    let pod = |name: &str| manifest(name, "aliquot", &json!({"aliquot.dev/gpu-core": "100"}));
    let (client, runtime) = cluster.objects.client();
    runtime.block_on(async {
        create(&client, (0..NODES_OF_1).map(|number| pod(&format!("full{number}"))).collect(), is_bound).await;
        let mut waits = Vec::new();
        for number in 0..100 {
            waits.extend(create(&client, vec![pod(&format!("one{number}"))], says_why).await.waits);
        }
        waits.sort_unstable();
        let (median, p99) = (waits[50].as_millis(), waits[99].as_millis());
        println!("a pod that finds no room, until it says so, 100 times: {median} ms (median), {p99} ms (the longest)");
        let took = create(&client, (0..1000).map(|number| pod(&format!("p{number}"))).collect(), says_why).await;
        println!("1000 such pods at once: {took}");
    });
}

fn says_why(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    conditions.into_iter().any(|of| of.type_ == "PodScheduled" && of.reason.as_deref() == Some("Unschedulable"))
}

/// A leader is killed, until another replica binds a pod that came just then.
fn failover() {
    let mut cluster = Cluster::start();
    cluster.node("n", 1);
    let mut leader = cluster.scheduler();
    wait_for_leader(&cluster);
    let mut took = Vec::new();
    for _ in 0..5 {
        let next = cluster.scheduler();
        // It has tried to get the lease, and stands by.
        cluster.wait_until("it answers", |_| next.ask("/readyz").0 == 200);
        let began = Instant::now();
        leader.kill();
        cluster.pod("a", 100, json!({}));
        cluster.wait_until_bound(&["a"]);
        took.push(began.elapsed());
        cluster.objects.delete(&PODS, "default", "a");
        leader = next;
    }
    took.sort_unstable();
    println!(
        "the leader is killed, until another one binds, 5 times: {:.1?} (median), {:.1?} (longest)",
        took[2], took[4]
    );
}

/// A scheduler as a process of its own, before and after all pods are bound.
fn memory() {
    const NODES_OF_8: usize = 5000;
    const NUMBER: usize = 50_000;
    let cluster = Cluster::start();
    (0..NODES_OF_8).for_each(|node| cluster.node(&format!("n{node}"), 8));
    let test = "figures::rows::a_scheduler_as_a_process_of_its_own";
    let values = [cluster.kubeconfig().into_os_string(), cluster.identity(1).into()];
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", test]).envs(OF_PROCESS.into_iter().zip(values));
    let process = Process(command.spawn().unwrap());
    wait_for_leader(&cluster);
    let before = process.resident_kib();
    let pod = |number: usize| manifest(&format!("p{number}"), "aliquot", &json!({"aliquot.dev/gpu-core": "50"}));
    let (client, runtime) = cluster.objects.client();
    let took = runtime.block_on(create(&client, (0..NUMBER).map(pod).collect(), is_bound));
    let after = process.resident_kib();
    drop(process);
    let mib = |kib: u64| kib / 1024;
    println!("{NODES_OF_8} nodes, {NUMBER} pods, until bound: {took}");
    println!("the scheduler's VmRSS without pods, with all of them: {}, {} MiB", mib(before), mib(after));
    runtime.block_on(remove_pods(&Api::default_namespaced(client)));
}

/// A process that does not outlive this.
struct Process(Child);

impl Process {
    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "what a benchmark starts as a process"]
fn a_scheduler_as_a_process_of_its_own() {
    let [Some(kubeconfig), Some(identity)] = OF_PROCESS.map(std::env::var_os) else { return };
    let config = kit::config(PathBuf::from(kubeconfig), identity.into_string().unwrap());
    let runtime = Runtime::new().unwrap();
    loop {
        let (_stop, stops) = oneshot::channel();
        let ended = runtime.block_on(serve(config.clone(), Listeners::default(), kit::decisions(), stops));
        println!("the scheduler is started anew: {ended:?}");
    }
}

/// Waits until there is a leader that knows all nodes.
fn wait_for_leader(cluster: &Cluster) {
    let containers: Value = json!([{"name": "main", "image": "none"}]);
    cluster.pod("first", 0, json!({"spec": {"containers": containers}}));
    cluster.wait_until_bound(&["first"]);
    cluster.objects.delete(&PODS, "default", "first");
}

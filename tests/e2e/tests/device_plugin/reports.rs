//! The manager's reports to the scheduler, with real processes on both sides.

use std::net::Ipv4Addr;
use std::process::Command;

use aliquot_api_server::questions::QUESTIONS_PORT;
use aliquot_harness::{Slice, artifacts, own_address, wait};
use aliquot_proto::reports::v1::AUDIENCE;
use aliquot_test_cluster::{CONFIG_MAPS, NODE_NAME, PODS, World};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::scheduler::{Scheduler, create, make_ready};
use crate::stage::slice_of;

const SERVICE: &str = "aliquot-scheduler-reports";
const MANAGER: &str = "system:serviceaccount:aliquot-system:aliquot-manager";

/// A cluster with a manager that reports to the leading one of these replicas, and the directory with its token.
fn reporting(replicas: &[Ipv4Addr]) -> (World, TempDir) {
    let dir = TempDir::with_prefix("aliquot-reports-").expect("a temporary directory");
    std::fs::write(dir.path().join("token"), "of-the-node\n").unwrap();
    let replicas: Vec<String> = replicas.iter().map(|address| format!("{address}:9410")).collect();
    let settings = format!(
        "reports_to = {:?}\nreports_name = \"{SERVICE}.aliquot-system.svc\"\nreports_dir = {:?}\n",
        replicas.join(","),
        dir.path()
    );
    let world = World::on_paper_with("device-plugin", "[[device]]\n", &settings);
    make_ready(&world);
    (world, dir)
}

/// A replica of the scheduler that answers questions and receives reports.
fn replica(world: &World, address: Ipv4Addr) -> Scheduler {
    let questions = format!("{address}:{QUESTIONS_PORT}");
    world.cluster.api_server().forward("aliquot-system", &host_name(), QUESTIONS_PORT, questions.parse().unwrap());
    let flags = [format!("--questions-address={questions}"), format!("--reports-address={address}:9410")];
    Scheduler::with(world, &flags)
}

/// The name of the replicas' pod.
fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned()
}

/// Writes the authority into the manager's volume, as kubelet would.
fn mount_authority(world: &World, dir: &TempDir) {
    let bundle = wait::until("the scheduler says whom to trust", || {
        let config_maps: Vec<Value> = world.cluster.store().list(&CONFIG_MAPS);
        let ours = config_maps.into_iter().find(|of| of["metadata"]["name"] == SERVICE)?;
        Some(ours["data"]["ca.crt"].as_str()?.to_owned())
    });
    std::fs::write(dir.path().join("ca.crt"), bundle).unwrap();
}

/// The line of `kubectl aliquot top` about a container's only part.
fn top(world: &World) -> Option<Value> {
    let mut command = Command::new(artifacts::kubectl_plugin());
    command.args(["top", "-A", "-o", "json", "--kubeconfig"]).arg(world.cluster.kubeconfig());
    let answer: Value = serde_json::from_slice(&command.output().expect("the plugin runs").stdout).ok()?;
    Some(answer["slices"].as_array()?.iter().find(|slice| slice["pod"] != "")?.clone())
}

/// Waits until the scheduler has a report of the node.
fn wait_until_heard(world: &World) -> Value {
    wait::until("the scheduler has heard of the node", || {
        top(world).filter(|part| part["report_age_ms"].is_u64() && part["memory_used_bytes"].is_u64())
    })
}

#[test]
fn the_leader_hears_what_slices_use_and_so_does_the_next() {
    let (first, second) = (own_address(), own_address());
    let (world, dir) = reporting(&[first, second]);
    let spec = json!({"containers": [{"name": "scheduler", "image": "none"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": host_name()}, "spec": spec});
    world.cluster.store().create(&PODS, "aliquot-system", pod).unwrap();
    world.cluster.api_server().know_token("of-the-node", AUDIENCE, MANAGER, NODE_NAME);
    let leader = replica(&world, first);
    mount_authority(&world, &dir);
    create(&world, "a", 60);
    world.cluster.wait_for_phase("a", "Running");
    let part = wait_until_heard(&world);
    assert_eq!((&part["node"], &part["queue"]), (&json!(NODE_NAME), &json!("default")), "{part}");
    assert_eq!((&part["core_thousandths"], &part["core_used_thousandths"]), (&json!(600), &json!(0)), "{part}");
    let slice = Slice::open(slice_of(&world, "a", "main").unwrap());
    let _busy = slice.busy(&world.gpu);
    wait::until_true("the scheduler hears that the slice works", || {
        let part = wait_until_heard(&world);
        part["core_used_thousandths"].as_u64() > Some(0) && part["memory_used_bytes"].as_u64() > Some(0)
    });
    drop(leader);
    assert_eq!(top(&world).unwrap()["report_age_ms"], Value::Null);
    let _next = replica(&world, second);
    assert_eq!(wait_until_heard(&world)["pod"], "a");
    world.assert_no_complaints();
}

#[test]
fn a_manager_whose_token_is_of_another_node_reports_nothing() {
    let address = own_address();
    let (world, dir) = reporting(&[address]);
    world.cluster.api_server().know_token("of-the-node", AUDIENCE, MANAGER, "another");
    let _leader = replica(&world, address);
    mount_authority(&world, &dir);
    let why = "a pod on node \"another\", and cannot report about node";
    wait::until_true("the manager says why it does not report", || world.node.log().contains(why));
    // Pods still get their slices.
    create(&world, "a", 60);
    world.cluster.wait_for_phase("a", "Running");
    world.assert_no_complaints();
}

//! What `kubectl aliquot` says of a cluster, and what it says to whoever may not ask the scheduler.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use aliquot_api_server::questions::{Queues, WhatIfAnswer};
use aliquot_dialects::Dialect;
use aliquot_kubectl::{Cli, Failure, Printed, run};
use aliquot_terminal::look::Look;
use aliquot_test_api_server::{CORE_EVENTS, Fault, LIMIT_RANGES, NAMESPACES, PODS, QUEUES, RESOURCE_QUOTAS};
use clap::Parser;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::kit::{Cluster, Extras, Scheduler};

/// What the plugin prints.
pub(crate) fn ask(cluster: &Cluster, arguments: &[&str]) -> Result<Printed, Failure> {
    let kubeconfig = cluster.kubeconfig();
    let options = ["kubectl-aliquot", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let cli = Cli::try_parse_from(options.iter().chain(arguments)).unwrap();
    Runtime::new().unwrap().block_on(run(&cli, Look::PLAIN))
}

/// The text that the plugin prints, without notes.
fn text(cluster: &Cluster, arguments: &[&str]) -> String {
    let Printed { text, notes, .. } = ask(cluster, arguments).unwrap();
    assert_eq!(notes, [""; 0], "{text}");
    text
}

/// The text that the plugin prints, without notes, once it contains `expected`. The leader hears of a binding after the
/// API server.
#[track_caller]
fn text_with(cluster: &Cluster, arguments: &[&str], expected: &str) -> String {
    let found = RefCell::new(String::new());
    cluster.wait_until(&format!("{arguments:?} prints {expected:?}"), |cluster| {
        let printed = ask(cluster, arguments).ok();
        let printed = printed.filter(|of| of.notes.is_empty() && of.text.contains(expected));
        printed.map(|of| found.replace(of.text)).is_some()
    });
    found.into_inner()
}

pub(crate) fn json_of<T: DeserializeOwned>(cluster: &Cluster, arguments: &[&str]) -> T {
    let printed = ask(cluster, &[arguments, &["-o", "json"]].concat()).unwrap();
    serde_json::from_str(&printed.text).unwrap()
}

/// A cluster with a node of two GPUs, two queues, and a scheduler that can be asked.
fn cluster() -> (Cluster, Scheduler) {
    let mut cluster = Cluster::with_faults();
    cluster.node("n", 2);
    for (name, quota) in [("small", 0.5), ("large", 1.5)] {
        let spec = json!({"resources": {"gpu": {"quota": quota, "limit": 2}}});
        let queue = json!({
            "apiVersion": "aliquot.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name}, "spec": spec,
        });
        cluster.objects.create(&QUEUES, "", queue);
    }
    let scheduler = cluster.scheduler();
    cluster.make_pod_of(1, &scheduler);
    (cluster, scheduler)
}

/// The same cluster, and a node whose GPU is given out by claims. Pod `a` has half of it by claim `part`.
fn cluster_with_claim() -> (Cluster, Scheduler) {
    let (cluster, scheduler) = cluster();
    cluster.device_classes();
    cluster.node_with_driver("m", &["H100"]);
    cluster.claim("part", "50", json!({}));
    cluster.pod_with_claim("a", "part", json!({}));
    cluster.wait_until_bound(&["a"]);
    (cluster, scheduler)
}

fn in_queue(queue: &str) -> Value {
    json!({"metadata": {"labels": {"aliquot.dev/queue": queue}}})
}

#[test]
fn pods_are_explained_to_whoever_may_ask() {
    let (cluster, _scheduler) = cluster();
    cluster.pod("a", 60, in_queue("large"));
    cluster.pod("b", 60, in_queue("large"));
    cluster.wait_until_bound(&["a", "b"]);
    cluster.pod("c", 50, in_queue("large"));
    cluster.wait_until("c says why it waits", |cluster| cluster.why_waiting("c").is_some());

    let of_a = text_with(&cluster, &["explain", "pod/a"], "State:  is bound");
    assert!(of_a.contains("Queue:  large\nNode:   n\n"), "{of_a}");
    let part = "container main has 60 % of the time and 48 GiB of the memory of GPU-n-";
    assert!(of_a.contains(part), "{of_a}");

    let of_c = text(&cluster, &["explain", "c"]);
    assert!(of_c.contains("State:  waits (Pending)\nQueue:  large\nNode:   -\n"), "{of_c}");
    assert!(of_c.contains("\nWhy it waits\n- "), "{of_c}");
    assert!(of_c.contains("\nWhat would help\n- wait until \"default/"), "{of_c}");
    let answer: Value = json_of(&cluster, &["explain", "c"]);
    assert_eq!((&answer["state"], &answer["queue"]), (&json!("waiting"), &json!("large")), "{answer}");
    assert!(answer["reasons"][0]["tier"].is_string(), "{answer}");

    let missing = ask(&cluster, &["explain", "nobody"]).unwrap_err();
    assert!(missing.to_string().contains("there is no pod default/nobody"), "{missing}");
}

#[test]
fn options_mean_what_they_do_for_kubectl() {
    let (cluster, _scheduler) = cluster();
    cluster.wait_until("the leader answers", |cluster| ask(cluster, &["queues"]).is_ok());
    let queues: Queues = json_of(&cluster, &["queues"]);
    let yaml = text(&cluster, &["queues", "-o", "yaml"]);
    assert!(yaml.starts_with("queues:\n") && queues.queues.iter().all(|queue| yaml.contains(&queue.name)), "{yaml}");
    for (option, what) in [("--context", "context"), ("--cluster", "cluster"), ("--user", "user")] {
        let unknown = ask(&cluster, &["queues", option, "nowhere"]).unwrap_err().to_string();
        assert!(unknown.contains(what) && unknown.contains("nowhere"), "{unknown}");
    }
    // What an API server is told.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let named = |key: &str, value: Value| json!([{"name": "x", (key): value}]);
    let kubeconfig = json!({
        "clusters": named("cluster", json!({"server": server})), "users": named("user", json!({})),
        "contexts": named("context", json!({"cluster": "x", "user": "x"})), "current-context": "x",
    });
    let file = cluster.kubeconfig().with_file_name("told");
    std::fs::write(&file, kubeconfig.to_string()).unwrap();
    let told = thread::spawn(move || {
        let mut connection = listener.accept().unwrap().0;
        let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let read = connection.read(&mut buffer).unwrap();
            request.extend_from_slice(&buffer[..read]);
        }
        String::from_utf8(request).unwrap()
    });
    let arguments =
        ["--kubeconfig", file.to_str().unwrap(), "--as", "ci", "--as-group", "a", "--as-group", "b", "slices"];
    let cli = Cli::try_parse_from(["kubectl-aliquot"].iter().chain(&arguments)).unwrap();
    Runtime::new().unwrap().block_on(run(&cli, Look::PLAIN)).unwrap_err();
    let told = told.join().unwrap();
    for header in ["impersonate-user: ci", "impersonate-group: a", "impersonate-group: b"] {
        assert!(told.contains(&format!("{header}\r\n")), "{told}");
    }
}

#[test]
fn quotas_of_namespaces_are_told() {
    let (cluster, _scheduler) = cluster();
    let labels = json!({"aliquot.dev/queue": "large"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": labels}});
    cluster.objects.replace(&NAMESPACES, "", namespace);
    let hard = json!({"requests.aliquot.dev/gpu-core": "100", "limits.cpu": "4"});
    let quota =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}});
    cluster.objects.create(&RESOURCE_QUOTAS, "default", quota);
    let used = json!({"requests.aliquot.dev/gpu-core": "60", "limits.cpu": "0"});
    let status = json!({"status": {"hard": hard, "used": used}});
    cluster.objects.merge_status(&RESOURCE_QUOTAS, "default", "gpus", &status);
    let row = "default    large  gpus           requests.aliquot.dev/gpu-core    60   100";
    // The namespace's queue is known a moment after the leader answers.
    cluster.wait_until("the quota is told", |cluster| {
        ask(cluster, &["queues"]).is_ok_and(|shown| {
            shown.text.contains("\nNAMESPACE  QUEUE  RESOURCEQUOTA  RESOURCE ") && shown.text.contains(row)
        })
    });

    // Why a Job has no pods.
    let message = "Error creating: pods \"train-x\" is forbidden: exceeded quota: gpus";
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "train.1"}, "reason": "FailedCreate", "type": "Warning",
        "message": message, "involvedObject": {"kind": "Job", "namespace": "default", "name": "train"},
    });
    cluster.objects.create(&CORE_EVENTS, "default", event);
    let shown = text(&cluster, &["explain", "train"]);
    let why = format!("Why pods are not made\n- quota: Job \"train\" cannot make pods: {message}\n");
    assert!(shown.contains("State:  lacks pods\n") && shown.contains(&why), "{shown}");

    // What would become of pods.
    let limits = json!({"limits": {"aliquot.dev/gpu-core": "30"}});
    let spec =
        json!({"schedulerName": "aliquot", "containers": [{"name": "main", "image": "none", "resources": limits}]});
    let file = cluster.kubeconfig().with_file_name("pod.yaml");
    std::fs::write(&file, json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec}).to_string()).unwrap();
    let what_if = || ask(&cluster, &["what-if", "--count", "2", "-f", file.to_str().unwrap()]).unwrap();
    let Printed { text, exit, .. } = what_if();
    assert!(exit == 3 && text.contains("container \"main\" must say limits.cpu"), "{text}");
    let item = json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "1"}});
    let range =
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": [item]}});
    cluster.objects.create(&LIMIT_RANGES, "default", range);
    let Printed { text, exit, .. } = what_if();
    assert!(exit == 3 && !text.contains("must say"), "{text}");
    assert!(
        text.contains("the ResourceQuota \"gpus\" has room for 1 of 2: of requests.aliquot.dev/gpu-core"),
        "{text}"
    );
    assert!(text.starts_with("2 of 2 pods would start now (queue large)\n"), "{text}");
}

#[test]
fn a_snapshot_is_printed_as_the_scheduler_writes_it() {
    let (cluster, _scheduler) = cluster();
    cluster.pod("a", 60, json!({}));
    text_with(&cluster, &["snapshot"], r#"{"claims":1}"#);
}

#[test]
fn parts_that_a_pod_has_by_claims_are_explained() {
    let (cluster, _scheduler) = cluster_with_claim();
    let shown = text(&cluster, &["explain", "a"]);
    assert!(shown.contains("by claim part it has 50 % of the time and "), "{shown}");
}

#[test]
fn no_advice_is_about_what_nobody_has_asked_for() {
    // The scheduler knows devices of claims beside those of the device plugin.
    let (cluster, _scheduler) = cluster_with_claim();
    ["b", "c"].iter().for_each(|name| cluster.pod(name, 100, in_queue("large")));
    cluster.wait_until_bound(&["a", "b", "c"]);
    cluster.pod("d", 40, json!({}));
    cluster.wait_until("d says why it waits", |cluster| cluster.why_waiting("d").is_some());
    let shown = text(&cluster, &["explain", "d"]);
    assert!(shown.contains("What would help") && !shown.contains("device plugin"), "{shown}");
}

#[test]
fn queues_and_slices_say_who_has_what() {
    let (cluster, _scheduler) = cluster();
    cluster.pod("a", 60, in_queue("large"));
    cluster.wait_until_bound(&["a"]);
    let queue = |name: &str| {
        let queues: Queues = json_of(&cluster, &["queues"]);
        queues.queues.into_iter().find(|queue| queue.name == name).unwrap()
    };
    cluster.wait_until("the queue holds what a has", |_| queue("large").held_gpu_millis == 600);
    let large = queue("large");
    assert_eq!((large.quota_gpu_millis, large.limit_gpu_millis, large.waiting), (Some(1500), Some(2000), 0));
    let shown = text(&cluster, &["queues"]);
    assert!(shown.starts_with("QUEUE    QUOTA  LIMIT  FAIR SHARE  HELD"), "{shown}");

    let slices = text(&cluster, &["slices", "-A"]);
    let mut rows: Vec<String> =
        slices.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    rows.sort();
    let of_a = rows.iter().find(|row| row.contains(" a main ")).unwrap();
    assert!(of_a.starts_with("n gpu 0 default a main 60 % 48 GiB"), "{slices}");
    assert_eq!(rows.len(), 2, "{slices}");

    // There is no manager that could be asked.
    let top = text(&cluster, &["top"]);
    assert!(top.starts_with("NODE  DEVICE  POD  CONTAINER  QUEUE  CORE  USED  MEMORY  USED  AGE\n"), "{top}");
}

/// Answers as a manager does, until the test ends: from one answer to the next the pod `a` has used half a second of a
/// device, and it has 1 GiB of memory.
fn manager_of(device: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, connection) in listener.incoming().enumerate() {
            let mut connection = connection.unwrap();
            assert!(connection.read(&mut [0; 4096]).unwrap() > 0);
            let labels = format!(r#"slice="s",device="{device}",namespace="default",pod="a",container="main""#);
            let seconds = number as f64 / 2.0;
            let page = format!(
                "aliquot_slice_core_used_seconds_total{{{labels}}} {seconds}\n\
                 aliquot_slice_memory_used_bytes{{{labels}}} 1073741824\n# EOF\n"
            );
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", page.len());
            connection.write_all((head + &page).as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn top_says_what_managers_measure() {
    let (cluster, _scheduler) = cluster();
    cluster.pod("a", 60, in_queue("large"));
    cluster.wait_until_bound(&["a"]);
    let decision = cluster.get("a")["metadata"]["annotations"]["aliquot.dev/devices"].as_str().unwrap().to_owned();
    let device = decision.trim_start_matches("main=").split('/').next().unwrap().to_owned();
    let ports = json!([{"name": "metrics", "containerPort": 9405}]);
    let containers = json!([{"name": "manager", "image": "none", "ports": ports}]);
    let manager = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "manager-n", "labels": {"app.kubernetes.io/name": "aliquot-manager"}},
        "spec": {"nodeName": "n", "containers": containers},
    });
    cluster.objects.create(&PODS, "aliquot-system", manager);
    let unreached = ask(&cluster, &["top"]).unwrap();
    assert!(unreached.notes[0].starts_with("the manager on node n cannot be asked: "), "{:?}", unreached.notes);

    cluster.server().forward("aliquot-system", "manager-n", 9405, manager_of(device));
    let measured: Value = json_of(&cluster, &["top"]);
    let slice = &measured["slices"][0];
    assert_eq!(slice["memory_used_bytes"], 1 << 30, "{measured}");
    let core = slice["core_used_thousandths"].as_u64().unwrap();
    // There is at least a second between the two answers.
    assert!((1..=500).contains(&core), "{measured}");
}

#[test]
fn what_if_says_where_pods_would_start() {
    let (cluster, _scheduler) = cluster();
    let low = json!({"metadata": {"labels": {"aliquot.dev/queue": "large"}}, "spec": {"priority": 1}});
    cluster.pod("a", 100, low.clone());
    cluster.pod("b", 50, low);
    cluster.wait_until_bound(&["a", "b"]);
    for pod in ["a", "b"] {
        text_with(&cluster, &["explain", pod], "State:  is bound");
    }
    let what_if = |arguments: &[&str]| {
        let all = [&["what-if", "-o", "json"], arguments].concat();
        let printed = ask(&cluster, &all).unwrap();
        (printed.exit, serde_json::from_str::<WhatIfAnswer>(&printed.text).unwrap())
    };
    let (exit, fits) = what_if(&["--gpu-core", "50", "--gpu-memory", "8Gi", "--queue", "small"]);
    assert_eq!((exit, fits.placed.len(), fits.queue.as_str()), (0, 1, "small"));
    let part = &fits.placed[0].devices[0];
    assert_eq!((part.core_thousandths, part.memory_bytes), (500, 8 << 30), "{fits:?}");

    // It has a higher priority than what runs in its queue.
    let (exit, evicts) = what_if(&["--gpu-core", "60", "--queue", "large", "--priority", "90"]);
    assert_eq!((exit, evicts.making_way.len()), (0, 1), "{evicts:?}");
    assert_eq!(evicts.making_way[0].action, "preempt");

    let (exit, waits) = what_if(&["--gpu-core", "80", "--count", "3", "--gang", "--queue", "small"]);
    assert_eq!((exit, waits.placed.len(), waits.waiting), (3, 0, 3), "{waits:?}");
    assert!(!waits.reasons.is_empty(), "{waits:?}");

    let unknown = ask(&cluster, &["what-if", "--gpu-core", "50", "--queue", "nobody"]).unwrap_err();
    assert!(unknown.to_string().contains("nobody"), "{unknown}");
    // Nothing of it was real.
    let pods: Vec<String> = cluster.bound().into_keys().collect();
    assert_eq!(pods, ["a", "b"]);
}

#[test]
fn what_if_asks_about_the_pod_that_would_be_made() {
    let mut cluster = Cluster::with_faults();
    cluster.node("n", 2);
    cluster.speaks("n", 2, Dialect::Kai);
    let file = cluster.kubeconfig().with_file_name("pod.yaml");
    let ask_about = |cluster: &Cluster, annotations: Value, resources: Value| {
        let spec = json!({"containers": [{"name": "main", "image": "none", "resources": resources}]});
        let pod = json!({"kind": "Pod", "metadata": {"name": "p", "annotations": annotations}, "spec": spec});
        std::fs::write(&file, pod.to_string()).unwrap();
        ask(cluster, &["what-if", "-f", file.to_str().unwrap()])
    };
    let of_kai = json!({"gpu-fraction": "0.5"});
    let plain = json!({"requests": {"aliquot.dev/gpu-core": "50"}, "limits": {"aliquot.dev/gpu-core": "50"}});

    let without_webhook = cluster.scheduler();
    cluster.make_pod_of(1, &without_webhook);
    cluster.wait_until("it answers", |cluster| ask(cluster, &["queues"]).is_ok());
    let refused = ask_about(&cluster, of_kai.clone(), json!({})).unwrap_err();
    assert!(refused.to_string().contains("gpu-fraction has no effect without aliquot.dev/kai-gpu"), "{refused}");
    without_webhook.stop();

    let with_webhook = cluster.scheduler_with(Extras { webhook: true, ..Extras::default() });
    cluster.make_pod_of(2, &with_webhook);
    cluster.wait_until("the next one answers", |cluster| ask(cluster, &["queues"]).is_ok());
    let of_half = "The pod would start now (queue default)\n\nWhere\n- node n: 50 % and 40 GiB of GPU-n-0\n";
    let found = ask_about(&cluster, of_kai.clone(), json!({})).unwrap();
    assert_eq!((found.text.as_str(), found.exit), (of_half, 0));
    let found = ask_about(&cluster, json!({}), plain.clone()).unwrap();
    assert_eq!((found.text.as_str(), found.exit), (of_half, 0));
    // A request alone would be refused by the API server, and gets its limit.
    let found = ask_about(&cluster, json!({}), json!({"requests": plain["requests"]})).unwrap();
    assert_eq!((found.text.as_str(), found.exit), (of_half, 0));
    // What is filled in counts in the namespace, too.
    let hard = json!({"requests.aliquot.dev/kai-gpu": "0"});
    let quota =
        json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": hard}});
    cluster.objects.create(&RESOURCE_QUOTAS, "default", quota);
    let found = ask_about(&cluster, of_kai, json!({})).unwrap();
    assert!(found.exit == 3 && found.text.contains("\"none\" has room for 0 of 1"), "{}", found.text);
    assert_eq!(ask_about(&cluster, json!({}), plain).unwrap().exit, 0);
}

#[test]
fn an_evicted_pod_says_why_when_it_is_gone() {
    let (cluster, _scheduler) = cluster();
    cluster.pod("low", 100, json!({"spec": {"priority": 1}, "metadata": {"labels": {"aliquot.dev/queue": "large"}}}));
    cluster.pod(
        "other",
        100,
        json!({"spec": {"priority": 50}, "metadata": {"labels": {"aliquot.dev/queue": "large"}}}),
    );
    cluster.wait_until_bound(&["low", "other"]);
    cluster.pod("high", 100, json!({"spec": {"priority": 90}, "metadata": {"labels": {"aliquot.dev/queue": "large"}}}));
    cluster.wait_until_bound(&["high", "other"]);
    cluster.wait_until("the event about low", |cluster| !cluster.events_about("low").is_empty());
    let gone = text(&cluster, &["explain", "low"]);
    assert!(gone.contains("State:  is gone\n"), "{gone}");
    assert!(gone.contains("Preempted: evicted for \"default/high\", which has a higher priority"), "{gone}");
}

#[test]
fn whoever_may_not_ask_hears_what_the_pod_says() {
    let (cluster, _scheduler) = cluster();
    cluster.pod("a", 100, in_queue("large"));
    cluster.wait_until_bound(&["a"]);
    let of_nobody = json!({"metadata": {"annotations": {"scheduling.k8s.io/group-name": "nobody"}}});
    cluster.pod("b", 90, of_nobody);
    cluster.wait_until("the event about b", |cluster| !cluster.events_about("b").is_empty());
    cluster.server().set_fault(|_, path| match path.ends_with("/portforward") {
        true => Fault::Forbidden,
        false => Fault::None,
    });
    let Printed { text, notes, exit } = ask(&cluster, &["explain", "b"]).unwrap();
    assert!(text.contains("Why it waits\n- NotSupported: ") && text.contains("\nEvents\n- "), "{text}");
    assert!(notes[0].contains("you have no right to ask the scheduler"), "{notes:?}");
    assert!(notes[0].ends_with("this is what the pod and its events say") && exit == 0, "{notes:?}");
    let refused = ask(&cluster, &["queues"]).unwrap_err();
    assert!(refused.to_string().contains("aliquot-operator"), "{refused}");
}

#[test]
fn the_next_leader_is_found_by_its_lease() {
    let (mut cluster, leader) = cluster();
    cluster.wait_until("the leader answers", |cluster| ask(cluster, &["queues"]).is_ok());
    let standby = cluster.scheduler();
    cluster.make_pod_of(2, &standby);
    leader.stop();
    cluster.pod("a", 10, json!({}));
    cluster.wait_until_bound(&["a"]);
    let answer: Value = json_of(&cluster, &["explain", "a"]);
    assert_eq!(answer["node"], "n");
    cluster.objects.delete(&PODS, "aliquot-system", "replica-2");
    let away = ask(&cluster, &["queues"]).unwrap_err();
    assert!(away.to_string().contains("the scheduler cannot be asked"), "{away}");
}
